//! Queue of a replica, as replicas tell it each other.

/// Requests that wait at a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueState {
    /// Requests by priority, the highest first. Priorities at which none waits are left out.
    pub waiting: Vec<(i32, u32)>,
}

/// Queue that is told to other replicas, and hears theirs.
pub trait SharedQueue: Send + Sync {
    /// Requests that wait at this replica now.
    fn state(&self) -> QueueState;

    /// Takes what waits at the other replicas, in place of what was reported before.
    fn report_others(&self, others: &[QueueState]);
}
