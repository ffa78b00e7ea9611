//! Replay with the real scheduler: [`usher_lab::replay`] over configurations as `usher serve` builds them.

mod idle;
mod offline;

pub use offline::{Offline, build};
pub use usher_lab::replay::*;

/// Runs all policies over the same requests; see [`usher_lab::replay::run`].
///
/// # Errors
/// `ReplayError` if a configuration or a server is not valid, or something is missing.
pub fn run(settings: &Settings, progress: impl FnMut(usize)) -> Result<Comparison, ReplayError> {
    usher_lab::replay::run(settings, &build, progress)
}

/// Compares ways to size a pool; see [`usher_lab::replay::compare_sizes`].
///
/// # Errors
/// `ReplayError` if the policy can't be compared, or a configuration or a server is not valid.
pub fn compare_sizes(
    settings: &ScaleSettings,
    progress: impl FnMut(f64),
) -> Result<ScaleComparison, ReplayError> {
    usher_lab::replay::compare_sizes(settings, &build, progress)
}
