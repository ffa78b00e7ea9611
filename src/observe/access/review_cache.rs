//! Results of reviews, kept for a while. No I/O and no clock, so that this can be tested in
//! any order of events.

use std::collections::HashMap;
use std::time::Duration;

/// Subject of a review, as a keyed hash: neither tokens nor names are kept.
pub(super) type Key = [u8; 32];

/// Responses that are kept of each kind. Those who read metrics are few; this bounds what
/// somebody costs who tries tokens.
pub(super) const MOST: usize = 256;

/// Time for which responses count.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheTtl {
    /// One that says yes.
    pub(super) yes: Duration,
    /// One that says no.
    pub(super) no: Duration,
}

/// Results of reviews. Those that say no can't push out those that say yes: anybody
/// can get a no.
#[derive(Debug)]
pub(super) struct ReviewCache<V> {
    lasting: CacheTtl,
    yes: ExpiringMap<V>,
    no: ExpiringMap<()>,
}

impl<V: Clone> ReviewCache<V> {
    pub(super) fn new(lasting: CacheTtl) -> Self {
        Self { lasting, yes: ExpiringMap::default(), no: ExpiringMap::default() }
    }

    /// Result for this key, if it still counts: yes with what there is to know, or no.
    pub(super) fn get(&self, key: &Key, now: Duration) -> Option<Option<V>> {
        let no = || self.no.get(key, now).map(|()| None);
        self.yes.get(key, now).map(Some).or_else(no)
    }

    /// Stores a fresh response.
    pub(super) fn put(&mut self, key: Key, response: Option<V>, now: Duration) {
        match response {
            Some(value) => {
                self.no.entries.remove(&key);
                self.yes.put(key, value, now, self.lasting.yes);
            }
            None => {
                self.yes.entries.remove(&key);
                self.no.put(key, (), now, self.lasting.no);
            }
        }
    }
}

/// Responses of one kind, each with the time from which it doesn't count.
#[derive(Debug)]
struct ExpiringMap<V> {
    entries: HashMap<Key, (V, Duration)>,
}

impl<V> Default for ExpiringMap<V> {
    fn default() -> Self {
        Self { entries: HashMap::new() }
    }
}

impl<V: Clone> ExpiringMap<V> {
    fn get(&self, key: &Key, now: Duration) -> Option<V> {
        self.entries.get(key).filter(|(_, until)| *until > now).map(|(value, _)| value.clone())
    }

    fn put(&mut self, key: Key, value: V, now: Duration, lasting: Duration) {
        if self.entries.len() >= MOST && !self.entries.contains_key(&key) {
            self.entries.retain(|_, (_, until)| *until > now);
        }
        if self.entries.len() >= MOST && !self.entries.contains_key(&key) {
            let first = self.entries.iter().min_by_key(|(_, (_, until))| *until).map(|(key, _)| *key);
            first.map(|key| self.entries.remove(&key));
        }
        self.entries.insert(key, (value, now.saturating_add(lasting)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LASTING: CacheTtl = CacheTtl { yes: Duration::from_secs(60), no: Duration::from_secs(30) };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn key(number: usize) -> Key {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&(number as u64).to_be_bytes());
        key
    }

    #[test]
    fn a_response_counts_for_its_time_and_a_later_one_replaces_it() {
        let mut cache = ReviewCache::new(LASTING);
        assert_eq!(cache.get(&key(1), at(0)), None);
        cache.put(key(1), Some("ann"), at(0));
        cache.put(key(2), None, at(0));
        assert_eq!(cache.get(&key(1), at(59)), Some(Some("ann")));
        assert_eq!(cache.get(&key(1), at(60)), None);
        assert_eq!(cache.get(&key(2), at(29)), Some(None));
        assert_eq!(cache.get(&key(2), at(30)), None);
        cache.put(key(2), Some("bob"), at(30));
        assert_eq!(cache.get(&key(2), at(31)), Some(Some("bob")));
        cache.put(key(2), None, at(32));
        assert_eq!(cache.get(&key(2), at(33)), Some(None));
    }

    #[test]
    fn review_cache_is_bounded_and_refusals_evict_no_grant() {
        let mut cache = ReviewCache::new(LASTING);
        cache.put(key(0), Some("ann"), at(0));
        for number in 1..=3 * MOST {
            cache.put(key(number), None, at(1) + Duration::from_millis(number as u64));
        }
        let now = at(2);
        assert_eq!((cache.yes.entries.len(), cache.no.entries.len()), (1, MOST));
        assert_eq!(cache.get(&key(0), now), Some(Some("ann")));
        assert_eq!(cache.get(&key(1), now), None, "the first to end goes");
        assert_eq!(cache.get(&key(3 * MOST), now), Some(None));
        // Those that no longer count go before one that does.
        for number in 0..MOST {
            cache.put(key(number), Some("old"), at(0));
        }
        cache.put(key(MOST), Some("new"), at(100));
        assert_eq!(cache.yes.entries.len(), 1);
    }
}
