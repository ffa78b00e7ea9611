//! Findings and outcomes of checks.

use std::fmt;

use serde::Serialize;

pub use super::rules::Severity;

use super::rules::Rule;

/// Result of a rule that found a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Kind of the finding.
    pub rule: &'static Rule,
    /// Description of what was seen, and where.
    pub what: String,
    /// Remedy here, where that is more than the rule says.
    pub fix: Option<String>,
    /// Server that it is about, where many may have the same.
    pub server: Option<Server>,
}

/// Server that a finding is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Name of the server.
    pub name: String,
    /// Problem, in words that are the same for all that have it.
    pub problem: String,
}

impl Finding {
    /// A finding of a kind, with a description of what was seen.
    pub fn new(rule: &'static Rule, what: impl Into<String>) -> Self {
        Self { rule, what: what.into(), fix: None, server: None }
    }

    /// With what to do here.
    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }

    /// About a server, with its problem in words that are the same for all that have it.
    #[must_use]
    pub fn on(mut self, name: impl Into<String>, problem: impl Into<String>) -> Self {
        self.server = Some(Server { name: name.into(), problem: problem.into() });
        self
    }

    /// Remedy: its own, or else that of its rule.
    pub fn remedy(&self) -> &str {
        self.fix.as_deref().unwrap_or(self.rule.fix)
    }
}

/// Outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Checked. Without findings nothing is wrong.
    Looked {
        /// Summary of what it looked at, in a few words.
        at: String,
        /// Findings of the check.
        findings: Vec<Finding>,
    },
    /// Not checked.
    Skipped {
        /// Reason, and how to let it be checked.
        reason: String,
    },
}

impl Outcome {
    /// Outcome of a check that was skipped.
    pub fn skipped(reason: impl Into<String>) -> Self {
        Self::Skipped { reason: reason.into() }
    }

    /// Outcome of a check: a summary of what it looked at, and its findings.
    pub fn looked(at: impl Into<String>, findings: Vec<Finding>) -> Self {
        Self::Looked { at: at.into(), findings }
    }

    /// Findings; empty when it could not look.
    pub fn findings(&self) -> &[Finding] {
        match self {
            Self::Looked { findings, .. } => findings,
            Self::Skipped { .. } => &[],
        }
    }

    /// In one word.
    pub fn status(&self) -> Status {
        match self {
            Self::Skipped { .. } => Status::Skipped,
            Self::Looked { findings, .. } => {
                match findings.iter().map(|finding| finding.rule.severity).max() {
                    None => Status::Ok,
                    Some(Severity::Warning) => Status::Warning,
                    Some(Severity::Wrong) => Status::Wrong,
                }
            }
        }
    }
}

/// Outcome of a check, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Nothing was found.
    Ok,
    /// May become a problem.
    Warning,
    /// Problem.
    Wrong,
    /// Not checked.
    Skipped,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Wrong => "wrong",
            Self::Skipped => "skipped",
        })
    }
}

/// All checks, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Name of each check and how it ended.
    pub checks: Vec<(&'static str, Outcome)>,
}

impl Report {
    /// All findings, with the name of their check.
    pub fn findings(&self) -> impl Iterator<Item = (&'static str, &Finding)> {
        self.checks
            .iter()
            .flat_map(|(name, outcome)| outcome.findings().iter().map(move |finding| (*name, finding)))
    }

    /// Checks that ended as ok, as warning, as wrong and as skipped.
    pub fn counts(&self) -> [usize; 4] {
        [Status::Ok, Status::Warning, Status::Wrong, Status::Skipped]
            .map(|status| self.checks.iter().filter(|(_, outcome)| outcome.status() == status).count())
    }

    /// Returns `true` if something is wrong. Warnings and what could not be looked at are not.
    pub fn is_wrong(&self) -> bool {
        self.checks.iter().any(|(_, outcome)| outcome.status() == Status::Wrong)
    }
}

/// `1 pod`, `2 pods`.
pub(super) fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}
