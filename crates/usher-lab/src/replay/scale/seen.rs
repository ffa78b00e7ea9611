//! Observations of pods, for sizers.

use crate::sim::EngineState;
use usher_capacity::policy::QUEUE_DEPTH;

/// Observations of the pods of one role.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::replay) struct Seen {
    /// Number that there should be: those that serve and those that start.
    pub(in crate::replay) asked: u32,
    /// Number of these that start.
    pub(in crate::replay) starting: u32,
    /// The numbers of those that serve, in the order of the policy's signals.
    pub(in crate::replay) pods: Vec<Box<[f64]>>,
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

    /// Value of the number for a server in this state, with `in_flight` requests of the picker.
    pub(in crate::replay) fn read(self, state: &EngineState, in_flight: u32) -> f64 {
        match self {
            Self::Waiting => state.waiting as f64,
            Self::Running => state.running as f64,
            Self::KvUsage => state.kv_usage,
            Self::InFlight => f64::from(in_flight),
        }
    }
}
