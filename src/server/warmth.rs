//! Fitness of a replica that waits to lead.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::endpoints::{Clock, Store};
use crate::extproc::health::{HealthState, HealthView};
use crate::leader::Fitness;

/// Time to wait for endpoints whose metrics can't be scraped.
const LONGEST: Duration = Duration::from_secs(10);

/// Looks whether this replica knows what it needs to lead.
#[derive(Debug)]
pub(super) struct Warmth {
    health: Arc<HealthState>,
    store: Arc<Store>,
    clock: Clock,
    /// Endpoints are known before it leads.
    knows: bool,
    /// Since when it could serve at all, in the clock's milliseconds; 0: it can't.
    serves_since: AtomicU64,
}

impl Warmth {
    /// State of this replica; `knows`: endpoints are known to it before it leads.
    pub(super) fn new(health: &Arc<HealthState>, store: &Arc<Store>, clock: &Clock, knows: bool) -> Self {
        let (health, store) = (Arc::clone(health), Arc::clone(store));
        Self { health, store, clock: clock.clone(), knows, serves_since: AtomicU64::new(0) }
    }

    /// Able: it would be ready if it led, or has to lead to find out. Warm: it also has
    /// scraped every endpoint once, or has tried for 10 s.
    pub(super) fn fitness(&self) -> Fitness {
        let now = self.clock.now_ms();
        if !would_serve(self.health.view()) {
            self.serves_since.store(0, Relaxed);
            return if self.knows { Fitness::Unable } else { Fitness::Able };
        }
        let since = match self.serves_since.load(Relaxed) {
            0 => {
                self.serves_since.store(now, Relaxed);
                now
            }
            since => since,
        };
        let snapshot = self.store.snapshot();
        let all = snapshot.endpoints().iter().all(|endpoint| endpoint.load().scraped_at_ms().is_some());
        let is_warm = all || u128::from(now.saturating_sub(since)) >= LONGEST.as_millis();
        if is_warm { Fitness::Warm } else { Fitness::Able }
    }
}

fn would_serve(view: HealthView) -> bool {
    view.synced && view.plugins_ready && view.protocols_match && view.warm && !view.draining
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::EndpointSpec;
    use Fitness::{Able, Unable, Warm};

    #[test]
    fn replica_is_warm_after_scraping_all_endpoints_or_a_timeout() {
        let (health, store) = (Arc::new(HealthState::new(true)), Arc::new(Store::default()));
        let clock = Clock::stopped();
        let warmth = Warmth::new(&health, &store, &clock, true);
        assert_eq!(warmth.fitness(), Unable, "it doesn't know the pool");
        health.set_synced(true);
        assert_eq!(warmth.fitness(), Warm, "there is nothing to scrape");
        let spec = |name: &str, last: u8| EndpointSpec::new(name, ([10, 0, 0, last], 8000));
        store.replace(vec![spec("a", 1), spec("b", 2)]);
        assert_eq!(warmth.fitness(), Able);
        let snapshot = store.snapshot();
        for endpoint in snapshot.endpoints().iter() {
            assert_eq!(warmth.fitness(), Able);
            endpoint.load().scraped(1);
        }
        assert_eq!(warmth.fitness(), Warm);
        store.replace(vec![spec("a", 1), spec("b", 2), spec("c", 3)]);
        assert_eq!(warmth.fitness(), Able);
        clock.set(Duration::from_secs(20));
        assert_eq!(warmth.fitness(), Warm);
        health.set_protocols_match(false);
        assert_eq!(warmth.fitness(), Unable);
        health.set_protocols_match(true);
        assert_eq!(warmth.fitness(), Able, "the wait begins anew");
    }

    #[test]
    fn replica_without_preloaded_state_may_lead() {
        let (health, store) = (Arc::new(HealthState::new(true)), Arc::new(Store::default()));
        let warmth = Warmth::new(&health, &store, &Clock::stopped(), false);
        assert_eq!(warmth.fitness(), Able);
    }
}
