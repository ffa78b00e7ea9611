//! Report of the scenario: a line whenever something changes, and both ways side by side.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use serde::Serialize;

use super::cluster::{Cluster, MORE_NODES};
use crate::cli::demo::report::verdict;
use usher_capacity::{Plan, Policy};
use usher_terminal::{Column, line, paragraph, table};

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

    fn cells(&self) -> Vec<String> {
        let ready = self.ready.iter().zip(&self.admitted);
        let start = [format!("{:.1}", self.seconds as f64 / 60.0), self.state.clone()];
        let end = [self.waiting.to_string(), self.groups.to_string(), self.conditions.join(", ")];
        start
            .into_iter()
            .chain(ready.map(|(ready, admitted)| format!("{ready} of {admitted}")))
            .chain(end)
            .collect()
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

/// Meaning of columns and conditions.
const LEGEND: [(&str, &str); 4] = [
    ("roles", "pods that are ready, of those that may exist so far"),
    ("no node", "pods that wait for a node"),
    ("BatchTimeout", "no further pod of the step came up in its time"),
    ("Unschedulable", "no node fits a pod of the step"),
];

/// Report of the demo.
#[derive(Debug, Serialize)]
pub(in crate::cli::demo) struct RolloutReport {
    roles: Vec<String>,
    ways: Vec<Way>,
}

impl RolloutReport {
    pub(super) fn new(policy: &Policy, ways: Vec<Way>) -> Self {
        Self { roles: policy.roles.iter().map(|role| role.name.clone()).collect(), ways }
    }

    /// Verdict on both ways.
    fn verdict(&self) -> String {
        let [steps, all] = &self.ways[..] else { return "One way alone was taken.".to_owned() };
        let groups = |way: &Way| way.before(MORE_NODES);
        let short = if groups(steps) > groups(all) {
            format!(
                "Short of nodes, {} groups serve in steps and {} all at once, where pods without their partners hold \
                 nodes.",
                groups(steps),
                groups(all)
            )
        } else {
            format!(
                "Short of nodes, steps gained nothing here: {} groups serve in steps and {} all at once.",
                groups(steps),
                groups(all)
            )
        };
        let (ours, theirs) = (steps.group_minutes, all.group_minutes);
        let price = if theirs > ours {
            format!(
                "Their price is time: a step waits for the one before, and so steps have {ours:.0} group-minutes and \
                 all at once {theirs:.0}."
            )
        } else {
            format!("Steps have more group-minutes, too: {ours:.0} instead of {theirs:.0}.")
        };
        format!("{short} {price}")
    }

    #[cfg(test)]
    pub(super) fn ways(&self) -> &[Way] {
        &self.ways
    }
}

impl Display for RolloutReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        paragraph(
            f,
            format_args!(
                "32 decode and 16 prefill pods, four and two of which serve together, in a cluster with nodes for \
                 half of them; after {} minutes there are nodes for all. Pods and time are virtual.",
                MORE_NODES.as_secs() / 60
            ),
        )?;
        writeln!(f)?;
        let Some(steps) = self.ways.first() else { return Ok(()) };
        let mut rows = Vec::new();
        let mut last: Option<&Moment> = None;
        for moment in &steps.ticks {
            if last.is_some_and(|last| !moment.differs(last)) {
                continue;
            }
            last = Some(moment);
            rows.push(moment.cells());
        }
        let columns: Vec<Column<'_>> = [Column::number("min"), Column::text("state")]
            .into_iter()
            .chain(self.roles.iter().map(|role| Column::number(role)))
            .chain([Column::number("no node"), Column::number("groups"), Column::text("")])
            .collect();
        writeln!(f, "{}", table(&columns, &rows, f.width()))?;
        for (title, text) in LEGEND {
            line(f, title, format_args!("{text}"))?;
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
        writeln!(f)?;
        paragraph(
            f,
            format_args!(
                "Groups: whole ones that can serve. Group-minutes add them up over the minutes, until the end."
            ),
        )?;
        verdict(f, &self.verdict())
    }
}
