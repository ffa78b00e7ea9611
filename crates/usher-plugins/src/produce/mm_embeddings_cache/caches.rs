//! The items that each endpoint has encoded, as far as its cache holds them.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use usher_core::endpoints::{Candidates, Endpoint, Slot, Snapshot};
use usher_core::request::estimate::Medium;
use usher_plugin::{Persistent, Recent};

use super::metrics::{Counters, EncoderFamilies};

/// The encoder caches of a pool, each as large as its configuration says. An endpoint that
/// comes back under its name has a new slot, and nothing in its cache.
pub struct EncoderCaches {
    // Taken for a moment by requests with images, videos or clips: to look them up, and
    // to record them. Both sides of the index have to change together.
    caches: Mutex<Caches>,
}

struct Caches {
    by_slot: HashMap<u32, Cache>,
    /// The slots whose caches hold an item.
    holders: HashMap<u64, SmallVec<[u32; 4]>>,
    counters: Counters,
}

struct Cache {
    /// Keeps the number from being given to another endpoint.
    _slot: Arc<Slot>,
    recent: Recent,
}

/// A slot that is none of the candidates'.
const NOWHERE: u32 = u32::MAX;

impl EncoderCaches {
    /// No caches yet; counts in `families` under the name of a plugin.
    pub fn new(families: Arc<EncoderFamilies>, plugin: &str) -> Self {
        let counters = Counters::new(families, plugin);
        Self { caches: Mutex::new(Caches { by_slot: HashMap::new(), holders: HashMap::new(), counters }) }
    }

    /// Number of some items that each candidate has, by its position in the snapshot. No
    /// item may be there twice.
    pub(super) fn find(&self, items: &[Medium], candidates: &Candidates) -> Vec<u32> {
        let endpoints = candidates.snapshot().endpoints();
        let mut caches = self.lock();
        let Caches { holders, counters, .. } = &mut *caches;
        let mut matched = vec![0; endpoints.len()];
        let mut positions = Vec::new();
        let mut found = 0;
        for item in items {
            counters.query(item.modality);
            let Some(slots) = holders.get(&item.hash) else { continue };
            if positions.is_empty() {
                positions = by_slot(candidates);
            }
            let mut anywhere = false;
            for slot in slots {
                let position = positions.get(*slot as usize).copied().unwrap_or(NOWHERE) as usize;
                if let (Some(count), Some(endpoint)) = (matched.get_mut(position), endpoints.get(position)) {
                    *count += 1;
                    anywhere = true;
                    counters.hit(endpoint.name(), item.modality);
                }
            }
            found += usize::from(anywhere);
        }
        counters.request(found, items.len());
        matched
    }

    /// An endpoint gets items, the most recently used of which its cache keeps.
    pub(super) fn record(&self, endpoint: &Endpoint, items: &[u64], capacity: usize) {
        let slot = endpoint.slot();
        let mut caches = self.lock();
        let Caches { by_slot, holders, .. } = &mut *caches;
        let cache = by_slot
            .entry(slot.number())
            .or_insert_with(|| Cache { _slot: Arc::clone(slot), recent: Recent::default() });
        for item in items {
            if cache.recent.touch(*item) {
                holders.entry(*item).or_default().push(slot.number());
            }
            // More than one when a new configuration has smaller caches.
            while let Some(evicted) = cache.recent.evict(capacity) {
                let_go(holders, evicted, slot.number());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Caches> {
        self.caches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Positions in the snapshot by slot; [`NOWHERE`] for what is no candidate.
fn by_slot(candidates: &Candidates) -> Vec<u32> {
    let endpoints = candidates.snapshot().endpoints();
    let mut positions = vec![NOWHERE; endpoints.len()];
    for &position in candidates.indices() {
        let Some(endpoint) = endpoints.get(position as usize) else { continue };
        let slot = endpoint.slot().number() as usize;
        if positions.len() <= slot {
            positions.resize(slot + 1, NOWHERE);
        }
        positions[slot] = position;
    }
    positions
}

fn let_go(holders: &mut HashMap<u64, SmallVec<[u32; 4]>>, item: u64, slot: u32) {
    if let Some(slots) = holders.get_mut(&item) {
        slots.retain(|held| *held != slot);
        if slots.is_empty() {
            holders.remove(&item);
        }
    }
}

impl Persistent for EncoderCaches {
    fn sweep(&self, snapshot: &Snapshot, _now_ms: u64) {
        let slots: HashSet<u32> = snapshot.endpoints().iter().map(|e| e.slot().number()).collect();
        let names: HashSet<&str> = snapshot.endpoints().iter().map(|e| e.name()).collect();
        let mut caches = self.lock();
        let Caches { by_slot, holders, counters } = &mut *caches;
        by_slot.retain(|slot, cache| {
            let stays = slots.contains(slot);
            if !stays {
                cache.recent.items().for_each(|item| let_go(holders, item, *slot));
            }
            stays
        });
        counters.retain(|name| names.contains(name));
    }
}

impl fmt::Debug for EncoderCaches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let caches = self.lock();
        write!(f, "EncoderCaches({} endpoints, {} items)", caches.by_slot.len(), caches.holders.len())
    }
}

#[cfg(test)]
#[path = "caches_tests.rs"]
mod tests;
