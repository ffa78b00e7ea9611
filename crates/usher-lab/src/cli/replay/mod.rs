//! `usher replay`: what would change if the configuration did?

mod args;
mod recorded;
mod report;
mod single;
mod suite;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use crate::replay::{Build, ReplayError, run_beside as replay};
pub use args::{Baseline, Plan, ReplayArgs, WorkloadName};
pub use args::{MOST_REQUESTS, NO_RATE, above_zero, rows};
use report::Report;
use usher_terminal::grouped;
use usher_terminal::{CliError, Progress};

/// Between two updates of the progress.
const PAUSE: Duration = Duration::from_millis(100);

/// Runs a replay and prints the comparison.
///
/// # Errors
/// [`CliError::Usage`] for arguments that don't fit together and files that can't be used;
/// [`CliError::Failed`] if the result can't be printed.
pub fn run(args: &ReplayArgs, build: &Build<'_>) -> Result<(), CliError> {
    if args.suite.suite {
        let outcome = args.suite().map_err(CliError::Usage)?.run(build)?;
        return args
            .output
            .print(&outcome)
            .map_err(|error| CliError::Failed(format!("cannot print the result: {error}")));
    }
    let plan = args.plan().map_err(CliError::Usage)?;
    let all = plan.settings.arrivals.len() * plan.settings.policies.len();
    // Only a terminal gets it: elsewhere nobody would read it.
    let mut progress = io::stderr().is_terminal().then(Progress::default);
    let mut shown = Instant::now();
    let measured = plan.recorded.as_ref().map(|recorded| &recorded.outcomes);
    let comparison = replay(&plan.settings, measured, build, |done| {
        if let Some(progress) = &mut progress
            && shown.elapsed() >= PAUSE
        {
            shown = Instant::now();
            progress.update(&line(done, all));
        }
    });
    drop(progress);
    let comparison = comparison.map_err(|error| match error {
        ReplayError::Metrics(_) => CliError::Failed(error.to_string()),
        error => CliError::Usage(error.to_string()),
    })?;
    let Plan { source, speed, settings, recorded } = &plan;
    let report = Report {
        source,
        speed: *speed,
        seed: settings.seed,
        recording: recorded.as_ref(),
        comparison: &comparison,
    };
    args.output.print(&report).map_err(|error| CliError::Failed(format!("cannot print the result: {error}")))
}

fn line(done: usize, all: usize) -> String {
    let percent = done * 100 / all.max(1);
    format!("{percent} %: {} of {} requests", grouped(done as u64), grouped(all as u64))
}
