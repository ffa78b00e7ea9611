//! Series whose labels clients choose.

use std::borrow::Borrow;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{MAX_LABEL_BYTES, MAX_LABEL_VALUES, OTHER, Overflow};

/// How long series stay that nobody uses, where there are many.
const IDLE: Duration = Duration::from_secs(300);

/// Pause between two looks for series that nobody uses.
const SWEEP: Duration = Duration::from_secs(10);

/// Number of series from which on idle ones leave. As long as there are fewer they stay: who
/// reads a page is to find 0 for a model that rests, not nothing.
const MANY: usize = MAX_LABEL_VALUES / 2;

/// The series of a family by their labels, at most [`MAX_LABEL_VALUES`]. Those that nobody used for
/// five minutes make room for others; what still finds none counts as `other`.
#[derive(Debug)]
pub struct ClientSeries<K: Eq + Hash, S> {
    by_key: DashMap<K, Entry<S>, BuildHasherDefault<ShortHasher>>,
    // The last sweep; taken by one thread at a time, the others go on.
    swept: Mutex<Option<Instant>>,
    overflow: Overflow,
}

/// XXH3 of short texts, one after the other: without the state that a stream of them takes. Clients
/// choose what is hashed, but the table is bounded however they collide.
#[derive(Debug, Default)]
struct ShortHasher(u64);

impl Hasher for ShortHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    // What ends a text.
    fn write_u8(&mut self, byte: u8) {
        self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Debug)]
struct Entry<S> {
    series: Arc<S>,
    /// It was looked up since the last sweep.
    used: AtomicBool,
    /// When a sweep last found it used.
    used_at: Instant,
}

impl<K: Eq + Hash, S> Default for ClientSeries<K, S> {
    fn default() -> Self {
        Self { by_key: DashMap::default(), swept: Mutex::default(), overflow: Overflow::default() }
    }
}

impl<K: Eq + Hash, S> ClientSeries<K, S> {
    /// The series of a key, if they are there. Takes a shared lock on a part of the table.
    pub fn find<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<Arc<S>>
    where
        K: Borrow<Q>,
    {
        let entry = self.by_key.get(key)?;
        if !entry.used.load(Relaxed) {
            entry.used.store(true, Relaxed);
        }
        Some(Arc::clone(&entry.series))
    }

    /// The series of a key whose values are [labels](Self::label). They are made when the key is
    /// new; beyond the bound those of `other` are. `forget` takes the series of a key out of
    /// their families; nobody holds them then. `of`: what has no series left, for the log.
    pub fn get(
        &self,
        key: K,
        other: impl FnOnce() -> K,
        of: &'static str,
        make: impl FnOnce(&K) -> S,
        forget: impl Fn(&K, &S),
    ) -> Arc<S> {
        self.get_at(key, other, of, make, forget, Instant::now())
    }

    pub(crate) fn get_at(
        &self,
        key: K,
        other: impl FnOnce() -> K,
        of: &'static str,
        make: impl FnOnce(&K) -> S,
        forget: impl Fn(&K, &S),
        now: Instant,
    ) -> Arc<S> {
        if let Some(series) = self.find(&key) {
            return series;
        }
        if self.by_key.len() >= MANY {
            self.sweep(now, forget);
        }
        let key = if self.by_key.len() < MAX_LABEL_VALUES {
            key
        } else {
            self.overflow.tell(of);
            other()
        };
        match self.by_key.entry(key) {
            dashmap::Entry::Occupied(known) => {
                known.get().used.store(true, Relaxed);
                Arc::clone(&known.get().series)
            }
            dashmap::Entry::Vacant(place) => {
                let series = Arc::new(make(place.key()));
                place.insert(Entry { series: Arc::clone(&series), used: true.into(), used_at: now });
                series
            }
        }
    }

    /// A value as a label: itself, or `other` where it is too long. `of` as with
    /// [`get`](Self::get).
    pub fn label<'a>(&self, value: &'a str, of: &'static str) -> &'a str {
        if value.len() <= MAX_LABEL_BYTES {
            return value;
        }
        self.overflow.tell(of);
        OTHER
    }

    /// Drops the series that nobody holds and nobody used for a while.
    fn sweep(&self, now: Instant, forget: impl Fn(&K, &S)) {
        let Ok(mut swept) = self.swept.try_lock() else { return };
        if swept.is_some_and(|swept| now.saturating_duration_since(swept) < SWEEP) {
            return;
        }
        *swept = Some(now);
        // A part is locked while it is looked at, so nobody can take series that go.
        self.by_key.retain(|key, entry| {
            if entry.used.swap(false, Relaxed) || Arc::strong_count(&entry.series) > 1 {
                entry.used_at = now;
            }
            let stays = now.saturating_duration_since(entry.used_at) < IDLE;
            if !stays {
                forget(key, &entry.series);
            }
            stays
        });
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    #[cfg(test)]
    pub(crate) fn is_full(&self) -> bool {
        self.overflow.is_told()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Asks for the series of a model at a time, and notes which go.
    fn ask(
        table: &ClientSeries<String, ()>,
        model: &str,
        now: Instant,
        gone: &RefCell<Vec<String>>,
    ) -> Arc<()> {
        let forget = |key: &String, (): &()| gone.borrow_mut().push(key.clone());
        table.get_at(model.to_owned(), || OTHER.to_owned(), "models", |_| (), forget, now)
    }

    fn fill(
        table: &ClientSeries<String, ()>,
        name: &str,
        count: usize,
        now: Instant,
        gone: &RefCell<Vec<String>>,
    ) {
        for index in 0..count {
            ask(table, &format!("{name}-{index}"), now, gone);
        }
    }

    #[test]
    fn idle_series_make_room_and_those_in_use_stay() {
        let (table, gone, start) = (ClientSeries::default(), RefCell::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let held = ask(&table, "held", start, &gone);
        ask(&table, "used", start, &gone);
        fill(&table, "invented", 2 * MAX_LABEL_VALUES, start, &gone);
        assert_eq!(table.len(), MAX_LABEL_VALUES + 1, "and what counts as `other`");
        assert!(table.is_full() && table.find("real").is_none());
        // Nothing has been idle for long.
        for seconds in [11, 200] {
            ask(&table, "real", at(seconds), &gone);
            assert!(table.find("used").is_some() && table.find("real").is_none(), "{seconds}");
        }
        assert!(gone.borrow().is_empty());
        assert!(table.find("used").is_some());
        // A sweep finds what was used before it; the next one what was not used since.
        ask(&table, "real", at(310), &gone);
        assert!(table.find("real").is_some() && table.find("used").is_some());
        ask(&table, "more", at(400), &gone);
        assert!(["real", "used", "held"].iter().all(|name| table.find(*name).is_some()));
        assert_eq!((table.len(), gone.borrow().len()), (5, MAX_LABEL_VALUES - 2));
        drop(held);
    }

    #[test]
    fn a_few_series_stay_however_long_nobody_uses_them() {
        let (table, gone, start) = (ClientSeries::default(), RefCell::default(), Instant::now());
        fill(&table, "model", MANY - 1, start, &gone);
        ask(&table, "late", start + 100 * IDLE, &gone);
        ask(&table, "later", start + 200 * IDLE, &gone);
        assert!(gone.borrow().is_empty() && table.find("model-0").is_some());
    }

    #[test]
    fn a_long_value_is_other() {
        let table = ClientSeries::<String, ()>::default();
        let longest = "x".repeat(MAX_LABEL_BYTES);
        assert_eq!(table.label(&longest, "models"), longest);
        assert!(!table.is_full());
        assert_eq!(table.label(&format!("{longest}y"), "models"), OTHER);
        assert!(table.is_full());
    }
}
