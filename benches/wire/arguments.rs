//! The arguments of `make bench-wire`.

use std::path::PathBuf;

use clap::Parser;

use super::pickers::Picker;
use super::workloads::{WORKLOADS, Workload};

/// Measures the limit, Usher and any other picker in turns, and writes a report.
#[derive(Debug, Parser)]
#[command(name = "bench-wire", max_term_width = 100)]
pub struct Arguments {
    /// Rounds per workload. Fewer than 3 say little.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub rounds: u16,
    /// Only these workloads, separated by commas.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = workload)]
    pub only: Vec<&'static Workload>,
    /// Measure for 2 seconds only, to see whether everything works.
    #[arg(long)]
    pub quick: bool,
    /// Another picker that takes the flags of `usher serve`, with which its COMMAND is called.
    #[arg(long = "peer", value_name = "NAME=COMMAND", value_parser = Picker::parse)]
    pub peers: Vec<Picker>,
    /// Folder for the report. By default docs/contributing for a full run, else one in the build's folder,
    /// so that a trial never replaces published numbers.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Folder for Envoy, which is installed when it is not there.
    #[arg(long, value_name = "DIR", default_value = ".demo")]
    pub envoy_dir: PathBuf,
    /// Flag that cargo adds when it runs a benchmark.
    #[arg(long, hide = true)]
    pub bench: bool,
}

impl Arguments {
    /// Workloads to measure, in the order of the table.
    pub fn workloads(&self) -> Vec<&'static Workload> {
        let chosen = |workload: &Workload| self.only.iter().any(|only| only.name == workload.name);
        WORKLOADS.iter().filter(|workload| self.only.is_empty() || chosen(workload)).collect()
    }

    /// Pickers to compare, the limit first, then Usher.
    ///
    /// # Errors
    /// A message that names two that are called the same.
    pub fn pickers(&self) -> Result<Vec<Picker>, String> {
        let mut pickers = vec![Picker::limit(), Picker::usher()];
        for peer in &self.peers {
            if pickers.iter().any(|picker| picker.name == peer.name) {
                return Err(format!("two pickers are called {:?}; choose another name", peer.name));
            }
            pickers.push(peer.clone());
        }
        Ok(pickers)
    }

    /// Returns `true` if the numbers are what is published.
    pub fn is_full(&self) -> bool {
        self.only.is_empty() && !self.quick && self.rounds >= 3
    }
}

fn workload(name: &str) -> Result<&'static Workload, String> {
    WORKLOADS.iter().find(|workload| workload.name == name).ok_or_else(|| {
        let names: Vec<&str> = WORKLOADS.iter().map(|workload| workload.name).collect();
        format!("there is no such workload; choose from {}", names.join(", "))
    })
}

/// The order of the pickers in a round, counted from 1: forward, then backward, and so on.
pub fn order(pickers: &[Picker], round: usize) -> Vec<&Picker> {
    let forward = pickers.iter();
    if round % 2 == 1 { forward.collect() } else { forward.rev().collect() }
}
