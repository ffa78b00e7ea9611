//! The order in which endpoints were last given a prompt that they held nothing of.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use smallvec::SmallVec;
use usher_core::endpoints::{Endpoint, Slot, Snapshot, View};
use usher_plugin::{Persistent, Recent};

/// Endpoints that were given a cold prompt, in the order of their last one. An endpoint that comes
/// back under its name has a new slot, and nothing in its cache: it counts as never used.
#[derive(Default)]
pub struct ColdOrder {
    // Read by requests that no cache helps, written when one of them is sent. Both sides
    // have to change together.
    inner: RwLock<Inner>,
}

#[derive(Default)]
struct Inner {
    /// By the number of the slot.
    recent: Recent,
    /// Keep the numbers from being given to other endpoints.
    slots: HashMap<u64, Arc<Slot>>,
}

impl ColdOrder {
    /// Writes to `ranks` which of the candidates is next: 0 for the first of those that
    /// were never used, in their order, then those that were, the longest ago first.
    pub(super) fn rank(&self, candidates: View<'_>, ranks: &mut [f32]) {
        let mut used: SmallVec<[(u64, usize); 32]> = SmallVec::new();
        let mut never = 0;
        {
            let inner = self.read();
            for (position, (rank, endpoint)) in ranks.iter_mut().zip(candidates.iter()).enumerate() {
                match inner.recent.stamp(endpoint.slot().number().into()) {
                    Some(stamp) => used.push((stamp, position)),
                    None => {
                        *rank = never as f32;
                        never += 1;
                    }
                }
            }
        }
        used.sort_unstable();
        for (behind, (_, position)) in used.into_iter().enumerate() {
            if let Some(rank) = ranks.get_mut(position) {
                *rank = (never + behind) as f32;
            }
        }
    }

    /// An endpoint is given a cold prompt. The `capacity` that were used last are kept.
    pub(super) fn used(&self, endpoint: &Endpoint, capacity: usize) {
        let slot = endpoint.slot();
        let number = slot.number().into();
        let mut inner = self.write();
        if inner.recent.touch(number) {
            inner.slots.insert(number, Arc::clone(slot));
        }
        // More than one when a new configuration keeps fewer.
        while let Some(evicted) = inner.recent.evict(capacity) {
            inner.slots.remove(&evicted);
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Persistent for ColdOrder {
    fn sweep(&self, snapshot: &Snapshot, _now_ms: u64) {
        let here: HashSet<u32> = snapshot.slots().iter().copied().collect();
        let mut inner = self.write();
        let Inner { recent, slots } = &mut *inner;
        slots.retain(|number, slot| {
            let stays = here.contains(&slot.number());
            if !stays {
                recent.remove(*number);
            }
            stays
        });
    }
}

impl fmt::Debug for ColdOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ColdOrder({} endpoints)", self.read().slots.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use usher_core::endpoints::{EndpointSpec, Store};

    const ENDPOINTS: u8 = 8;

    fn pool(names: &[&str]) -> Store {
        let store = Store::default();
        replace(&store, names);
        store
    }

    fn replace(store: &Store, names: &[&str]) {
        let spec = |name: &&str| EndpointSpec::new(*name, ([10, 0, 0, name.as_bytes()[0]], 8000));
        store.replace(names.iter().map(spec).collect());
    }

    fn ranks(order: &ColdOrder, candidates: View<'_>) -> Vec<f32> {
        let mut ranks = vec![0.0; candidates.len()];
        order.rank(candidates, &mut ranks);
        ranks
    }

    #[test]
    fn removed_endpoints_are_forgotten() {
        let (store, order) = (pool(&["a", "b", "c"]), ColdOrder::default());
        let before = store.snapshot();
        for index in [1, 0, 2] {
            order.used(&before.endpoints()[index], 9);
        }
        replace(&store, &["a", "c"]);
        order.sweep(&store.snapshot(), 1);
        assert_eq!(order.read().slots.len(), 2);
        assert_eq!(ranks(&order, store.snapshot().all().view()), [0.0, 1.0]);
        // It is back under its name, and not the one that was used.
        replace(&store, &["a", "b", "c"]);
        assert_eq!(ranks(&order, store.snapshot().all().view()), [1.0, 0.0, 2.0]);
    }

    #[test]
    fn a_smaller_limit_evicts_the_oldest() {
        let (store, order) = (pool(&["a", "b", "c"]), ColdOrder::default());
        let snapshot = store.snapshot();
        for index in [0, 1, 2] {
            order.used(&snapshot.endpoints()[index], 3);
        }
        order.used(&snapshot.endpoints()[2], 1);
        assert_eq!(ranks(&order, snapshot.all().view()), [0.0, 1.0, 2.0], "a and b were never used");
        assert_eq!(order.read().slots.len(), 1);
    }

    proptest! {
        #[test]
        fn ranks_match_a_reference_list(
            uses in prop::collection::vec(0..ENDPOINTS as usize, 0..30),
            capacity in 1usize..10,
            candidates in prop::collection::btree_set(0..u32::from(ENDPOINTS), 0..ENDPOINTS as usize),
        ) {
            let names: Vec<String> = (0..ENDPOINTS).map(|index| index.to_string()).collect();
            let store = pool(&names.iter().map(String::as_str).collect::<Vec<_>>());
            let (snapshot, order) = (store.snapshot(), ColdOrder::default());
            let mut list: Vec<u32> = Vec::new();
            for index in uses {
                order.used(&snapshot.endpoints()[index], capacity);
                list.retain(|other| *other != index as u32);
                list.push(index as u32);
                if list.len() > capacity {
                    list.remove(0);
                }
            }
            let candidates: Vec<u32> = candidates.into_iter().collect();
            let mut next: Vec<u32> = candidates.iter().copied().filter(|c| !list.contains(c)).collect();
            next.extend(list.iter().copied().filter(|used| candidates.contains(used)));
            let want: Vec<f32> = candidates
                .iter()
                .map(|candidate| next.iter().position(|other| other == candidate).unwrap() as f32)
                .collect();
            prop_assert_eq!(ranks(&order, View::new(&snapshot, &candidates)), want);
        }
    }
}
