//! Inputs of a tick, and aggregates over pods.

use std::collections::BTreeMap;
use std::ops::Deref;

use smallvec::SmallVec;

use super::amount::Amount;
use super::rollout::Layers;

/// State of a group when a tick begins.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inputs {
    /// Replicas of each role, in the policy's order; 0 if omitted.
    pub replicas: Vec<u32>,
    /// Pods of the policy's roles.
    pub pods: Vec<Pod>,
    /// Pods asked for, by role, that are in `replicas` and not yet in `pods`: they are unready. 0 if omitted.
    pub starting: Vec<u32>,
    /// Requests that wait for a pod.
    pub waiting: u64,
    /// Work of each role's pods, in the policy's order; idle if omitted.
    pub work: Vec<Work>,
    /// Results of Prometheus queries, by query.
    pub external: BTreeMap<String, f64>,
    /// Topology domains by layer, with their free capacity; `None` if unknown.
    pub domains: Option<Layers>,
    /// Pods of each role that need another domain, as theirs is closed: waiting, missing and still running
    /// ones. 0 if omitted.
    pub displaced: Vec<u32>,
    /// `true` if nodes are being added for unschedulable pods.
    pub provisioning: bool,
    /// `true` if plans are not applied, so that step clocks stop.
    pub is_held: bool,
    /// `true` while pods may have requests sent by another process before this one led, so that known waiting
    /// requests are incomplete.
    pub is_settling: bool,
}

/// Work of a role's pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// `true` unless pods are known to be idle.
    pub is_busy: bool,
    /// Number that changes with each request sent to them, at any replica.
    pub sent: u64,
}

/// An observed pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    /// Role, by index.
    pub role: usize,
    /// `true` if it serves.
    pub is_ready: bool,
    /// Startup progress.
    pub state: PodState,
    /// Values of the policy's signals; NaN or omitted if unknown.
    pub values: Values,
}

/// Values of a pod. Up to two, as most policies have, need no allocation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Values(SmallVec<[f64; 2]>);

impl Deref for Values {
    type Target = [f64];

    fn deref(&self) -> &[f64] {
        &self.0
    }
}

impl From<&[f64]> for Values {
    fn from(values: &[f64]) -> Self {
        Self(values.into())
    }
}

impl<const N: usize> From<[f64; N]> for Values {
    fn from(values: [f64; N]) -> Self {
        values.as_slice().into()
    }
}

impl FromIterator<f64> for Values {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

/// Startup progress of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodState {
    /// `true` if it waits at Usher's scheduling gate.
    pub is_gated: bool,
    /// `true` if it has a node.
    pub is_scheduled: bool,
    /// `true` if its containers run.
    pub is_running: bool,
    /// `true` if it is in the pool and its metrics are fresh.
    pub is_serving: bool,
    /// `true` if the scheduler found no node for it.
    pub is_unschedulable: bool,
    /// `true` if it is of an older revision.
    pub is_outdated: bool,
    /// `true` if it drains before deletion.
    pub is_leaving: bool,
}

impl Pod {
    /// Value of a signal, if known.
    pub(super) fn value(&self, signal: usize) -> Option<Amount> {
        self.values.get(signal).copied().and_then(Amount::of)
    }
}

/// Aggregate of one signal over the pods of a role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    /// Sum over the ready pods with a value.
    pub(super) sum: Amount,
    /// Number of pods with a value.
    pub(super) count: u32,
}

/// Aggregates of all roles.
#[derive(Clone, Debug, Default)]
pub(super) struct Readings {
    signals: usize,
    /// By role, then signal.
    cells: Vec<Reading>,
    ready: Vec<u32>,
    unready: Vec<u32>,
    /// Draining pods, ready or not, by role.
    leaving: Vec<u32>,
    /// Ready ones of them, which are excluded from aggregates, by role.
    left_out: Vec<u32>,
}

impl Readings {
    /// Aggregates in one pass over the pods.
    pub(super) fn of(inputs: &Inputs, roles: usize, signals: usize) -> Self {
        let mut readings = Self {
            signals,
            cells: vec![Reading::default(); roles * signals],
            ready: vec![0; roles],
            unready: (0..roles).map(|role| inputs.starting.get(role).copied().unwrap_or_default()).collect(),
            leaving: vec![0; roles],
            left_out: vec![0; roles],
        };
        let mut leaving = Vec::new();
        for pod in inputs.pods.iter().filter(|pod| pod.role < roles) {
            if pod.state.is_leaving {
                readings.leaving[pod.role] += 1;
                leaving.push(pod);
                continue;
            }
            readings.add(pod);
        }
        let stays: Vec<bool> = readings.ready.iter().map(|ready| *ready > 0).collect();
        for pod in leaving.into_iter().filter(|pod| pod.is_ready) {
            // A draining pod's load doesn't represent others, unless all drain.
            if stays[pod.role] {
                readings.ready[pod.role] += 1;
                readings.left_out[pod.role] += 1;
            } else {
                readings.add(pod);
            }
        }
        readings
    }

    fn add(&mut self, pod: &Pod) {
        if !pod.is_ready {
            self.unready[pod.role] += 1;
            return;
        }
        self.ready[pod.role] += 1;
        let row = &mut self.cells[pod.role * self.signals..][..self.signals];
        for (cell, value) in row.iter_mut().zip(pod.values.iter()) {
            if let Some(value) = Amount::of(*value) {
                cell.sum = cell.sum + value;
                cell.count += 1;
            }
        }
    }

    /// Aggregate over the ready pods of a role.
    pub(super) fn of_role(&self, role: usize, signal: usize) -> Reading {
        self.cells.get(role * self.signals + signal).copied().unwrap_or_default()
    }

    /// Aggregate over the ready pods of the group.
    pub(super) fn of_group(&self, signal: usize) -> Reading {
        (0..self.ready.len()).map(|role| self.of_role(role, signal)).fold(
            Reading::default(),
            |group, role| Reading { sum: group.sum + role.sum, count: group.count + role.count },
        )
    }

    /// Ready pods of a role.
    pub(super) fn ready(&self, role: usize) -> u32 {
        self.ready.get(role).copied().unwrap_or_default()
    }

    /// Ready pods of a role that can have values.
    pub(super) fn ready_with_numbers(&self, role: usize) -> u32 {
        self.ready(role) - self.left_out.get(role).copied().unwrap_or_default()
    }

    /// Ready pods of the group that can have values.
    pub(super) fn all_ready(&self) -> u32 {
        (0..self.ready.len()).map(|role| self.ready_with_numbers(role)).sum()
    }

    /// Draining pods of a role.
    pub(super) fn leaving(&self, role: usize) -> u32 {
        self.leaving.get(role).copied().unwrap_or_default()
    }

    /// Unready pods of the group.
    pub(super) fn all_unready(&self) -> u32 {
        self.unready.iter().fold(0, |sum, unready| sum.saturating_add(*unready))
    }
}
