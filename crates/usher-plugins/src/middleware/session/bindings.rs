//! Endpoints that sessions are bound to.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use usher_core::endpoints::Snapshot;
use usher_core::metrics::register;
use usher_plugin::Persistent;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Sessions bound to an endpoint, by the plugin's name. Outlives a configuration.
///
/// A session is kept as a hash of its name, 128 bits with a seed of this process: names
/// come from clients, so their length has no bound and they are nobody's business. Two
/// sessions of one hash would share an endpoint, which harms neither.
#[derive(Debug)]
pub struct Bindings {
    /// Taken for one look-up or one change by a request, and by the sweep.
    table: Mutex<Table>,
    capacity: usize,
    seed: u64,
    live: IntGauge,
    evicted: IntCounter,
}

#[derive(Debug, Default)]
struct Table {
    bound: HashMap<u128, Bound>,
    /// The sessions by when they expire, so that those that go first are found first.
    expiries: BTreeSet<(u64, u128)>,
}

#[derive(Debug)]
struct Bound {
    endpoint: Arc<str>,
    /// Unused until then, on the clock of the readings, it doesn't count.
    expires_ms: u64,
}

impl Bindings {
    /// Sessions that are kept at most. A session takes about 150 bytes, so all of them
    /// some 15 MB. Beyond it, the one that was not used for the longest time goes, and
    /// its next request is bound anew.
    pub const CAPACITY: usize = 100_000;

    /// No sessions yet, and room for so many; at least one.
    pub fn new(capacity: usize, live: IntGauge, evicted: IntCounter) -> Self {
        Self { table: Mutex::default(), capacity: capacity.max(1), seed: rand::random(), live, evicted }
    }

    /// The [identity](usher_core::endpoints::Endpoint::identity) of the endpoint that a session is bound to.
    pub fn get(&self, session: &str, now_ms: u64) -> Option<Arc<str>> {
        let key = self.key(session);
        self.lock()
            .bound
            .get(&key)
            .filter(|bound| bound.counts(now_ms))
            .map(|bound| Arc::clone(&bound.endpoint))
    }

    /// Binds a session to an endpoint from now on, unless it is bound to another one
    /// than `from`, which is what the caller saw: then somebody else was first, and that
    /// counts. Either way the session expires `ttl_ms` from now.
    pub fn bind(&self, session: &str, from: Option<&Arc<str>>, to: &Arc<str>, now_ms: u64, ttl_ms: u64) {
        let key = self.key(session);
        let expires_ms = now_ms.saturating_add(ttl_ms);
        let mut table = self.lock();
        let table = &mut *table;
        table.drop_expired(now_ms);
        if let Some(bound) = table.bound.get_mut(&key) {
            table.expiries.remove(&(bound.expires_ms, key));
            if !bound.counts(now_ms) || from == Some(&bound.endpoint) {
                bound.endpoint = Arc::clone(to);
            }
            bound.expires_ms = expires_ms;
        } else {
            if table.bound.len() >= self.capacity && table.drop_first() {
                self.evicted.inc();
            }
            table.bound.insert(key, Bound { endpoint: Arc::clone(to), expires_ms });
        }
        table.expiries.insert((expires_ms, key));
        self.live.set(table.bound.len() as i64);
    }

    /// Number of sessions, expired ones included until they are dropped.
    pub fn len(&self) -> usize {
        self.lock().bound.len()
    }

    /// Returns `true` if no session is bound.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn key(&self, session: &str) -> u128 {
        xxh3_128_with_seed(session.as_bytes(), self.seed)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bound {
    fn counts(&self, now_ms: u64) -> bool {
        now_ms < self.expires_ms
    }
}

impl Table {
    /// Each session is dropped once, so what this costs is paid for by those that came.
    fn drop_expired(&mut self, now_ms: u64) {
        while self.expiries.first().is_some_and(|(expires_ms, _)| *expires_ms <= now_ms) {
            self.drop_first();
        }
    }

    /// Drops the session that expires first, if there is one.
    fn drop_first(&mut self) -> bool {
        let first = self.expiries.pop_first();
        first.is_some_and(|(_, key)| self.bound.remove(&key).is_some())
    }
}

impl Persistent for Bindings {
    /// A session stays bound to an endpoint that is gone: it may only be restarting, and
    /// a request that doesn't find it among its candidates binds the session anew. A later pod of
    /// the same name is another endpoint.
    fn sweep(&self, _snapshot: &Snapshot, now_ms: u64) {
        let mut table = self.lock();
        table.drop_expired(now_ms);
        self.live.set(table.bound.len() as i64);
    }
}

/// Metrics of the session plugins.
#[derive(Debug)]
pub struct SessionMetrics {
    live: IntGaugeVec,
    evicted: IntCounterVec,
}

impl SessionMetrics {
    /// Registers the families.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let live = Opts::new("usher_session_bindings", "Sessions that are bound to an endpoint, by plugin.");
        let evicted = Opts::new(
            "usher_session_bindings_evicted_total",
            "Sessions that lost their endpoint because too many were bound, by plugin.",
        );
        Ok(Self {
            live: register(registry, IntGaugeVec::new(live, &["plugin_name"])?, None)?,
            evicted: register(registry, IntCounterVec::new(evicted, &["plugin_name"])?, None)?,
        })
    }

    /// No sessions yet, counted under the plugin's name.
    pub fn bindings(&self, plugin: &str) -> Bindings {
        let (live, evicted) =
            (self.live.with_label_values(&[plugin]), self.evicted.with_label_values(&[plugin]));
        Bindings::new(Bindings::CAPACITY, live, evicted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_core::endpoints::Store;

    fn bindings(capacity: usize) -> Bindings {
        let counter = IntCounter::new("evicted", "Evicted.").unwrap();
        Bindings::new(capacity, IntGauge::new("live", "Live.").unwrap(), counter)
    }

    fn get(bindings: &Bindings, session: &str, now_ms: u64) -> Option<String> {
        bindings.get(session, now_ms).map(|endpoint| endpoint.to_string())
    }

    #[test]
    fn session_binding_expires_after_idle_time() {
        let (bindings, a) = (bindings(9), Arc::<str>::from("a"));
        assert_eq!(get(&bindings, "s", 1), None);
        bindings.bind("s", None, &a, 1, 100);
        assert_eq!(get(&bindings, "s", 100).as_deref(), Some("a"));
        assert_eq!(get(&bindings, "s", 101), None);
        bindings.bind("s", Some(&a), &a, 90, 100);
        assert_eq!(get(&bindings, "s", 189).as_deref(), Some("a"), "using it prolongs it");
        assert_eq!((get(&bindings, "s", 190), bindings.len()), (None, 1));
        bindings.sweep(&Store::default().snapshot(), 190);
        assert!(bindings.is_empty());
        assert_eq!(bindings.live.get(), 0);
    }

    #[test]
    fn first_binding_of_a_session_wins() {
        let (bindings, a, b) = (bindings(9), Arc::<str>::from("a"), Arc::<str>::from("b"));
        // Both requests saw no binding.
        bindings.bind("s", None, &a, 1, 100);
        bindings.bind("s", None, &b, 2, 100);
        assert_eq!(get(&bindings, "s", 3).as_deref(), Some("a"));
        bindings.bind("s", Some(&a), &b, 4, 100);
        assert_eq!(get(&bindings, "s", 5).as_deref(), Some("b"), "the one that it saw");
        bindings.bind("s", None, &a, 200, 100);
        assert_eq!(get(&bindings, "s", 201).as_deref(), Some("a"), "what expired doesn't count");
    }

    #[test]
    fn least_recently_used_session_is_evicted() {
        let (bindings, a) = (bindings(2), Arc::<str>::from("a"));
        for (session, now_ms) in [("first", 1), ("second", 2), ("first", 3), ("third", 4)] {
            bindings.bind(session, None, &a, now_ms, 1000);
        }
        let kept: Vec<bool> =
            ["first", "second", "third"].iter().map(|session| bindings.get(session, 5).is_some()).collect();
        assert_eq!(kept, [true, false, true]);
        assert_eq!((bindings.len(), bindings.live.get(), bindings.evicted.get()), (2, 2, 1));
        // Expired sessions make room without counting as evicted.
        bindings.bind("fourth", None, &a, 5000, 1000);
        assert_eq!((bindings.len(), bindings.evicted.get()), (1, 1));
    }
}
