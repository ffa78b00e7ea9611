//! Whether a replica that waits could serve as well as the one that leads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::endpoints::{Clock, Store};
use crate::extproc::health::{HealthState, HealthView};

/// How long to wait for endpoints whose metrics can't be scraped.
const LONGEST: Duration = Duration::from_secs(10);

/// Looks whether this replica knows what it needs to lead.
#[derive(Debug)]
pub(super) struct Warmth {
    health: Arc<HealthState>,
    store: Arc<Store>,
    clock: Clock,
    /// Since when it could serve at all, in the clock's milliseconds; 0: it can't.
    serves_since: AtomicU64,
}

impl Warmth {
    pub(super) fn new(health: &Arc<HealthState>, store: &Arc<Store>, clock: &Clock) -> Self {
        let (health, store) = (Arc::clone(health), Arc::clone(store));
        Self { health, store, clock: clock.clone(), serves_since: AtomicU64::new(0) }
    }

    /// Whether it would be ready if it led, and has scraped every endpoint once, or has
    /// tried for 10 s.
    pub(super) fn is_warm(&self) -> bool {
        let now = self.clock.now_ms();
        if !would_serve(self.health.view()) {
            self.serves_since.store(0, Relaxed);
            return false;
        }
        let since = match self.serves_since.load(Relaxed) {
            0 => {
                self.serves_since.store(now, Relaxed);
                now
            }
            since => since,
        };
        let snapshot = self.store.snapshot();
        snapshot.endpoints().iter().all(|endpoint| endpoint.load().scraped_at_ms().is_some())
            || u128::from(now.saturating_sub(since)) >= LONGEST.as_millis()
    }
}

fn would_serve(view: HealthView) -> bool {
    view.synced && view.plugins_ready && view.protocols_match && !view.draining
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::EndpointSpec;

    #[test]
    fn a_replica_is_warm_once_it_has_scraped_every_endpoint_or_has_tried_for_long() {
        let (health, store) = (Arc::new(HealthState::new(true)), Arc::new(Store::default()));
        let clock = Clock::stopped();
        let warmth = Warmth::new(&health, &store, &clock);
        assert!(!warmth.is_warm(), "it doesn't know the pool");
        health.set_synced(true);
        assert!(warmth.is_warm(), "there is nothing to scrape");
        let spec = |name: &str, last: u8| EndpointSpec::new(name, ([10, 0, 0, last], 8000));
        store.replace(vec![spec("a", 1), spec("b", 2)]);
        assert!(!warmth.is_warm());
        let snapshot = store.snapshot();
        for endpoint in snapshot.endpoints().iter() {
            assert!(!warmth.is_warm());
            endpoint.load().scraped(1);
        }
        assert!(warmth.is_warm());
        store.replace(vec![spec("a", 1), spec("b", 2), spec("c", 3)]);
        assert!(!warmth.is_warm());
        clock.set(Duration::from_secs(20));
        assert!(warmth.is_warm());
        health.set_protocols_match(false);
        assert!(!warmth.is_warm());
        health.set_protocols_match(true);
        assert!(!warmth.is_warm(), "the wait begins anew");
    }
}
