//! A request that waits for the first byte of its response.

use std::sync::Arc;

use super::endpoint::Health;
use super::first_byte::RequestClass;

impl Health {
    /// A request was sent there at `sent_ms` that waits for the first byte of its response;
    /// `None`: that isn't observed.
    pub fn awaits(self: &Arc<Self>, class: RequestClass, sent_ms: u64) -> Option<AwaitedByte> {
        let watched = self.outliers.as_ref().is_some_and(|outliers| !outliers.params().first_byte.is_zero());
        watched.then(|| AwaitedByte::new(self, class, sent_ms))
    }
}

/// A request that waits for the first byte of its response. Dropped, it was aborted.
#[derive(Debug)]
pub struct AwaitedByte {
    health: Arc<Health>,
    slot: u32,
    ended: bool,
}

impl AwaitedByte {
    fn new(health: &Arc<Health>, class: RequestClass, sent_ms: u64) -> Self {
        let slot = health.pending().insert(class, sent_ms);
        Self { health: Arc::clone(health), slot, ended: false }
    }

    /// The first byte of a good response came.
    pub fn came(mut self, now_ms: u64) {
        self.ended = true;
        let is_late = self.health.pending().came(self.slot, now_ms);
        self.health.lives();
        if is_late {
            self.health.answered_late();
        }
    }

    /// Stops waiting, which says nothing about the endpoint. Returns whether the request already counts as
    /// failed.
    pub fn forget(mut self) -> bool {
        self.ended = true;
        self.health.pending().forget(self.slot)
    }
}

impl Drop for AwaitedByte {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let until_ms = self.health.now_ms();
        self.health.pending().abort(self.slot, until_ms);
    }
}
