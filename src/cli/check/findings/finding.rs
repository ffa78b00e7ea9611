//! A combination of plugins and settings that works badly.

use serde::Serialize;

/// A combination that a configuration has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::cli::check) struct Finding {
    /// Name of the rule.
    pub(in crate::cli::check) rule: &'static str,
    /// Consequence and remedy, with a measured number where there is one.
    pub(in crate::cli::check) message: String,
    /// Page of the documentation, with the heading.
    pub(in crate::cli::check) docs: &'static str,
}

impl Finding {
    /// The message and its page.
    pub(in crate::cli::check) fn text(&self) -> String {
        format!("{} (see {})", self.message, self.docs)
    }
}
