//! A configuration that was checked.

use super::findings::Finding;
use super::sample::Sample;
use super::words::Step;
use crate::registry::Resolved;

/// A valid configuration.
pub(super) struct Config {
    pub(super) resolved: Resolved,
    pub(super) is_built_in: bool,
    pub(super) warnings: Vec<String>,
    pub(super) notes: Vec<String>,
    pub(super) findings: Vec<Finding>,
    /// Steps, in sentences.
    pub(super) steps: Vec<Step>,
    /// Decisions about prompts; `None` without endpoints.
    pub(super) samples: Option<Vec<Sample>>,
}
