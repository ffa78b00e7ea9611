//! Records that are kept longer than ordinary ones.

use std::sync::Arc;
use std::time::Instant;

use super::pace::Sampler;
use super::queue::Queue;
use super::record::{DecisionRecord, KeepReason};

/// Records by reason. All share one capacity, of which a third is each reason's own: where they are too many, the most
/// frequent reason loses its oldest. What enters is limited, so that in an overload, where most requests fail, its
/// beginning outlasts the ordinary records of that time.
#[derive(Debug)]
pub(super) struct NotableRecords {
    capacity: usize,
    queues: [Queue; 3],
    pace: [Sampler; 3],
}

impl NotableRecords {
    /// Room for so many, each of which stays for at least so many seconds.
    pub(super) fn new(capacity: usize, seconds: f64) -> Self {
        // Half of a reason's own part at once, and the other half over the time.
        let half = (capacity as f64 / 6.0).max(1.0);
        let pace = std::array::from_fn(|_| Sampler::new(half / seconds, half));
        Self { capacity, queues: Default::default(), pace }
    }

    /// Returns `true` if one may enter for this reason now.
    pub(super) fn takes(&mut self, reason: KeepReason, now: Instant) -> bool {
        self.pace[reason as usize].take(now)
    }

    pub(super) fn push(&mut self, reason: KeepReason, record: Arc<DecisionRecord>) {
        self.queues[reason as usize].push_back(record);
    }

    /// Takes out the oldest of the most frequent reason.
    pub(super) fn pop(&mut self) -> Option<Arc<DecisionRecord>> {
        self.queues.iter_mut().max_by_key(|queue| queue.len())?.pop_front()
    }

    pub(super) fn is_over(&self) -> bool {
        self.len() > self.capacity
    }

    pub(super) fn len(&self) -> usize {
        self.queues.iter().map(Queue::len).sum()
    }

    pub(super) fn queues(&self) -> &[Queue; 3] {
        &self.queues
    }
}
