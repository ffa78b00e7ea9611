//! Who says how many pods there should be.

use std::time::Duration;

use super::hpa::{self, Hpa};
use crate::capacity::policy::QUEUE_DEPTH;
use crate::capacity::{History, Inputs, Pod, PodState, Policy, tick};
use crate::sim::EngineState;

/// What a sizer sees of the pods of one role.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::replay) struct Seen {
    /// How many there should be: those that serve and those that start.
    pub(in crate::replay) asked: u32,
    /// How many of these start.
    pub(in crate::replay) starting: u32,
    /// The numbers of those that serve, in the order of the policy's signals.
    pub(in crate::replay) pods: Vec<Box<[f64]>>,
}

/// Who says how many.
#[derive(Clone, Debug)]
pub(in crate::replay) enum Sizer {
    /// Nobody: they stay.
    Fixed,
    /// A policy with one role, which knows of the pods that start.
    Policy { policy: Box<Policy>, history: Box<History> },
    /// The HPA.
    Hpa(Hpa),
}

impl Sizer {
    /// A policy that begins.
    pub(super) fn of(policy: &Policy) -> Self {
        Self::Policy { policy: Box::new(policy.clone()), history: Box::default() }
    }

    /// Time between two looks; `None`: it never looks.
    pub(in crate::replay) fn interval(&self) -> Option<Duration> {
        match self {
            Self::Fixed => None,
            Self::Policy { policy, .. } => Some(policy.interval),
            Self::Hpa(_) => Some(hpa::INTERVAL),
        }
    }

    /// How many pods there should be now.
    pub(in crate::replay) fn size(&mut self, seen: &Seen, now: Duration) -> u32 {
        match self {
            Self::Fixed => seen.asked,
            Self::Hpa(hpa) => hpa.size(seen, now),
            Self::Policy { policy, history } => {
                let pod = |values: &[f64]| Pod {
                    role: 0,
                    is_ready: true,
                    state: PodState::default(),
                    values: values.into(),
                };
                let inputs = Inputs {
                    replicas: vec![seen.asked],
                    pods: seen.pods.iter().map(|values| pod(values)).collect(),
                    starting: vec![seen.starting],
                    ..Inputs::default()
                };
                let plan = tick(&inputs, policy, history, now);
                plan.roles.first().map_or(seen.asked, |role| role.desired)
            }
        }
    }
}

/// A number of a simulated server that a policy can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::replay) enum Number {
    Waiting,
    Running,
    KvUsage,
    InFlight,
}

impl Number {
    /// All of them, under the names that policies know them by in the server.
    pub(super) const ALL: [(&'static str, Self); 4] = [
        (QUEUE_DEPTH, Self::Waiting),
        ("running", Self::Running),
        ("kv_cache_utilization", Self::KvUsage),
        ("in_flight", Self::InFlight),
    ];

    /// What it is of a server that has this state and so many requests of the picker.
    pub(in crate::replay) fn read(self, state: &EngineState, in_flight: u32) -> f64 {
        match self {
            Self::Waiting => state.waiting as f64,
            Self::Running => state.running as f64,
            Self::KvUsage => state.kv_usage,
            Self::InFlight => f64::from(in_flight),
        }
    }
}
