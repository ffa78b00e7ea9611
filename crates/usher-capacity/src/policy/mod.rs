//! Policies: specification ([`spec`]), validation ([`validate`]) and resolved form.

pub mod file;
mod limits;
mod problem;
mod resolve;
mod role;
pub mod rollout;
pub mod span;
pub mod spec;
pub mod validate;

use std::collections::BTreeSet;
use std::time::Duration;

use super::amount::Amount;
use super::behavior::Behavior;
use super::coordinate::Band;
use super::ratio::RatioBounds;
use super::rollout::Rollout;
use super::rules::{Rule, RuleMetric};

pub use limits::{LONGEST_LAYER, MOST_LAYERS, MOST_PODS, MOST_ROLES, MOST_RULES};
pub use role::{Range, Role, label_selector};
pub use spec::{Mode, TargetRef};

/// Resolved policy: names are indices, defaults are filled in, and values are within their ranges.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Name of the policy.
    pub name: String,
    /// Whether plans are only published, or also applied.
    pub mode: Mode,
    /// `true` if paused: nothing is written.
    pub is_paused: bool,
    /// Interval of ticks.
    pub interval: Duration,
    /// Roles, by name.
    pub roles: Vec<Role>,
    /// Source of the role sizes.
    pub sizing: Sizing,
    /// Limits on changes of the group's size.
    pub behavior: Behavior,
    /// Coordination of the roles.
    pub coordination: Coordination,
    /// Hard ratio of two roles.
    pub ratio: Option<Ratio>,
    /// Order in which pods start, stop and are updated; `None`: all at once, and updates are not managed.
    pub rollout: Option<Rollout>,
    /// Metrics of pods, by name, in the order of [`Pod::values`](super::Pod).
    pub signals: Vec<String>,
    /// Number of invalid values that were replaced. 0 in a validated policy.
    pub sanitised: u32,
}

impl Policy {
    /// Returns `true` if it controls rolling updates of its targets.
    pub fn holds_updates(&self) -> bool {
        self.mode == Mode::Apply && self.rollout.as_ref().is_some_and(|rollout| rollout.update.is_some())
    }

    /// Distinct Prometheus queries, whose results [`Inputs::external`](super::Inputs) has.
    pub fn queries(&self) -> BTreeSet<&str> {
        match &self.sizing {
            Sizing::Kept => BTreeSet::new(),
            Sizing::Total(total) => total
                .metrics
                .iter()
                .filter(|metric| metric.signal.is_none())
                .map(|metric| metric.name.as_str())
                .collect(),
            Sizing::Rules(rules) => rules
                .iter()
                .filter_map(|rule| match &rule.number {
                    RuleMetric::External(query) => Some(query.as_str()),
                    RuleMetric::OfPods { .. } | RuleMetric::Waiting => None,
                })
                .collect(),
        }
    }
}

/// Source of the role sizes.
#[derive(Clone, Debug, PartialEq)]
pub enum Sizing {
    /// None: roles keep their sizes within bounds.
    Kept,
    /// Metrics of the whole group.
    Total(Total),
    /// Rules of single roles, in the order of evaluation.
    Rules(Vec<Rule>),
}

/// Source of the size of the whole group.
#[derive(Clone, Debug, PartialEq)]
pub struct Total {
    /// Metrics with their targets.
    pub metrics: Vec<Target>,
    /// Tolerance in percent of the target.
    pub tolerance: u32,
    /// Growth of cost blocks, in percent of the previous one.
    pub cost_expansion: u32,
}

/// A metric and its target.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Name of the metric, or the query.
    pub name: String,
    /// Index among the signals; `None` for a query.
    pub signal: Option<usize>,
    /// Target value per pod; above 0.
    pub target: Amount,
}

/// Coordination: how roles share a group's size.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Coordination {
    /// `true` if pressure counts.
    pub is_on: bool,
    /// Part of the shares by pressure, in billionths.
    pub alpha: u32,
    /// Preferred share of each role.
    pub bands: Vec<Option<Band>>,
    /// Pressure metrics of each role.
    pub pressure: Vec<Vec<Target>>,
}

/// Hard ratio of two roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio {
    /// Index of the numerator's role.
    pub numerator: usize,
    /// Index of the denominator's role.
    pub denominator: usize,
    /// Bounds of the ratio.
    pub bounds: RatioBounds,
}

/// Metric that includes waiting requests.
pub const QUEUE_DEPTH: &str = "queue_depth";
/// Metric of waiting requests, for rules.
pub const WAITING: &str = "waiting";
/// Label with a pod's role, for roles without a selector.
pub const ROLE_LABEL: &str = "llm-d.ai/role";
