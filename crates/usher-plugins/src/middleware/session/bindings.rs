//! Endpoints that sessions are bound to.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_lc_rs::digest::{SHA256, digest};
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use usher_core::endpoints::Snapshot;
use usher_core::metrics::register;
use usher_plugin::{Learned, Persistent};

/// Time by which a session that replicas hand on has to expire later than where it is known, in milliseconds. It takes up to
/// 12 s to be handed on, and clocks differ: without this, each replica would take the other's copy of an idle session for
/// a later use, for ever.
const HANDED_ON_MS: u64 = 15_000;

/// Sessions bound to an endpoint, by the plugin's name. Outlives a configuration.
///
/// A session is kept as a hash of its name, 128 bits of SHA-256: names come from clients, so their length has no bound and
/// they are nobody's business, nor that of those who read the state store. Only a name that can be guessed can be
/// recognised.
#[derive(Debug)]
pub struct Bindings {
    /// Taken for one look-up or one change by a request, by the sweep, and for some sessions at a time when they are handed on.
    table: Mutex<Table>,
    capacity: usize,
    /// Configuration that gives names their meaning, as a hash, and the longest time for which a session is kept.
    meaning: AtomicU64,
    longest_ms: AtomicU64,
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

/// Session by its hash, with its place in the order in which sessions expire.
pub(super) type Place = (u64, u128);

impl Bindings {
    /// Sessions that are kept at most. A session takes about 150 bytes, so all of them
    /// some 15 MB. Beyond it, the one that was not used for the longest time goes, and
    /// its next request is bound anew.
    pub const CAPACITY: usize = 100_000;

    /// No sessions yet, and room for so many; at least one.
    pub fn new(capacity: usize, live: IntGauge, evicted: IntCounter) -> Self {
        let (meaning, longest_ms) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { table: Mutex::default(), capacity: capacity.max(1), meaning, longest_ms, live, evicted }
    }

    /// Sets which names sessions have, as a hash of the configuration that says it, and for how long one is kept. Others
    /// get both.
    pub(super) fn configure(&self, meaning: u64, ttl_ms: u64) {
        self.meaning.store(meaning, Relaxed);
        self.longest_ms.store(ttl_ms, Relaxed);
    }

    /// Hash of the configuration.
    pub(super) fn meaning(&self) -> u64 {
        self.meaning.load(Relaxed)
    }

    /// The [identity](usher_core::endpoints::Endpoint::identity) of the endpoint that a session is bound to.
    pub fn get(&self, session: &str, now_ms: u64) -> Option<Arc<str>> {
        let key = key(session);
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
        let key = key(session);
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

    /// Up to `most` sessions within these places with their endpoints, from the one that expires last.
    pub(super) fn latest(&self, within: Range<Place>, most: usize) -> Vec<(Place, Arc<str>)> {
        let table = self.lock();
        let latest = table.expiries.range(within).rev().take(most);
        let bound = |place: &Place| Some((*place, Arc::clone(&table.bound.get(&place.1)?.endpoint)));
        latest.filter_map(bound).collect()
    }

    /// Binds sessions that others bound, where theirs expires clearly later than one that is bound here, and there is room.
    /// Returns the number of those.
    pub(super) fn adopt(&self, sessions: &[(Place, Arc<str>)], now_ms: u64) -> u64 {
        let longest_ms = now_ms.saturating_add(self.longest_ms.load(Relaxed));
        let mut table = self.lock();
        let table = &mut *table;
        table.drop_expired(now_ms);
        let mut adopted = 0;
        for ((expires_ms, key), endpoint) in sessions {
            let expires_ms = longest_ms.min(*expires_ms);
            let known = table.bound.get(key).map(|bound| bound.expires_ms);
            let has_room = known.is_some() || table.bound.len() < self.capacity;
            if expires_ms <= known.map_or(now_ms, |known| known.saturating_add(HANDED_ON_MS)) || !has_room {
                continue;
            }
            if let Some(known) = known {
                table.expiries.remove(&(known, *key));
            }
            table.bound.insert(*key, Bound { endpoint: Arc::clone(endpoint), expires_ms });
            table.expiries.insert((expires_ms, *key));
            adopted += 1;
        }
        self.live.set(table.bound.len() as i64);
        adopted
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hash of a session's name.
fn key(session: &str) -> u128 {
    let digest = digest(&SHA256, session.as_bytes());
    digest.as_ref().first_chunk().copied().map_or(0, u128::from_le_bytes)
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

    fn learned(&self) -> Option<&dyn Learned> {
        Some(self)
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
