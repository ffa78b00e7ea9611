//! Profile handlers, deciders and what belongs to them.

use std::sync::Arc;

use super::super::site::{Build, Built, Site};
use super::super::types::Kind::{Decider, PreRequest, ProfileHandler};
use super::super::types::{PluginType, beta, later};
use crate::config::ConfigError;
use crate::schedule::SingleProfileHandler;

#[rustfmt::skip]
pub(super) static ROWS: &[PluginType] = &[
    beta("single-profile-handler", &[ProfileHandler],
        "Runs the one profile that is configured.",
        &[], Build::Ignoring(single_profile_handler)),
    later("disagg-profile-handler", &[ProfileHandler, PreRequest]),
    later("pd-profile-handler", &[ProfileHandler]).instead("disagg-profile-handler"),
    later("data-parallel-profile-handler", &[ProfileHandler, PreRequest]),
    later("header-profile-handler", &[ProfileHandler]).alpha(),
    later("disagg-headers-handler", &[PreRequest]).instead("disagg-profile-handler"),
    later("prefill-header-handler", &[PreRequest]).instead("disagg-profile-handler"),
    later("prefix-based-pd-decider", &[Decider]),
    later("always-disagg-pd-decider", &[Decider]),
    later("always-disagg-multimodal-decider", &[Decider]),
];

fn single_profile_handler(_site: &mut Site<'_>) -> Result<Built, ConfigError> {
    Ok(Built { handler: Some(Arc::new(SingleProfileHandler)), ..Built::bare() })
}
