//! Sizers: a policy, an HPA, or a number of pods that stays.

use std::time::Duration;

use super::hpa::{self, Hpa};
use super::seen::Seen;
use usher_capacity::{History, Inputs, Pod, PodState, Policy, tick};

/// Source of the number of pods.
#[derive(Clone, Debug)]
pub(in crate::replay) enum Sizer {
    /// Fixed number of pods.
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

    /// Number of pods that there should be now.
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
