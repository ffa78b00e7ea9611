//! `single-profile-handler`: the one profile that is configured.

use std::sync::Arc;

use smallvec::smallvec;
use usher_core::config::ConfigError;
use usher_plugin::{
    Build, BuildContext, Context, Kind, Outcome, PluginParts, PluginType, ProfileHandler, ProfileSet, Runs,
    ScheduleError, beta,
};

/// `single-profile-handler` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("single-profile-handler", &[Kind::ProfileHandler],
    "Runs the one profile that is configured.",
    Build::Ignoring(build))
    .when("One profile. Added by itself where there is no other handler.");

fn build(_site: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    Ok(PluginParts { handler: Some(Arc::new(SingleProfileHandler)), ..PluginParts::bare() })
}

/// Runs the only profile and returns its picks.
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
