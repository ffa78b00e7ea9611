//! `usher capacity compare`: what a policy would have done under a trace.

mod report;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;

use super::policies::read_one;
use crate::config::EndpointPickerConfig;
use crate::config::source::read_file;
use crate::config::units::parse_duration;
use crate::replay::{MOST_SERVERS, ReplayError, ScaleSettings, compare_sizes, of_trace, speed_up};
use report::Report;
use usher_lab::cli::engine::EngineArgs;
use usher_lab::cli::range::scrape_interval;
use usher_lab::cli::replay::{MOST_REQUESTS, NO_RATE, above_zero, rows};
use usher_lab::sim::EngineConfig;
use usher_terminal::{CliError, Output, Progress};

/// Between two updates of the progress.
const PAUSE: Duration = Duration::from_millis(100);

/// Longest start of a pod: beyond it, a trace is over before one is there.
const LONGEST_START: Duration = Duration::from_secs(24 * 3600);

/// Most pods of a policy that is compared.
const MOST_PODS: u32 = MOST_SERVERS as u32;

/// Compare a policy with an HPA and with pods that stay, under a trace, in virtual time.
///
/// Simulated servers come and go as the policy says; as an HPA with the same metrics, targets
/// and bounds says; and stay: as many as the policy had on average, and as many as it had at
/// most. Nothing listens and nobody waits, and the same seed gives the same result.
#[derive(Debug, Clone, Args)]
pub(super) struct CompareArgs {
    /// The policy: with one role and `total`.
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,
    /// Name of the policy, if the file has several.
    #[arg(long)]
    name: Option<String>,
    /// Configuration that decides where requests go (EndpointPickerConfig). Default: the built-in one.
    #[arg(long = "config-file", alias = "config", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Time between two scrapes of a server, where the configuration says nothing else.
    #[arg(long = "refresh-metrics-interval", alias = "scrape-interval", value_name = "TIME", default_value = "50ms", value_parser = scrape_interval)]
    scrape_interval: Duration,
    /// Age from which a server's metrics no longer count.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    metrics_staleness_threshold: Duration,
    /// Seed of all random values: texts, decisions, servers.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Format of the result.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,

    /// Requests of a trace: lines of JSON as Mooncake's, or Azure's CSV.
    #[arg(long, value_name = "FILE", help_heading = "Requests")]
    trace: PathBuf,
    /// Requests at most. Default: all of them.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST_REQUESTS), help_heading = "Requests")]
    requests: Option<u64>,
    /// Speed of the trace, as a multiple of the recorded one.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = above_zero, help_heading = "Requests")]
    speed: f64,
    /// Refused: what --speed was called.
    #[arg(long, hide = true)]
    rate: Option<String>,
    /// TTFT limit of a good response.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration, help_heading = "Requests")]
    ttft_limit: Duration,

    /// Startup time of a pod, from creation until it serves.
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = start, help_heading = "Servers")]
    start: Duration,
    /// Pods that there are at first. Default: the policy's minimum, at least 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_PODS)), help_heading = "Servers")]
    initial: Option<u32>,
    /// Speed of the servers.
    #[command(flatten, next_help_heading = "Servers")]
    engine: EngineArgs,
}

fn start(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text)?;
    if time > LONGEST_START { Err("give a day at most".to_owned()) } else { Ok(time) }
}

pub(super) fn run(args: &CompareArgs) -> Result<(), CliError> {
    let settings = settings(args)?;
    // Only a terminal gets it: elsewhere nobody would read it.
    let mut progress = io::stderr().is_terminal().then(Progress::default);
    let mut shown = Instant::now();
    let compared = compare_sizes(&settings, |share| {
        if let Some(progress) = &mut progress
            && shown.elapsed() >= PAUSE
        {
            shown = Instant::now();
            progress.part((share * 100.0) as u64, 100, "%");
        }
    });
    drop(progress);
    let comparison = compared.map_err(|error| match error {
        ReplayError::Metrics(_) => CliError::Failed(error.to_string()),
        ReplayError::Sizing(text) => CliError::Usage(format!("{}: {text}", args.policy.display())),
        error => CliError::Usage(error.to_string()),
    })?;
    let report =
        Report { source: &args.trace.display().to_string(), speed: args.speed, seed: args.seed, comparison };
    args.output.print(&report).map_err(|error| CliError::Failed(format!("cannot print the result: {error}")))
}

fn settings(args: &CompareArgs) -> Result<ScaleSettings, CliError> {
    if args.rate.is_some() {
        return Err(CliError::Usage(NO_RATE.to_owned()));
    }
    let policy = read_one(&args.policy, args.name.as_deref())?;
    let (min, max) = policy.roles.first().map_or((0, 0), |role| (role.range.min, role.range.max));
    if max > MOST_PODS {
        let text = format!("{}: a policy with up to {MOST_PODS} pods can be compared", args.policy.display());
        return Err(CliError::Usage(text));
    }
    let config = match &args.config {
        None => ("the built-in configuration".to_owned(), None),
        Some(path) => {
            let name = path.display().to_string();
            let config = read_file(path).and_then(|text| EndpointPickerConfig::parse_unless_empty(&text));
            let config = config.map_err(|error| CliError::Usage(error.in_file(&name)))?;
            (name, config.map(Box::new))
        }
    };
    let limit = args.requests.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
    let rows = rows(&args.trace, limit).map_err(CliError::Usage)?;
    let mut arrivals = of_trace(&rows, args.seed);
    speed_up(&mut arrivals, args.speed);
    let engine = EngineConfig { seed: args.seed, ..args.engine.config() };
    engine.validate().map_err(|error| CliError::Usage(error.to_string()))?;
    Ok(ScaleSettings {
        policy,
        arrivals,
        config,
        engine,
        start: args.start,
        initial: args.initial.unwrap_or(min.max(1)),
        ttft_limit: args.ttft_limit,
        scrape_interval: args.scrape_interval,
        metrics_staleness: args.metrics_staleness_threshold,
        seed: args.seed,
    })
}
