//! Inputs of a tick, and the readings of them that its steps need.

use std::collections::BTreeMap;
use std::ops::Deref;

use smallvec::SmallVec;

use super::amount::Amount;
use super::rollout::Layers;

/// State of a group when a tick begins.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inputs {
    /// Number of pods of each role of the policy, in the policy's order. What is left out is 0.
    pub replicas: Vec<u32>,
    /// The pods of the policy's roles.
    pub pods: Vec<Pod>,
    /// Number of pods of each role that were asked for, are counted in `replicas`, and aren't among
    /// `pods` yet: they are pods that are not ready. What is left out is 0.
    pub starting: Vec<u32>,
    /// Requests that wait for a pod.
    pub waiting: u64,
    /// Work of each role's pods, in the policy's order. What is left out is idle.
    pub work: Vec<Work>,
    /// Numbers that no pod has, by name: of a query.
    pub external: BTreeMap<String, f64>,
    /// The domains that pods can be in, by layer, with the room that they have; `None`: it isn't known.
    pub domains: Option<Layers>,
    /// Pods of each role that need another domain, as the one that they have to be in takes none any more: those that
    /// wait for a node there, those that are missing, and those that run there yet. What is left out is none.
    pub displaced: Vec<u32>,
    /// `true` if nodes are being added for pods that none takes.
    pub provisioning: bool,
    /// `true` if plans are not carried out, so that steps take no time.
    pub is_held: bool,
    /// `true` if pods still have requests that another process sent before this one led: those that
    /// wait now may not be all.
    pub is_settling: bool,
}

/// Work of a role's pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// `true` if it isn't known that nothing runs and nothing waits at any of them.
    pub is_busy: bool,
    /// Requests that were ever sent to them. Any change of it is one that came.
    pub sent: u64,
}

/// A pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    /// Its role, by its place in the policy.
    pub role: usize,
    /// `true` if it serves.
    pub is_ready: bool,
    /// Progress on its way up.
    pub state: PodState,
    /// Its numbers, in the order of the policy's signals. What is left out, or no number (NaN), could
    /// not be read.
    pub values: Values,
}

/// Numbers of a pod. Up to two, as most policies have, need no allocation.
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

/// Progress of a pod on its way up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodState {
    /// `true` if it waits at Usher's scheduling gate.
    pub is_gated: bool,
    /// `true` if it has a node.
    pub is_scheduled: bool,
    /// Its containers run.
    pub is_running: bool,
    /// `true` if it is in the pool and its metrics are fresh.
    pub is_serving: bool,
    /// No node takes it.
    pub is_unschedulable: bool,
    /// `true` if it is of an older revision.
    pub is_outdated: bool,
    /// `true` if it is about to be deleted and gets no new requests.
    pub is_leaving: bool,
}

impl Pod {
    /// A number, if it could be read.
    pub(super) fn value(&self, signal: usize) -> Option<Amount> {
        self.values.get(signal).copied().and_then(Amount::of)
    }
}

/// One number over the pods of a role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    /// Its sum over the ready pods that have it.
    pub(super) sum: Amount,
    /// Number of those pods.
    pub(super) count: u32,
}

/// The numbers of all roles.
#[derive(Clone, Debug, Default)]
pub(super) struct Readings {
    signals: usize,
    /// By role, then signal.
    cells: Vec<Reading>,
    ready: Vec<u32>,
    unready: Vec<u32>,
    /// Pods that are about to go, whether they are ready or not.
    leaving: Vec<u32>,
    /// Number of those that are ready and have no part in the numbers, by role.
    left_out: Vec<u32>,
}

impl Readings {
    /// Goes over the pods once.
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
            // Its load says nothing of what others have, unless all of them go.
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

    /// A number over the ready pods of a role.
    pub(super) fn of_role(&self, role: usize, signal: usize) -> Reading {
        self.cells.get(role * self.signals + signal).copied().unwrap_or_default()
    }

    /// A number over the ready pods of the group.
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

    /// Ready pods of a role that may have numbers.
    pub(super) fn ready_with_numbers(&self, role: usize) -> u32 {
        self.ready(role) - self.left_out.get(role).copied().unwrap_or_default()
    }

    /// Ready pods of the group that may have numbers.
    pub(super) fn all_ready(&self) -> u32 {
        (0..self.ready.len()).map(|role| self.ready_with_numbers(role)).sum()
    }

    /// Pods of a role that are about to go.
    pub(super) fn leaving(&self, role: usize) -> u32 {
        self.leaving.get(role).copied().unwrap_or_default()
    }

    /// Pods of the group that are not ready.
    pub(super) fn all_unready(&self) -> u32 {
        self.unready.iter().fold(0, |sum, unready| sum.saturating_add(*unready))
    }
}
