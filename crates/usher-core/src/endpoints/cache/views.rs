//! Views that are kept: a fixed number of places, read without a lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::{ArcSwapOption, Guard};

use crate::endpoints::{Candidates, SubsetHint};
use crate::metrics::{PARTS, part};

/// Candidates that were found for a hint.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) hint: SubsetHint,
    /// Generation of the membership, read before the candidates were looked for.
    pub(super) generation: u64,
    /// Time at which they were found, since the start of the clock.
    pub(super) found: Duration,
    candidates: Candidates,
    /// Clones with a reference count per group of threads, so that counting doesn't contend with other
    /// groups. Made at a group's first use.
    apart: [OnceLock<Candidates>; PARTS],
}

impl Held {
    pub(super) fn new(hint: SubsetHint, generation: u64, found: Duration, candidates: Candidates) -> Self {
        Self { hint, generation, found, candidates, apart: Default::default() }
    }

    /// The candidates, for this thread.
    pub(super) fn candidates(&self) -> Candidates {
        match self.apart.get(part()) {
            Some(own) => own.get_or_init(|| self.candidates.apart()).clone(),
            None => self.candidates.clone(),
        }
    }
}

/// Places of a set: their fingerprints are one cache line.
const WAYS: usize = 8;

/// Views under their hints, in sets of eight places. A hint's fingerprint says which set is
/// its own. Where that is full, what was found first makes room, so the number of views
/// can't pass that of the places, whatever is asked for and by how many at once.
#[derive(Debug)]
pub(super) struct Views {
    places: Box<[ArcSwapOption<Held>]>,
    /// The fingerprint of what is in each place: most are told apart by it alone.
    fingerprints: Box<[AtomicU64]>,
    ways: usize,
}

impl Views {
    /// Room for so many views at most.
    pub(super) fn new(most: usize) -> Self {
        let ways = most.clamp(1, WAYS);
        let places = most / ways * ways;
        Self {
            places: (0..places).map(|_| ArcSwapOption::empty()).collect(),
            fingerprints: (0..places).map(|_| AtomicU64::new(0)).collect(),
            ways,
        }
    }

    /// The view that is held under this hint.
    pub(super) fn get(&self, hint: &SubsetHint) -> Option<Guard<Option<Arc<Held>>>> {
        let fingerprint = hint.fingerprint();
        let set = self.set(fingerprint);
        let places = self.places.get(set..set + self.ways)?.iter();
        places
            .zip(self.fingerprints.get(set..set + self.ways)?)
            .filter(|(_, of)| of.load(Relaxed) == fingerprint)
            .map(|(place, _)| place.load())
            .find(|held| held.as_ref().is_some_and(|held| held.hint == *hint))
    }

    /// Keeps a view. It takes the place of the one with the same hint, an empty one, that of
    /// one that is not `good` any more, or else that of the oldest in its set. Returns
    /// whether one had to go that was good.
    pub(super) fn put(&self, held: Arc<Held>, good: impl Fn(&Held) -> bool) -> bool {
        let fingerprint = held.hint.fingerprint();
        let set = self.set(fingerprint);
        let rank = |place: &ArcSwapOption<Held>| match &*place.load() {
            Some(there) if there.hint == held.hint => (0, Duration::ZERO),
            None => (1, Duration::ZERO),
            Some(there) if !good(there) => (2, there.found),
            Some(there) => (3, there.found),
        };
        let ranked = self.places.iter().enumerate().skip(set).take(self.ways);
        let Some(((rank, _), at)) = ranked.map(|(at, place)| (rank(place), at)).min() else {
            return false;
        };
        // A look-up between the two finds a place without its fingerprint, or the other way
        // round, and compares the hint in the end: it misses at worst.
        self.places[at].store(Some(held));
        self.fingerprints[at].store(fingerprint, Relaxed);
        rank == 3
    }

    /// Empties the places of what is not `good` any more.
    pub(super) fn retain(&self, good: impl Fn(&Held) -> bool) {
        self.places.iter().for_each(|place| empty_unless(place, &good));
    }

    /// Views that are held.
    pub(super) fn len(&self) -> usize {
        self.places.iter().filter(|place| place.load().is_some()).count()
    }

    /// Position of a fingerprint's set.
    fn set(&self, fingerprint: u64) -> usize {
        let sets = self.places.len() / self.ways;
        // The product's upper half: evenly spread, without a division.
        ((u128::from(fingerprint) * sets as u128) >> 64) as usize * self.ways
    }
}

/// Empties a place of what is not `good` any more.
pub(super) fn empty_unless(place: &ArcSwapOption<Held>, good: impl Fn(&Held) -> bool) {
    let held = place.load();
    if held.as_ref().is_some_and(|held| !good(held)) {
        // Only the view that was looked at: somebody may have put a new one there.
        place.compare_and_swap(&*held, None);
    }
}
