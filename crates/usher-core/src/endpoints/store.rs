//! The one writer of membership.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};
use std::sync::{Mutex, PoisonError};

use arc_swap::ArcSwap;
use tokio::sync::{Notify, watch};

use super::endpoint::Lasting;
use super::health::{Health, OutlierDetector};
use super::slot::Slots;
use super::topology::PlaceInterner;
use super::{Endpoint, EndpointSpec, Load, Snapshot};

/// Result of a replacement of the membership.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Endpoints that are new.
    pub added: usize,
    /// Endpoints that are gone.
    pub removed: usize,
    /// Endpoints whose labels, address or pod changed.
    pub updated: usize,
}

impl Change {
    /// Returns `true` if nothing changed, so that no snapshot was published.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

/// A pod of the pool that has no endpoint, as it isn't ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartingPod {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Labels of the pod.
    pub labels: BTreeMap<String, String>,
}

/// The pool's endpoints. Discovery writes, all others load the current
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
    writer: Mutex<Writer>,
    changed: watch::Sender<u64>,
    loads: Notify,
    /// Beside the membership, as no request may go there.
    starting: ArcSwap<Vec<StartingPod>>,
    /// Detector of outliers among the endpoints; `None`: they aren't watched.
    outliers: Option<Arc<OutlierDetector>>,
}

/// State that only writers need.
#[derive(Debug, Default)]
struct Writer {
    places: PlaceInterner,
    /// Uids of pods that get no new requests, as this process decided and as other replicas did.
    draining: BTreeSet<String>,
    draining_elsewhere: BTreeSet<String>,
}

impl Writer {
    fn all_draining(&self) -> BTreeSet<String> {
        self.draining.union(&self.draining_elsewhere).cloned().collect()
    }
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
            outliers: None,
        }
    }
}

impl Store {
    /// A store without endpoints; those to come are watched.
    pub fn watched(outliers: Arc<OutlierDetector>) -> Self {
        Self { outliers: Some(outliers), ..Self::default() }
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

    /// Notes that the load of an endpoint was read again.
    pub fn loads_changed(&self) {
        self.loads.notify_one();
    }

    /// Waits until a load was read anew, since this was last waited for. One at a time:
    /// of several who wait one is woken.
    pub async fn loads_change(&self) {
        self.loads.notified().await;
    }

    /// Makes the given list the membership, in one step. Endpoints are matched
    /// by `namespace/name`: one that stays keeps its slot, its load and its health, also
    /// when its labels changed. One with another address or another pod is another server, and
    /// begins anew. Of two with the same name the last counts.
    pub fn replace(&self, specs: Vec<EndpointSpec>) -> Change {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let draining = writer.all_draining();
        let places = &mut writer.places;
        let old = self.snapshot();
        let mut known: HashMap<&str, &Arc<Endpoint>> =
            old.endpoints().iter().map(|e| (e.id().as_ref(), e)).collect();
        let mut change = Change::default();
        let mut next: Vec<Arc<Endpoint>> = Vec::with_capacity(specs.len());
        for spec in last_of_each_name(specs) {
            let endpoint = match known.remove(spec.id().as_str()) {
                Some(same) if *same.spec() == spec => Arc::clone(same),
                found => {
                    *if found.is_some() { &mut change.updated } else { &mut change.added } += 1;
                    let same = found.filter(|found| found.serves(&spec));
                    let lasting = same.map_or_else(|| self.begin(&spec), |same| same.lasting());
                    let topology = places.of(&spec.labels);
                    Arc::new(Endpoint::new(spec, topology, lasting))
                }
            };
            next.push(endpoint);
        }
        change.removed = known.len();
        if !change.is_empty() {
            places.keep(next.iter().map(|endpoint| *endpoint.topology()));
            self.publish(Snapshot::draining(old.generation() + 1, next, &draining));
        }
        change
    }

    /// Gives pods with these uids no new requests, and all others some, in one step. They stay what they are
    /// in all else.
    pub fn set_draining(&self, pods: BTreeSet<String>) {
        self.drain(|writer| std::mem::replace(&mut writer.draining, pods));
    }

    /// Gives pods that other replicas are about to remove no new requests, and all others some.
    pub fn set_draining_elsewhere(&self, pods: BTreeSet<String>) {
        self.drain(|writer| std::mem::replace(&mut writer.draining_elsewhere, pods));
    }

    /// Uids of [`set_draining`](Self::set_draining).
    pub fn draining(&self) -> BTreeSet<String> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner).draining.clone()
    }

    fn drain(&self, set: impl FnOnce(&mut Writer) -> BTreeSet<String>) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let before = writer.all_draining();
        set(&mut writer);
        let now = writer.all_draining();
        if before != now {
            let old = self.snapshot();
            self.publish(Snapshot::draining(old.generation() + 1, old.endpoints().to_vec(), &now));
        }
    }

    fn publish(&self, snapshot: Snapshot) {
        let generation = snapshot.generation();
        self.current.store(Arc::new(snapshot));
        self.generation.store(generation, Release);
        self.changed.send_replace(generation);
    }

    /// Pods that are to be endpoints and aren't yet, where discovery knows of such. The same list until
    /// it changes.
    pub fn starting(&self) -> Arc<Vec<StartingPod>> {
        self.starting.load_full()
    }

    /// Replaces these pods. For sources of discovery; wakes no waiting task.
    pub fn note_starting(&self, pods: Vec<StartingPod>) {
        if **self.starting.load() != pods {
            self.starting.store(Arc::new(pods));
        }
    }

    /// State of a server of which nothing is known yet.
    fn begin(&self, spec: &EndpointSpec) -> Lasting {
        Lasting {
            slot: self.slots.take(),
            load: Arc::new(Load::default()),
            health: Arc::new(Health::new(spec.id().into(), self.outliers.clone())),
        }
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
    use crate::endpoints::{ROLE_LABEL, SubsetHint};

    fn spec(name: &str, address: &str) -> EndpointSpec {
        EndpointSpec::new(name, address.parse::<std::net::SocketAddr>().unwrap())
    }

    #[test]
    fn kept_endpoint_keeps_slot_and_load() {
        let store = Store::default();
        store.replace(vec![spec("a", "10.0.0.1:8000"), spec("b", "10.0.0.2:8000")]);
        let before = store.snapshot();
        before.endpoints()[1].load().waiting.set(7.0, 1);
        let mut labelled = spec("b", "10.0.0.2:8000");
        labelled.labels.insert("zone".to_owned(), "z".to_owned());
        let change = store.replace(vec![labelled, spec("c", "10.0.0.3:8000")]);
        assert_eq!(change, Change { added: 1, removed: 1, updated: 1 });
        let after = store.snapshot();
        let b = &after.endpoints()[0];
        assert_eq!((b.slot().number(), b.load().waiting.last()), (1, 7.0));
        assert!(Arc::ptr_eq(b.health(), before.endpoints()[1].health()));
        assert_eq!(b.label("zone"), Some("z"));
        assert_eq!(after.endpoints()[1].slot().number(), 2, "the old snapshot still holds slot 0");
        drop(before);
        store.replace(vec![spec("c", "10.0.0.3:8000"), spec("d", "10.0.0.4:8000")]);
        assert_eq!(store.snapshot().endpoints()[1].slot().number(), 0);
    }

    #[test]
    fn replaced_pod_or_address_starts_with_fresh_state() {
        let pod = |uid: &str, address| EndpointSpec { uid: Some(uid.to_owned()), ..spec("a", address) };
        let table = [
            (pod("1", "10.0.0.1:8000"), true),
            (pod("2", "10.0.0.1:8000"), false),
            (pod("1", "10.0.0.2:8000"), false),
        ];
        for (next, stays) in table {
            let store = Store::default();
            store.replace(vec![pod("1", "10.0.0.1:8000")]);
            let before = store.snapshot();
            let running = before.endpoints()[0].load().book();
            let mut next = next;
            next.labels.insert("k".to_owned(), "v".to_owned());
            let written = format!("{next:?}");
            assert_eq!(store.replace(vec![next]), Change { updated: 1, ..Change::default() });
            let after = store.snapshot();
            let (before, after) = (&before.endpoints()[0], &after.endpoints()[0]);
            assert_eq!(Arc::ptr_eq(before.slot(), after.slot()), stays, "{written}");
            assert_eq!(Arc::ptr_eq(before.health(), after.health()), stays, "{written}");
            assert_eq!(after.load().in_flight(), i64::from(stays), "{written}");
            drop(running);
            assert_eq!((before.load().in_flight(), after.load().in_flight()), (0, 0), "{written}");
        }
    }

    #[test]
    fn draining_pods_are_the_last_resort() {
        let pod =
            |name: &str, address| EndpointSpec { uid: Some(format!("u-{name}")), ..spec(name, address) };
        let all = || vec![pod("a", "10.0.0.1:8000"), pod("b", "10.0.0.2:8000")];
        let store = Store::default();
        store.replace(all());
        let mut changed = store.subscribe();
        let drain = |pods: &[&str]| store.set_draining(pods.iter().map(|pod| (*pod).to_owned()).collect());
        let seen = |entries: &[&str]| {
            let hint = SubsetHint::from_entries(entries.iter().copied());
            let candidates = store.snapshot().subset(&hint);
            candidates.view().iter().map(|endpoint| endpoint.name().to_owned()).collect::<Vec<_>>()
        };
        drain(&["u-b", "u-gone"]);
        assert!(changed.has_changed().unwrap());
        changed.mark_unchanged();
        drain(&["u-b", "u-gone"]);
        assert!(!changed.has_changed().unwrap(), "nothing is new");
        assert_eq!((store.snapshot().all().len(), store.snapshot().endpoints().len()), (1, 2));
        assert_eq!(seen(&["10.0.0.1", "10.0.0.2"]), ["a"]);
        assert_eq!(seen(&["10.0.0.2"]), ["b"], "better one that is about to go than none");
        // Another pod of this name is another, and one that comes changes nothing for the others.
        store.replace(vec![pod("c", "10.0.0.3:8000"), pod("b", "10.0.0.2:8000")]);
        assert_eq!(seen(&["10.0.0.2", "10.0.0.3"]), ["c"]);
        drain(&[]);
        assert_eq!(store.snapshot().all().len(), 2);
    }

    #[test]
    fn draining_pods_stay_while_no_other_has_their_role() {
        // Roles of draining pods, of others, and of the draining ones that stay candidates.
        let table: [(&[&str], &[&str], &[&str]); 11] = [
            (&["decode"], &["prefill"], &["decode"]),
            (&["decode", "decode"], &["prefill"], &["decode", "decode"]),
            (&["decode"], &["prefill", "decode"], &[]),
            (&["decode"], &["prefill", "both"], &[]),
            (&["decode"], &["prefill", ""], &[]),
            (&["both"], &["prefill"], &["both"]),
            (&["both"], &["prefill", "decode"], &[]),
            (&["encode", "prefill"], &["prefill-decode"], &["encode"]),
            (&["draft"], &["decode"], &["draft"]),
            (&["draft", "rank"], &["decode", "draft"], &["rank"]),
            (&["prefill", "decode"], &[], &["prefill", "decode"]),
        ];
        for (draining, others, expected) in table {
            let specs = draining.iter().chain(others).zip(1u8..).map(|(role, number)| {
                let mut pod = spec(&format!("{role}-{number}"), &format!("10.0.0.{number}:8000"));
                pod.uid = Some(number.to_string());
                if !role.is_empty() {
                    pod.labels.insert(ROLE_LABEL.to_owned(), (*role).to_owned());
                }
                pod
            });
            let store = Store::default();
            store.replace(specs.collect());
            store.set_draining((1..=draining.len()).map(|number| number.to_string()).collect());
            let snapshot = store.snapshot();
            let addresses = snapshot.endpoints().iter().map(|endpoint| endpoint.address().to_string());
            let addresses: Vec<String> = addresses.collect();
            let hint = SubsetHint::from_entries(addresses.iter().map(String::as_str));
            for candidates in [snapshot.all(), snapshot.subset(&hint)] {
                let roles =
                    candidates.view().iter().map(|endpoint| endpoint.name().rsplit_once('-').unwrap().0);
                let roles: Vec<&str> = roles.collect();
                let kept = roles.len() - others.len();
                assert_eq!((&roles[..kept], &roles[kept..]), (expected, others), "{draining:?}");
            }
        }
    }

    #[test]
    fn equal_list_does_not_notify_subscribers() {
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
    fn last_entry_of_a_duplicate_name_wins() {
        let store = Store::default();
        let change =
            store.replace(vec![spec("a", "10.0.0.1:1"), spec("b", "10.0.0.2:1"), spec("a", "10.0.0.3:1")]);
        assert_eq!(change.added, 2);
        let authorities: Vec<_> =
            store.snapshot().endpoints().iter().map(|e| e.authority().to_string()).collect();
        assert_eq!(authorities, ["10.0.0.2:1", "10.0.0.3:1"]);
    }

    #[test]
    fn subsets_match_ports_in_pools_with_several() {
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
