//! Cost of scraping: the scraper against a bare loop that reads pages and looks at the start of
//! every line, in turns and in one run. Servers, loop and scraper are processes of their own, so
//! that each one's processor time and memory are its own.
//!
//! ```text
//! cargo bench --bench scrape -- --endpoints 100,1000 --dead 5 --rounds 3
//! ```

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark may print and panic")]

mod ages;
mod bare;
#[path = "../common/page.rs"]
mod page;
mod picker;
mod servers;
mod stage;

use std::time::Duration;

use clap::{Parser, Subcommand};

use stage::{Case, Measured, Stage};

/// Same allocator as `usher serve`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Scrapes simulated servers every 50 ms and prints what that costs.
#[derive(Debug, Parser)]
#[command(name = "bench-scrape")]
struct Arguments {
    /// Numbers of endpoints.
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_values_t = [100, 1000])]
    endpoints: Vec<u16>,
    /// Number of additional endpoints that refuse connections or never respond, in a case of its own; 0: no
    /// such case.
    #[arg(long, value_name = "N", default_value_t = 5)]
    dead: u16,
    /// Rounds; each measures the loop and the scraper.
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: u16,
    /// Seconds of each measurement.
    #[arg(long, value_name = "SECONDS", default_value_t = 4.0)]
    seconds: f64,
    /// Servers send head and page apart, as some do.
    #[arg(long)]
    apart: bool,
    /// Also with `selectMetrics`.
    #[arg(long)]
    select: bool,
    /// Flag that cargo adds when it runs a benchmark.
    #[arg(long, hide = true)]
    bench: bool,
    #[command(subcommand)]
    part: Option<Part>,
}

/// Part of the benchmark that a process runs; started by the benchmark itself.
#[derive(Debug, Subcommand)]
enum Part {
    #[command(hide = true)]
    Servers {
        count: u16,
        dead: u16,
        #[arg(long)]
        apart: bool,
    },
    #[command(hide = true)]
    Bare { live: usize, ports: Vec<u16> },
    #[command(hide = true)]
    Usher {
        live: usize,
        ports: Vec<u16>,
        #[arg(long)]
        select: bool,
    },
}

fn main() {
    let arguments = Arguments::parse();
    match arguments.part {
        None => measure(&arguments),
        Some(Part::Servers { count, dead, apart }) => servers::run(count, dead, apart),
        Some(Part::Bare { live, ports }) => bare::run(&ports[..live]),
        Some(Part::Usher { live, ports, select }) => picker::run(&ports, live, select),
    }
}

fn measure(arguments: &Arguments) {
    let time = Duration::from_secs_f64(arguments.seconds);
    println!("{} bytes a page, every 50 ms; medians of {} rounds", page::page().len(), arguments.rounds);
    println!(
        "{:<28}{:>9}{:>9}{:>12}{:>10}{:>10}{:>9}",
        "", "cores", "pages/s", "us per page", "age p50", "age p99", "MiB"
    );
    for &endpoints in &arguments.endpoints {
        for dead in if arguments.dead == 0 { vec![0] } else { vec![0, arguments.dead] } {
            let mut stage = Stage::start(endpoints, dead, arguments.apart);
            let mut cases = vec![("bare loop", Case::Bare), ("usher", Case::Usher)];
            cases.extend(arguments.select.then_some(("usher, selecting", Case::Selecting)));
            let mut runs: Vec<Vec<Measured>> = vec![Vec::new(); cases.len()];
            for _ in 0..arguments.rounds {
                for ((_, case), runs) in cases.iter().zip(&mut runs) {
                    runs.push(stage.measure(*case, time));
                }
            }
            for ((name, _), runs) in cases.iter().zip(&runs) {
                let dead = if dead == 0 { String::new() } else { format!(" + {dead} dead") };
                row(&format!("{name}, {endpoints}{dead}"), runs);
            }
        }
    }
}

fn row(name: &str, runs: &[Measured]) {
    println!(
        "{name:<28}{:>9.4}{:>9.0}{:>12.1}{:>10.1}{:>10.1}{:>9.1}",
        median(runs, |run| run.cores),
        median(runs, |run| run.pages),
        // On a busy machine there are fewer pages than there should be.
        median(runs, |run| run.cores * 1e6 / run.pages),
        median(runs, |run| run.age_p50),
        median(runs, |run| run.age_p99),
        median(runs, |run| run.mebibytes),
    );
}

fn median(runs: &[Measured], of: impl Fn(&Measured) -> f64) -> f64 {
    let mut values: Vec<f64> = runs.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
