//! The way back from an empty pool. The endpoints of a pool that is scaled up from nothing
//! come one after the other; whoever is first must not get all that waited.

use super::time::Nanos;

/// No endpoint came or went for so long: those that come together have come.
pub(super) const QUIET: Nanos = 100_000_000;

/// Longest wait for endpoints to settle.
pub(super) const LONGEST: Nanos = 1_000_000_000;

/// Number of the pool's endpoints, and until when they are given time to settle.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    endpoints: usize,
    /// Time at which the first of them came.
    began: Nanos,
    /// End of the pause in dispatching; requests that came before belong to the crowd.
    pub(super) until: Nanos,
}

impl Recovery {
    /// Returns `true` if there is no endpoint.
    pub(super) fn is_empty_pool(&self) -> bool {
        self.endpoints == 0
    }

    /// Returns `true` if requests may go.
    pub(super) fn is_open(&self, now: Nanos) -> bool {
        self.endpoints > 0 && self.until <= now
    }

    /// Returns `true` if requests may go soon: endpoints have come to an empty pool, and more may.
    pub(super) fn is_settling(&self, now: Nanos) -> bool {
        self.endpoints > 0 && self.until > now
    }

    /// Returns `true` if a request that waits since then waited for endpoints to come.
    pub(super) fn waited_for_endpoints(&self, since: Nanos) -> bool {
        since < self.until
    }

    /// The endpoints have changed. Returns whether the pool has become empty, or isn't any
    /// more.
    pub(super) fn change(&mut self, now: Nanos, endpoints: usize, somebody_waits: bool) -> bool {
        let before = std::mem::replace(&mut self.endpoints, endpoints);
        match (before, endpoints) {
            (_, 0) => self.until = 0,
            (0, _) => {
                self.began = now;
                self.until = if somebody_waits { now.saturating_add(QUIET) } else { 0 };
            }
            _ if now < self.until => {
                self.until = now.saturating_add(QUIET).min(self.began.saturating_add(LONGEST));
            }
            _ => {}
        }
        (before == 0) != (endpoints == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dispatch_waits_for_the_pool_to_settle_with_a_limit() {
        let mut recovery = Recovery::default();
        assert!(recovery.is_empty_pool() && !recovery.is_open(0));
        assert!(recovery.change(1000, 1, true));
        assert!(!recovery.is_open(1000 + QUIET - 1) && recovery.is_open(1000 + QUIET));
        assert!(recovery.is_settling(1000 + QUIET - 1) && !recovery.is_settling(1000 + QUIET));
        let mut now = 1000;
        for endpoints in 2..30 {
            now += QUIET - 1;
            assert!(!recovery.change(now, endpoints, true));
            assert!(recovery.until <= 1000 + LONGEST);
        }
        assert_eq!(recovery.until, 1000 + LONGEST);
        recovery.change(now, 40, true);
        assert_eq!(recovery.until, 1000 + LONGEST, "it settled once");
        assert!(recovery.waited_for_endpoints(0) && recovery.waited_for_endpoints(1000 + LONGEST - 1));
        assert!(!recovery.waited_for_endpoints(1000 + LONGEST), "it came when all was settled");
        assert!(recovery.change(now, 0, true) && !recovery.is_open(now) && !recovery.is_settling(now));
    }

    #[test]
    fn dispatch_stays_open_without_waiting_requests() {
        let mut recovery = Recovery::default();
        recovery.change(5, 3, false);
        assert!(recovery.is_open(5) && !recovery.waited_for_endpoints(0));
    }
}
