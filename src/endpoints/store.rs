//! The one writer of membership.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};
use std::sync::{Mutex, PoisonError};

use arc_swap::ArcSwap;
use tokio::sync::{Notify, watch};

use super::endpoint::Lasting;
use super::health::{Health, Ward};
use super::slot::Slots;
use super::topology::Places;
use super::{Endpoint, EndpointSpec, Load, Snapshot};

/// What a replacement of the membership did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Endpoints that are new.
    pub added: usize,
    /// Endpoints that are gone.
    pub removed: usize,
    /// Endpoints whose address or labels changed.
    pub updated: usize,
}

impl Change {
    /// Nothing changed, so no snapshot was published.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// A pod of the pool that has no endpoint, as it isn't ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartingPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// The pool's endpoints. Discovery writes, everybody else loads the current
/// [`Snapshot`] without a lock.
#[derive(Debug)]
pub struct Store {
    current: ArcSwap<Snapshot>,
    /// The generation of `current`, or the one before while it is being replaced: whoever
    /// reads a number here finds a snapshot of that generation or a later one.
    generation: AtomicU64,
    slots: Slots,
    // Serialises writers, so that two sources of discovery can't lose each
    // other's change. Guards what only they need; readers never take it.
    writer: Mutex<Places>,
    changed: watch::Sender<u64>,
    loads: Notify,
    /// Beside the membership, as no request may go there.
    starting: ArcSwap<Vec<StartingPod>>,
    /// Who watches over the endpoints; `None`: nobody.
    ward: Option<Arc<Ward>>,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            current: ArcSwap::from_pointee(Snapshot::new(0, Vec::new())),
            generation: AtomicU64::new(0),
            slots: Slots::default(),
            writer: Mutex::default(),
            changed: watch::Sender::new(0),
            loads: Notify::new(),
            starting: ArcSwap::default(),
            ward: None,
        }
    }
}

impl Store {
    /// A store without endpoints; those to come are watched.
    pub fn watched(ward: Arc<Ward>) -> Self {
        Self { ward: Some(ward), ..Self::default() }
    }

    /// The current membership.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// The current generation, without a look at the snapshot.
    pub fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    /// Wakes with the new generation whenever membership changes.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Says that the load of an endpoint was read anew.
    pub fn loads_changed(&self) {
        self.loads.notify_one();
    }

    /// Waits until a load was read anew, since this was last waited for. One at a time:
    /// of several who wait one is woken.
    pub async fn loads_change(&self) {
        self.loads.notified().await;
    }

    /// Makes the given list the membership, in one step. Endpoints are matched
    /// by `namespace/name`: one that stays keeps its slot and its load, also
    /// when its address or labels changed. Of two with the same name the last counts.
    pub fn replace(&self, specs: Vec<EndpointSpec>) -> Change {
        let mut places = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.snapshot();
        let mut known: HashMap<&str, &Arc<Endpoint>> =
            old.endpoints().iter().map(|e| (e.id().as_ref(), e)).collect();
        let mut change = Change::default();
        let mut next: Vec<Arc<Endpoint>> = Vec::with_capacity(specs.len());
        for spec in last_of_each_name(specs) {
            let endpoint = match known.remove(spec.id().as_str()) {
                Some(same) if *same.spec() == spec => Arc::clone(same),
                Some(other) => {
                    change.updated += 1;
                    let (slot, load) = (Arc::clone(other.slot()), Arc::clone(other.load()));
                    let moved = other.address() != spec.address || other.spec().uid != spec.uid;
                    let health = if moved { self.health(spec.id()) } else { Arc::clone(other.health()) };
                    let topology = places.of(&spec.labels);
                    let incarnation = other.incarnation() + u64::from(moved);
                    Arc::new(Endpoint::new(spec, topology, Lasting { slot, load, health, incarnation }))
                }
                None => {
                    change.added += 1;
                    let topology = places.of(&spec.labels);
                    let (slot, load) = (self.slots.take(), Arc::new(Load::default()));
                    let health = self.health(spec.id());
                    let lasting = Lasting { slot, load, health, incarnation: 0 };
                    Arc::new(Endpoint::new(spec, topology, lasting))
                }
            };
            next.push(endpoint);
        }
        change.removed = known.len();
        if !change.is_empty() {
            places.keep(next.iter().map(|endpoint| *endpoint.topology()));
            let generation = old.generation() + 1;
            self.current.store(Arc::new(Snapshot::new(generation, next)));
            self.generation.store(generation, Release);
            self.changed.send_replace(generation);
        }
        change
    }

    /// Pods that are to be endpoints and aren't yet, where discovery knows of such. The same list until
    /// it changes.
    pub fn starting(&self) -> Arc<Vec<StartingPod>> {
        self.starting.load_full()
    }

    /// Replaces these pods. One source of discovery calls it; nobody is woken.
    pub fn note_starting(&self, pods: Vec<StartingPod>) {
        if **self.starting.load() != pods {
            self.starting.store(Arc::new(pods));
        }
    }

    fn health(&self, id: String) -> Arc<Health> {
        Arc::new(Health::new(id.into(), self.ward.clone()))
    }
}

/// Drops all but the last spec of each name, keeping the order.
fn last_of_each_name(specs: Vec<EndpointSpec>) -> Vec<EndpointSpec> {
    let last: HashMap<String, usize> = specs.iter().map(EndpointSpec::id).zip(0..).collect();
    if last.len() == specs.len() {
        return specs;
    }
    let counts = |(index, spec): &(usize, EndpointSpec)| last.get(&spec.id()) == Some(index);
    specs.into_iter().enumerate().filter(counts).map(|(_, spec)| spec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::SubsetHint;

    fn spec(name: &str, address: &str) -> EndpointSpec {
        EndpointSpec::new(name, address.parse::<std::net::SocketAddr>().unwrap())
    }

    #[test]
    fn what_stays_keeps_slot_and_load() {
        let store = Store::default();
        store.replace(vec![spec("a", "10.0.0.1:8000"), spec("b", "10.0.0.2:8000")]);
        let before = store.snapshot();
        before.endpoints()[1].load().waiting.set(7.0, 1);
        let change = store.replace(vec![spec("b", "10.0.0.9:8000"), spec("c", "10.0.0.3:8000")]);
        assert_eq!(change, Change { added: 1, removed: 1, updated: 1 });
        let after = store.snapshot();
        let b = &after.endpoints()[0];
        assert_eq!((b.slot().number(), b.load().waiting.last()), (1, 7.0));
        assert_eq!(b.authority().as_ref(), "10.0.0.9:8000");
        assert_eq!(after.endpoints()[1].slot().number(), 2, "the old snapshot still holds slot 0");
        drop(before);
        store.replace(vec![spec("c", "10.0.0.3:8000"), spec("d", "10.0.0.4:8000")]);
        assert_eq!(store.snapshot().endpoints()[1].slot().number(), 0);
    }

    #[test]
    fn an_equal_list_changes_nothing_and_wakes_nobody() {
        let store = Store::default();
        let mut changed = store.subscribe();
        store.replace(vec![spec("a", "10.0.0.1:8000")]);
        assert!(changed.has_changed().unwrap());
        changed.mark_unchanged();
        assert!(store.replace(vec![spec("a", "10.0.0.1:8000")]).is_empty());
        assert!(!changed.has_changed().unwrap());
        assert_eq!(store.generation(), 1);
    }

    #[test]
    fn the_last_of_a_duplicated_name_counts() {
        let store = Store::default();
        let change =
            store.replace(vec![spec("a", "10.0.0.1:1"), spec("b", "10.0.0.2:1"), spec("a", "10.0.0.3:1")]);
        assert_eq!(change.added, 2);
        let authorities: Vec<_> =
            store.snapshot().endpoints().iter().map(|e| e.authority().to_string()).collect();
        assert_eq!(authorities, ["10.0.0.2:1", "10.0.0.3:1"]);
    }

    #[test]
    fn subsets_match_by_address_and_by_port_where_the_pool_has_several() {
        let one_port = Store::default();
        one_port.replace(vec![
            spec("a", "10.0.0.1:8000"),
            spec("b", "10.0.0.2:8000"),
            spec("c", "[fd00::1]:8000"),
        ]);
        let ranks = Store::default();
        ranks.replace(vec![
            spec("a", "10.0.0.1:8000"),
            spec("b", "10.0.0.1:8001"),
            spec("c", "10.0.0.2:8000"),
        ]);
        // store, entries, names
        let table: [(&Store, &[&str], &[&str]); 9] = [
            (&one_port, &["10.0.0.1:8000"], &["a"]),
            (&one_port, &["10.0.0.1:9999"], &["a"]),
            (&one_port, &["10.0.0.1"], &["a"]),
            (&one_port, &["[fd00::1]:8000", "10.0.0.2"], &["b", "c"]),
            (&one_port, &["10.0.0.9"], &[]),
            (&ranks, &["10.0.0.1:8001"], &["b"]),
            (&ranks, &["10.0.0.1"], &["a", "b"]),
            (&ranks, &["10.0.0.1:9999"], &[]),
            (&ranks, &["10.0.0.2:8001"], &[]),
        ];
        for (store, entries, names) in table {
            let candidates = store.snapshot().subset(&SubsetHint::from_entries(entries.iter().copied()));
            let got: Vec<_> = candidates.view().iter().map(|e| e.name().to_owned()).collect();
            assert_eq!(got, names, "{entries:?}");
        }
        assert_eq!(ranks.snapshot().subset(&SubsetHint::Missing).len(), 3);
        assert_eq!(ranks.snapshot().subset(&SubsetHint::from_entries([])).len(), 0);
    }
}
