//! `usher load`: the load generator.

mod args;
mod report;

use std::future::pending;
use std::io::{self, IsTerminal};

use crate::load::{LoadError, RunProgress, run as generate};
pub use args::LoadArgs;
pub(super) use args::header;
use report::Report;
use usher_terminal::{CliError, Progress, grouped};

/// Runs a load and prints what it found.
///
/// # Errors
/// [`CliError::Usage`] for arguments that don't fit together; [`CliError::Failed`] if no load could be
/// generated, or, after the report, if requests failed. Requests that Ctrl-C ended did not fail.
pub fn run(args: LoadArgs) -> Result<(), CliError> {
    let (target, output) = (args.target.clone(), args.output);
    let settings = args.settings().map_err(CliError::Usage)?;
    let failed = |error: &dyn std::fmt::Display| CliError::Failed(error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(&error))?;
    // Only a terminal gets it: elsewhere nobody would read it.
    let mut progress = io::stderr().is_terminal().then(Progress::default);
    let show = |so_far: RunProgress| {
        if let Some(progress) = &mut progress {
            progress.update(&line(so_far));
        }
    };
    let outcome = runtime.block_on(generate(settings, show, interrupted()));
    drop(progress);
    // A request that is being made keeps nobody waiting.
    runtime.shutdown_background();
    let outcome = outcome.map_err(|error| match error {
        LoadError::Trace { .. } => CliError::Usage(error.to_string()),
        error => failed(&error),
    })?;
    let report = Report::new(&target, &outcome);
    output.print(&report).map_err(|error| failed(&format!("cannot print the result: {error}")))?;
    let numbers = &outcome.numbers;
    match numbers.failed.saturating_sub(numbers.interrupted()) {
        0 if numbers.due > 0 && numbers.interrupted() == numbers.due => {
            Err(failed(&format!("none of {} requests was answered", grouped(numbers.due))))
        }
        0 => Ok(()),
        count => Err(failed(&format!("{} of {} requests failed", grouped(count), grouped(numbers.due)))),
    }
}

/// Ctrl-C. Without a handler for it, the run can't be ended early.
async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        pending().await
    }
}

fn line(so_far: RunProgress) -> String {
    let RunProgress { elapsed, begun, ended, failed } = so_far;
    let seconds = elapsed.as_secs_f64();
    let rate = ended as f64 / seconds;
    let open = begun.saturating_sub(ended);
    format!("{seconds:.0} s: {ended} requests, {rate:.0} per second, {open} open, {failed} failed")
}
