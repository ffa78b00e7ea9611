//! The arguments of `make bench-live`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use usher::config::EndpointPickerConfig;
use usher::replay::{Case, Cell, Policy, Settings, Size};
use usher::sim::ModelKind;

/// A first token within this time is good.
const TTFT_LIMIT: Duration = Duration::from_secs(2);

/// A response whose tokens come within this time each, on average, is good.
const TPOT_LIMIT: Duration = Duration::from_millis(50);

/// The configuration of the policy `expected-latency`, but for the place of its endpoints.
pub const EXPECTED_LATENCY: &str = include_str!("../../deploy/config/expected-latency.yaml");

/// Plays workloads of `usher replay` to simulated servers behind Usher and a real Envoy, runs
/// the same in replay, and prints both.
#[derive(Debug, Parser)]
#[command(name = "bench-live", max_term_width = 100)]
pub struct Arguments {
    /// Workloads, those of the replay's suite with equal servers, separated by commas.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "conversations,long-answers", value_parser = case)]
    pub cases: Vec<Case>,
    /// Models of the servers' engines.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "chunked-prefill,prefill-first"
    )]
    pub engines: Vec<ModelKind>,
    /// Policies that decide.
    #[arg(
        long,
        value_enum,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "expected-latency,llm-d-router-default"
    )]
    pub policies: Vec<PolicyName>,
    /// Share of what the servers can do with good caches that is asked for.
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, value_parser = above_zero)]
    pub utilization: f64,
    /// Simulated servers.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub servers: u16,
    /// Seed of all random values, the constants of the engines included.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Simulated seconds for which requests come, about.
    #[arg(long, value_name = "SECONDS", default_value_t = 240.0, value_parser = above_zero)]
    pub seconds: f64,
    /// Simulated seconds per second.
    #[arg(long, value_name = "FACTOR", default_value_t = 5.0, value_parser = above_zero)]
    pub time_scale: f64,
    /// Tokens of an event of a stream. Fewer take more of the processor.
    #[arg(long, value_name = "TOKENS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub stream_interval: u32,
    /// Replays of each run, which differ in what is random: how far chance alone goes.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub replays: u64,
    /// Folder for Envoy, which is installed when it is not there.
    #[arg(long, value_name = "DIR", default_value = ".demo")]
    pub envoy_dir: PathBuf,
    /// Flag that cargo adds when it runs a benchmark.
    #[arg(long, hide = true)]
    pub bench: bool,
}

/// A policy that a picker of its own process can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PolicyName {
    /// `deploy/config/expected-latency.yaml`.
    ExpectedLatency,
    /// llm-d-router's, which runs without a configuration.
    #[value(name = "llm-d-router-default", alias = "peer-default")]
    RouterDefault,
}

impl PolicyName {
    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::ExpectedLatency => "expected-latency",
            Self::RouterDefault => "llm-d-router-default",
        }
    }

    /// Configuration; `None`: the built-in one.
    pub fn configuration(self) -> Option<&'static str> {
        match self {
            Self::ExpectedLatency => Some(EXPECTED_LATENCY),
            Self::RouterDefault => None,
        }
    }

    /// The policy for a replay.
    ///
    /// # Errors
    /// Returns an error if the configuration is not valid.
    pub fn policy(self) -> anyhow::Result<Policy> {
        let parse = |text: &str| EndpointPickerConfig::parse(text).map(Box::new);
        Ok(Policy::Configured(self.configuration().map(parse).transpose()?))
    }
}

impl Arguments {
    /// The runs without their policies.
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &engine in &self.engines {
            let cell = |&case: &Case| Cell { case, engine, utilization: self.utilization, seed: self.seed };
            cells.extend(self.cases.iter().map(cell));
        }
        cells
    }

    /// Settings of a run in simulated time, without policies.
    pub fn settings(&self, cell: &Cell) -> Settings {
        let size =
            Size { servers: self.servers.into(), seconds: self.seconds, requests: (1.0, f64::INFINITY) };
        cell.settings_of(size, Vec::new(), &[], (TTFT_LIMIT, TPOT_LIMIT))
    }
}

fn case(name: &str) -> Result<Case, String> {
    let equal = || Case::ALL.into_iter().filter(|case| matches!(case, Case::Equal(_)));
    equal().find(|case| case.name() == name).ok_or_else(|| {
        let names: Vec<&str> = equal().map(Case::name).collect();
        format!("there is no such workload; choose from {}", names.join(", "))
    })
}

fn above_zero(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
        _ => Err("give a number above 0".to_owned()),
    }
}
