//! `single-profile-handler`: the one profile that is configured.

use smallvec::smallvec;
use usher_plugin::{Context, Outcome, ProfileHandler, ProfileSet, Runs, ScheduleError};

/// Runs the only profile and answers with its picks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SingleProfileHandler;

impl ProfileHandler for SingleProfileHandler {
    fn next(&self, _cx: &Context<'_>, runs: &Runs<'_>) -> ProfileSet {
        match runs.outcome(0) {
            Outcome::Waiting => smallvec![0],
            _ => ProfileSet::new(),
        }
    }

    fn finish(&self, _cx: &Context<'_>, runs: &Runs<'_>) -> Result<usize, ScheduleError> {
        match runs.outcome(0) {
            Outcome::Picked(_) => Ok(0),
            _ => Err(ScheduleError::NoTarget(format!("failed to run scheduler profile '{}'", runs.name(0)))),
        }
    }
}
