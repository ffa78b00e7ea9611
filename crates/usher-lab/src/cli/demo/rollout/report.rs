//! Report of the scenario: a line whenever something changes, and both ways side by side.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use serde::Serialize;

use super::cluster::{Cluster, MORE_NODES};
use usher_capacity::{Plan, Policy};
use usher_terminal::line;

/// A tick.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Moment {
    seconds: u64,
    state: String,
    /// Pods that may exist, by role.
    admitted: Vec<u32>,
    /// Pods that are ready.
    ready: Vec<u32>,
    /// Pods that wait for a node.
    waiting: u32,
    /// Whole groups that can serve.
    groups: u32,
    conditions: Vec<String>,
}

impl Moment {
    pub(super) fn new(now: Duration, plan: &Plan, cluster: &Cluster, groups: u32) -> Self {
        Self {
            seconds: now.as_secs(),
            state: plan.state.to_string(),
            admitted: plan.roles.iter().map(|role| role.admitted).collect(),
            ready: (0..plan.roles.len()).map(|role| cluster.ready(role)).collect(),
            waiting: cluster.waiting(),
            groups,
            conditions: plan.conditions.iter().map(|condition| format!("{condition:?}")).collect(),
        }
    }

    /// Returns `true` if something is worth a line of its own.
    fn differs(&self, last: &Self) -> bool {
        let what = |moment: &Self| (moment.state.clone(), moment.admitted.clone(), moment.groups);
        what(self) != what(last)
    }
}

/// One way to bring the group up.
#[derive(Debug, Serialize)]
pub(super) struct Way {
    name: String,
    /// Whole groups that could serve, times minutes.
    group_minutes: f64,
    ticks: Vec<Moment>,
}

impl Way {
    pub(super) fn new(name: &str, ticks: Vec<Moment>, tick: Duration) -> Self {
        let groups: u32 = ticks.iter().map(|moment| moment.groups).sum();
        let group_minutes = f64::from(groups) * tick.as_secs_f64() / 60.0;
        Self { name: name.to_owned(), group_minutes, ticks }
    }

    /// Whole groups just before a time.
    pub(super) fn before(&self, time: Duration) -> u32 {
        let before = self.ticks.iter().rev().find(|moment| moment.seconds < time.as_secs());
        before.map_or(0, |moment| moment.groups)
    }

    /// Whole groups in the end.
    pub(super) fn last(&self) -> u32 {
        self.ticks.last().map_or(0, |moment| moment.groups)
    }

    /// The states, tick by tick.
    #[cfg(test)]
    pub(super) fn states(&self) -> Vec<String> {
        self.ticks.iter().map(|moment| moment.state.clone()).collect()
    }
}

/// Everything that is told.
#[derive(Debug, Serialize)]
pub(in crate::cli::demo) struct RolloutReport {
    roles: Vec<String>,
    ways: Vec<Way>,
}

impl RolloutReport {
    pub(super) fn new(policy: &Policy, ways: Vec<Way>) -> Self {
        Self { roles: policy.roles.iter().map(|role| role.name.clone()).collect(), ways }
    }

    #[cfg(test)]
    pub(super) fn ways(&self) -> &[Way] {
        &self.ways
    }
}

impl Display for RolloutReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "32 decode and 16 prefill pods, four and two of which serve together, in a cluster with nodes"
        )?;
        writeln!(
            f,
            "for half of them; after {} minutes there are nodes for all. Pods and time are virtual.\n",
            MORE_NODES.as_secs() / 60
        )?;
        let Some(steps) = self.ways.first() else { return Ok(()) };
        write!(f, "{:>7}  {:<8}", "minutes", "state")?;
        for role in &self.roles {
            write!(f, "{:>14}", format!("{role} ready"))?;
        }
        writeln!(f, "{:>9}{:>8}", "no node", "groups")?;
        let mut last: Option<&Moment> = None;
        for moment in &steps.ticks {
            if last.is_some_and(|last| !moment.differs(last)) {
                continue;
            }
            last = Some(moment);
            write!(f, "{:>7.1}  {:<8}", moment.seconds as f64 / 60.0, moment.state)?;
            for (ready, admitted) in moment.ready.iter().zip(&moment.admitted) {
                write!(f, "{:>14}", format!("{ready} of {admitted}"))?;
            }
            let row = format!("{:>9}{:>8}  {}", moment.waiting, moment.groups, moment.conditions.join(", "));
            writeln!(f, "{}", row.trim_end())?;
        }
        writeln!(f)?;
        for way in &self.ways {
            line(
                f,
                &way.name,
                format_args!(
                    "{} groups before there are more nodes, {} in the end; {:.0} group-minutes",
                    way.before(MORE_NODES),
                    way.last(),
                    way.group_minutes
                ),
            )?;
        }
        Ok(())
    }
}
