//! Errors in a policy.

use std::time::Duration;

use super::limits::LONGEST;
use super::span::GoDuration;
use super::spec::Spec;
use crate::amount::Amount;

/// Error or warning about a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Path of the value: keys joined by dots, list items by their index.
    pub path: String,
    /// The problem, as a sentence.
    pub message: String,
    /// `true` if the policy is rejected.
    pub is_error: bool,
}

/// Problems found so far.
#[derive(Default)]
pub(super) struct ProblemList(pub(super) Vec<Problem>);

impl ProblemList {
    pub(super) fn error(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.0.push(Problem { path: path.into(), message: message.into(), is_error: true });
    }

    pub(super) fn warning(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.0.push(Problem { path: path.into(), message: message.into(), is_error: false });
    }

    pub(super) fn has_errors(&self) -> bool {
        self.0.iter().any(|problem| problem.is_error)
    }

    pub(super) fn whole(&mut self, path: String, value: Option<i64>, low: i64, high: i64) {
        if value.is_some_and(|value| !(low..=high).contains(&value)) {
            self.error(path, format!("is out of range; write {low} to {high}"));
        }
    }

    pub(super) fn few(&mut self, path: &str, count: usize, most: usize) {
        if count > most {
            self.error(path, format!("has {count} entries; write at most {most}"));
        }
    }

    pub(super) fn time(&mut self, path: String, value: Option<GoDuration>) {
        if GoDuration::or(value, Duration::ZERO) > LONGEST {
            self.error(path, "is longer than 30m");
        }
    }

    pub(super) fn positive(&mut self, path: String, value: Option<f64>) {
        match value {
            None => self.error(path, "is missing; write a number above 0"),
            Some(value) if !(value.is_finite() && value > 0.0) => self.error(path, "has to be above 0"),
            Some(value) if Amount::of(value).is_none_or(|amount| amount == Amount::ZERO) => {
                self.error(path, "has to be a billionth or more");
            }
            Some(_) => {}
        }
    }

    pub(super) fn role(&mut self, path: String, name: &str, spec: &Spec) {
        if !spec.roles.contains_key(name) {
            let known = spec.roles.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            self.error(path, format!("'{name}' is not a role of this policy; its roles are {known}"));
        }
    }
}
