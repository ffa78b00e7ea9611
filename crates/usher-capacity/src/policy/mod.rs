//! A policy: as it is written ([`spec`]), whether that makes sense ([`validate`]), and what it means.

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
use super::rules::{Number, Rule};

pub use limits::{MOST_LAYERS, MOST_PODS, MOST_ROLES, MOST_RULES};
pub use role::{Range, Role, label_selector};
pub use spec::{Mode, TargetRef};

/// Meaning of a policy: names are places, defaults are filled in, and every number is in its range.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Its name.
    pub name: String,
    /// Mode of its plans: only shown, or also carried out.
    pub mode: Mode,
    /// `true` if nothing is to be written.
    pub is_paused: bool,
    /// Time between two ticks.
    pub interval: Duration,
    /// Its roles, by name.
    pub roles: Vec<Role>,
    /// Source of the role sizes.
    pub sizing: Sizing,
    /// Limits on the change of the group's size.
    pub behavior: Behavior,
    /// Division of the group's size among its roles.
    pub coordination: Coordination,
    /// A ratio that always holds.
    pub ratio: Option<Ratio>,
    /// Order in which pods come up, go and are updated; `None`: all at once, and updates are nobody's
    /// concern here.
    pub rollout: Option<Rollout>,
    /// The numbers of pods that are looked at, by name, in the order of [`Pod::values`](super::Pod).
    pub signals: Vec<String>,
    /// Number of values that could not stand and were replaced. None in a policy that was validated.
    pub sanitised: u32,
}

impl Policy {
    /// Returns `true` if it decides how far updates of its targets go.
    pub fn holds_updates(&self) -> bool {
        self.mode == Mode::Apply && self.rollout.as_ref().is_some_and(|rollout| rollout.update.is_some())
    }

    /// The queries whose results [`Inputs::external`](super::Inputs) is to have, each once.
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
                    Number::External(query) => Some(query.as_str()),
                    Number::OfPods { .. } | Number::Waiting => None,
                })
                .collect(),
        }
    }
}

/// Source of the role sizes.
#[derive(Clone, Debug, PartialEq)]
pub enum Sizing {
    /// The conditions are kept.
    Kept,
    /// For the whole group.
    Total(Total),
    /// Role by role, in steps; in the order in which they are looked at.
    Rules(Vec<Rule>),
}

/// Source of the size of the whole group.
#[derive(Clone, Debug, PartialEq)]
pub struct Total {
    /// Numbers with their targets.
    pub metrics: Vec<Target>,
    /// Distance from the target at which nothing changes, in percent.
    pub tolerance: u32,
    /// By how much each cost block is larger than the one before, in percent.
    pub cost_expansion: u32,
}

/// A number and its target.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Its name; the query itself where it is one.
    pub name: String,
    /// Its place among the signals; none for a query, which no pod answers.
    pub signal: Option<usize>,
    /// Value that it should have per pod; above 0.
    pub target: Amount,
}

/// Division of a group's size among its roles.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Coordination {
    /// `true` if pressure counts.
    pub is_on: bool,
    /// Part of the shares that pressure decides, in billionths.
    pub alpha: u32,
    /// The preferred share of each role.
    pub bands: Vec<Option<Band>>,
    /// The numbers that say how pressed each role is.
    pub pressure: Vec<Vec<Target>>,
}

/// A ratio between two roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio {
    /// The role above the line, by its place.
    pub numerator: usize,
    /// The role below it.
    pub denominator: usize,
    /// Bounds of the ratio.
    pub bounds: RatioBounds,
}

/// The number that waiting requests are added to.
pub const QUEUE_DEPTH: &str = "queue_depth";
/// The number of requests that wait, for rules.
pub const WAITING: &str = "waiting";
/// The label that says which role a pod has, when a role has no selector.
pub const ROLE_LABEL: &str = "llm-d.ai/role";
