//! Series whose labels clients choose.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dashmap::DashMap;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{MAX_LABEL_BYTES, OTHER, Overflow, SeriesRoom};

/// Time for which unused series stay, where there are many.
const IDLE: Duration = Duration::from_secs(300);

/// Pause between two sweeps of unused series.
const SWEEP: Duration = Duration::from_secs(10);

/// Series that a table has whatever others take: the first models keep theirs beside many flows.
const LEAST: usize = 16;

/// Idle series that are taken out of their families for each new one. Those that are on their way out
/// are soon gone, and no request has to wait for hundreds.
const OUT_PER_NEW: usize = 2;

/// Series that [`retain`](ClientSeries::retain) takes out of their families at once: whoever makes a
/// series meanwhile waits for so many.
const OUT_AT_ONCE: usize = 32;

type Hashed = BuildHasherDefault<ShortHasher>;

/// The series of a family by their labels, so many at most, and no more than the room of all tables is for.
/// Series unused for five minutes make room for others; a key that finds no room counts as `other`.
#[derive(Debug)]
pub struct ClientSeries<K: Eq + Hash, S> {
    /// Most series, beside those of `other`.
    most: AtomicUsize,
    /// Room of all tables.
    room: SeriesRoom,
    /// Lines of each of its series there.
    lines: usize,
    /// Idle series leave however few there are.
    expires: bool,
    by_key: DashMap<K, Entry<S>, Hashed>,
    /// Entries of `by_key`, which would lock all of its parts to count them.
    len: AtomicUsize,
    // Taken to make series and to let them go, before a part of `by_key`. Whoever finds a series
    // doesn't take it.
    leaving: Mutex<Leaving<K, S>>,
    overflow: Overflow,
}

/// Makes series of a family, and takes them out of it.
pub struct Family<'a, K, S> {
    /// Name of these series in the log.
    pub of: &'static str,
    /// The key of what finds no room.
    pub other: &'a dyn Fn() -> K,
    /// Makes the series of a key.
    pub make: &'a dyn Fn(&K) -> S,
    /// Removes series without holders from their families.
    pub forget: &'a dyn Fn(&K, &S),
}

/// Series that are in the table no more, and still in their families.
#[derive(Debug)]
struct Leaving<K, S> {
    /// The last sweep.
    swept: Option<Instant>,
    series: HashMap<K, Arc<S>, Hashed>,
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
    /// `true` if it was looked up since the last sweep.
    used: AtomicBool,
    /// Time at which a sweep last found it used.
    used_at: Instant,
}

impl<K: Eq + Hash, S> ClientSeries<K, S> {
    /// A table of at most so many series, and those of `other`.
    pub fn new(most: usize) -> Self {
        Self {
            most: AtomicUsize::new(most),
            room: SeriesRoom::default(),
            lines: 0,
            expires: false,
            by_key: DashMap::default(),
            len: AtomicUsize::new(0),
            leaving: Mutex::new(Leaving { swept: None, series: HashMap::default() }),
            overflow: Overflow::default(),
        }
    }

    /// A table of at most so many series whose idle ones leave with the next [`retain`](Self::retain) also
    /// where there are few: for gauges, which are 0 then.
    pub fn expiring(most: usize) -> Self {
        let mut table = Self::new(most);
        table.expires = true;
        table
    }

    /// The same in a room that others share. `lines`: of a page, that one series has at most, with those of the
    /// older name.
    #[must_use]
    pub fn within(mut self, room: &SeriesRoom, lines: usize) -> Self {
        debug_assert_eq!(self.len(), 0);
        (self.room, self.lines) = (room.clone(), lines);
        self
    }

    /// Sets how many there are at most, beside those of `other`.
    pub fn limit(&self, most: usize) {
        self.most.store(most, Relaxed);
    }

    /// Raises the most to so many, if it is below.
    pub fn limit_at_least(&self, most: usize) {
        self.most.fetch_max(most, Relaxed);
    }

    /// Series that are there.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    fn leaving(&self) -> MutexGuard<'_, Leaving<K, S>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` if idle ones make room. As long as there are fewer they stay: who reads a page is
    /// to find 0 for a model that rests, not nothing.
    fn are_many(&self) -> bool {
        self.len() >= self.most.load(Relaxed) / 2 || self.room.is_half_used()
    }
}

impl<K: Clone + Eq + Hash, S> ClientSeries<K, S> {
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
    /// new; beyond the bound those of `other` are.
    pub fn get(&self, key: K, family: &Family<'_, K, S>) -> Arc<S> {
        self.find(&key).unwrap_or_else(|| self.make(key, family, Instant::now()))
    }

    fn make(&self, key: K, family: &Family<'_, K, S>, now: Instant) -> Arc<S> {
        let mut leaving = self.leaving();
        if self.are_many() {
            self.sweep(now, &mut leaving);
        }
        // Those that leave let as many in; who comes back has its own.
        let fits = || self.room.fits(self.lines, leaving.series.len().saturating_mul(self.lines));
        let has_room = || self.len() < LEAST || leaving.series.contains_key(&key) || fits();
        let key = if self.len() < self.most.load(Relaxed) && has_room() {
            key
        } else {
            self.overflow.warn(family.of);
            (family.other)()
        };
        let series = match self.by_key.entry(key) {
            dashmap::Entry::Occupied(known) => {
                known.get().used.store(true, Relaxed);
                Arc::clone(&known.get().series)
            }
            dashmap::Entry::Vacant(place) => {
                let back = leaving.series.remove(place.key());
                let series = back.unwrap_or_else(|| {
                    self.room.take(self.lines);
                    Arc::new((family.make)(place.key()))
                });
                place.insert(Entry { series: Arc::clone(&series), used: true.into(), used_at: now });
                self.len.fetch_add(1, Relaxed);
                series
            }
        };
        // No part of the table is locked, and nobody makes those again meanwhile.
        self.go(&mut leaving, OUT_PER_NEW, family.forget);
        series
    }

    /// Takes series out that don't stay, by their key and whether somebody holds them, and those that
    /// nobody used for a while. For a task in the background: it looks at all of them.
    pub fn retain(&self, stays: impl Fn(&K, bool) -> bool, forget: &dyn Fn(&K, &S)) {
        let mut leaving = self.leaving();
        if self.expires || self.are_many() {
            self.sweep(Instant::now(), &mut leaving);
        }
        self.take_out(&mut leaving, |key, entry| stays(key, Arc::strong_count(&entry.series) > 1));
        while !leaving.series.is_empty() {
            self.go(&mut leaving, OUT_AT_ONCE, forget);
            drop(leaving);
            leaving = self.leaving();
        }
    }

    /// The series in the table, in no order.
    pub fn all(&self) -> Vec<Arc<S>> {
        self.by_key.iter().map(|entry| Arc::clone(&entry.series)).collect()
    }

    /// A value as a label: itself, or `other` where it is too long. `of` as with
    /// [`get`](Self::get).
    pub fn label<'a>(&self, value: &'a str, of: &'static str) -> &'a str {
        if value.len() <= MAX_LABEL_BYTES {
            return value;
        }
        self.overflow.warn(of);
        OTHER
    }

    /// Takes so many of those that leave out of their families.
    fn go(&self, leaving: &mut Leaving<K, S>, count: usize, forget: &dyn Fn(&K, &S)) {
        for (key, series) in leaving.series.extract_if(|_, _| true).take(count) {
            forget(&key, &series);
            self.room.give_back(self.lines);
        }
    }

    /// Takes the series out of the table that nobody holds and nobody used for a while.
    fn sweep(&self, now: Instant, leaving: &mut Leaving<K, S>) {
        let is_early = leaving.swept.is_some_and(|swept| now.saturating_duration_since(swept) < SWEEP);
        if is_early {
            return;
        }
        leaving.swept = Some(now);
        self.take_out(leaving, |_, entry| {
            if entry.used.swap(false, Relaxed) || Arc::strong_count(&entry.series) > 1 {
                entry.used_at = now;
            }
            now.saturating_duration_since(entry.used_at) < IDLE
        });
    }

    /// Takes the series out of the table that don't stay.
    fn take_out(&self, leaving: &mut Leaving<K, S>, mut stays: impl FnMut(&K, &mut Entry<S>) -> bool) {
        let mut count = 0;
        // A part is locked while it is looked at, so nobody can take series that go.
        self.by_key.retain(|key, entry| {
            let stays = stays(key, entry);
            if !stays {
                count += 1;
                leaving.series.insert(key.clone(), Arc::clone(&entry.series));
            }
            stays
        });
        self.len.fetch_sub(count, Relaxed);
    }

    /// Returns `true` if something had no room for a series of its own so far.
    pub fn is_full(&self) -> bool {
        self.overflow.has_warned()
    }
}

impl<K: Eq + Hash, S> Drop for ClientSeries<K, S> {
    fn drop(&mut self) {
        let left = self.len() + self.leaving().series.len();
        self.room.give_back(left.saturating_mul(self.lines));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::metrics::MAX_LABEL_VALUES;

    /// Asks for the series of a model at a time, and notes which go.
    fn ask(
        table: &ClientSeries<String, ()>,
        model: &str,
        now: Instant,
        gone: &RefCell<Vec<String>>,
    ) -> Arc<()> {
        let family = Family {
            of: "models",
            other: &|| OTHER.to_owned(),
            make: &|_| (),
            forget: &|key: &String, (): &()| {
                // Nothing is locked that others need to find theirs.
                assert!(table.by_key.try_entry(key.clone()).is_some());
                gone.borrow_mut().push(key.clone());
            },
        };
        table.find(model).unwrap_or_else(|| table.make(model.to_owned(), &family, now))
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
    fn idle_series_are_evicted_and_used_ones_stay() {
        let (table, gone, start) = (ClientSeries::new(MAX_LABEL_VALUES), RefCell::default(), Instant::now());
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
        assert_eq!(table.len(), 5);
        drop(held);
        // Those that leave do so a few at a time.
        assert!(gone.borrow().len() <= 4 * OUT_PER_NEW, "{}", gone.borrow().len());
        fill(&table, "new", MAX_LABEL_VALUES / OUT_PER_NEW, at(400), &gone);
        assert_eq!(gone.borrow().len(), MAX_LABEL_VALUES - 2);
    }

    #[tokio::test(start_paused = true)]
    async fn tables_share_a_room() {
        const LINES: usize = 10;
        let room = SeriesRoom::new(256 << 10);
        let most = room.lines() / LINES;
        let [one, other] = [0; 2].map(|_| ClientSeries::new(MAX_LABEL_VALUES).within(&room, LINES));
        let (gone, now) = (RefCell::default(), Instant::now);
        fill(&one, "first", most - LEAST, now(), &gone);
        fill(&other, "other", LEAST - 1, now(), &gone);
        let _held = ask(&other, "held", now(), &gone);
        assert_eq!((room.used(), one.is_full() || other.is_full()), (most * LINES, false));
        ask(&other, "late", now(), &gone);
        assert!(other.is_full() && other.find("late").is_none() && other.len() == LEAST + 1);
        let retain = |table: &ClientSeries<String, ()>| table.retain(|_, _| true, &|_, ()| ());
        for _ in 0..2 {
            retain(&one);
            tokio::time::advance(IDLE).await;
            assert!(one.find("first-7").is_some());
        }
        // Few in this table, but they fill the room.
        retain(&one);
        assert_eq!((one.len(), room.used()), (1, (LEAST + 2) * LINES));
        ask(&other, "late", now(), &gone);
        assert!(other.find("late").is_some());
        // The first of a table find room in a full one.
        let third = ClientSeries::new(MAX_LABEL_VALUES).within(&room, LINES);
        fill(&one, "again", most, now(), &gone);
        fill(&third, "third", LEAST, now(), &gone);
        assert!(third.find("third-15").is_some() && !third.is_full());
        drop((one, other, third));
        assert_eq!(room.used(), 0);
    }

    #[test]
    fn series_requested_during_eviction_are_restored() {
        let (table, gone, start) = (ClientSeries::new(MAX_LABEL_VALUES), RefCell::default(), Instant::now());
        fill(&table, "model", MAX_LABEL_VALUES, start, &gone);
        let series = Arc::downgrade(&ask(&table, "model-0", start, &gone));
        for seconds in [11, 400] {
            ask(&table, "new", start + Duration::from_secs(seconds), &gone);
        }
        assert_eq!((table.len(), table.find("model-0").is_none()), (2, true));
        let back = ask(&table, "model-0", start + Duration::from_secs(400), &gone);
        assert_eq!(series.as_ptr(), Arc::as_ptr(&back));
        fill(&table, "more", MAX_LABEL_VALUES / OUT_PER_NEW, start + Duration::from_secs(400), &gone);
        assert_eq!(gone.borrow().len(), MAX_LABEL_VALUES - 1);
        assert!(!gone.borrow().contains(&"model-0".to_owned()) && table.find("model-0").is_some());
    }

    #[test]
    fn concurrent_threads_keep_series_counts_exact() {
        let table = ClientSeries::<String, ()>::new(MAX_LABEL_VALUES);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let table = &table;
                scope.spawn(move || {
                    let gone = RefCell::default();
                    for index in 0..2 * MAX_LABEL_VALUES {
                        let name = format!("{}-{index}", thread % 2);
                        ask(table, &name, Instant::now(), &gone);
                    }
                });
            }
        });
        assert_eq!((table.len(), table.by_key.len()), (MAX_LABEL_VALUES + 1, MAX_LABEL_VALUES + 1));
    }

    #[test]
    fn few_idle_series_are_kept() {
        let (table, gone, start) = (ClientSeries::new(MAX_LABEL_VALUES), RefCell::default(), Instant::now());
        fill(&table, "model", MAX_LABEL_VALUES / 2 - 1, start, &gone);
        ask(&table, "late", start + 100 * IDLE, &gone);
        ask(&table, "later", start + 200 * IDLE, &gone);
        assert!(gone.borrow().is_empty() && table.find("model-0").is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn few_idle_series_of_an_expiring_table_leave_unless_held() {
        let (table, gone) = (ClientSeries::expiring(MAX_LABEL_VALUES), RefCell::default());
        let held = ask(&table, "held", Instant::now(), &gone);
        fill(&table, "idle", 3, Instant::now(), &gone);
        let retain = || {
            let forget = |key: &String, (): &()| gone.borrow_mut().push(key.clone());
            table.retain(|key, is_held| is_held || key != "idle-0", &forget);
        };
        retain();
        assert_eq!(*gone.borrow(), ["idle-0"], "and held ones stay");
        tokio::time::advance(IDLE - Duration::from_secs(1)).await;
        retain();
        assert_eq!(table.len(), 3);
        // Asking for a series leaves the others where they are: that is for the background.
        tokio::time::advance(2 * IDLE).await;
        ask(&table, "new", Instant::now(), &gone);
        assert_eq!(table.len(), 4);
        retain();
        assert_eq!((table.len(), gone.borrow().len()), (2, 3));
        drop(held);
    }

    #[tokio::test(start_paused = true)]
    async fn transient_keys_and_idle_series_are_swept() {
        let (table, gone) = (ClientSeries::new(100), RefCell::default());
        fill(&table, "gone", 40, Instant::now(), &gone);
        fill(&table, "idle", 60, Instant::now(), &gone);
        let _held = ask(&table, "gone-0", Instant::now(), &gone);
        let retain = || {
            let forget = |key: &String, (): &()| gone.borrow_mut().push(key.clone());
            table.retain(|key, _| !key.starts_with("gone"), &forget);
        };
        retain();
        assert_eq!((table.len(), table.by_key.len()), (60, 60), "also one that somebody holds");
        assert!(gone.borrow().len() == 40 && gone.borrow().iter().all(|key| key.starts_with("gone")));
        retain();
        assert_eq!(gone.borrow().len(), 40);
        for _ in 0..2 {
            tokio::time::advance(IDLE).await;
            assert!(table.find("idle-7").is_some());
            retain();
        }
        assert_eq!((table.len(), gone.borrow().len()), (1, 99));
    }

    #[test]
    fn long_label_value_counts_as_other() {
        let table = ClientSeries::<String, ()>::new(MAX_LABEL_VALUES);
        let longest = "x".repeat(MAX_LABEL_BYTES);
        assert_eq!(table.label(&longest, "models"), longest);
        assert!(!table.is_full());
        assert_eq!(table.label(&format!("{longest}y"), "models"), OTHER);
        assert!(table.is_full());
    }
}
