//! Queue of a replica, as replicas publish it.

use std::time::Duration;

/// Requests that wait at a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueState {
    /// Requests by priority, the highest first. Priorities at which none waits are left out.
    pub waiting: Vec<(i32, u32)>,
}

/// Tokens that a flow got at a replica, as far as they aren't forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowService {
    /// Priority of the flow's requests.
    pub priority: i32,
    /// Hash of the flow's name, the same at all replicas.
    pub flow: u64,
    /// Tokens. More than fits counts as the most that fits.
    pub tokens: u32,
}

/// Queue that is published to other replicas, and takes theirs.
pub trait SharedQueue: Send + Sync {
    /// Requests that wait at this replica now.
    fn state(&self) -> QueueState;

    /// Takes what waits at the other replicas, in place of what was reported before.
    fn report_others(&self, others: &[QueueState]);

    /// Number that rises whenever a flow gets something that is remembered.
    fn charged(&self) -> u64;

    /// Tokens that flows got at this replica, of each priority those that got most.
    fn service(&self) -> Vec<FlowService>;

    /// Takes tokens that flows got at each of the other replicas, and the time since, in place of what was reported
    /// before.
    fn report_service(&self, others: &[(Duration, Vec<FlowService>)]);
}
