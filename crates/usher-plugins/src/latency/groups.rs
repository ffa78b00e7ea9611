//! Groups of a pool by the labels of their endpoints.
//!
//! A group whose last endpoint is gone stays for a day, for one that comes back, and so does one of another replica's
//! records.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use usher_core::endpoints::{Endpoint, ROLE_LABEL, Snapshot};
use usher_plugin::MalformedRecord;

use super::group::Group;
use crate::record::{RecordReader, RecordWriter};

/// Labels that name an accelerator; the first that an endpoint has counts.
const ACCELERATOR_LABELS: [&str; 4] = [
    "llm-d.ai/accelerator",
    "inference.optimization/acceleratorName",
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
];

/// Groups with endpoints at most; further endpoints share the first.
const MOST: usize = 256;

/// Groups without endpoints at most; the ones that were observed last stay.
const MOST_EMPTY: usize = 64;

/// Time for which a group without endpoints stays after its last observation, in milliseconds.
const EMPTY_MS: i64 = 24 * 3600 * 1000;

/// Labels by which endpoints are told apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct GroupKey([Option<String>; 2]);

/// Accelerator and role.
type Labels<'a> = [Option<&'a str>; 2];

fn labels(endpoint: &Endpoint) -> Labels<'_> {
    let label = |name: &str| endpoint.spec().labels.get(name).map(String::as_str);
    [ACCELERATOR_LABELS.iter().find_map(|name| label(name)), label(ROLE_LABEL)]
}

impl GroupKey {
    pub(super) fn of(endpoint: &Endpoint) -> Self {
        Self(labels(endpoint).map(|label| label.map(str::to_owned)))
    }

    fn labels(&self) -> Labels<'_> {
        [self.accelerator(), self.role()]
    }

    pub(super) fn accelerator(&self) -> Option<&str> {
        self.0[0].as_deref()
    }

    pub(super) fn role(&self) -> Option<&str> {
        self.0[1].as_deref()
    }

    /// Writes the labels.
    pub(super) fn write(&self, out: &mut RecordWriter) {
        for label in &self.0 {
            out.u8(u8::from(label.is_some()));
            out.text(label.as_deref().unwrap_or_default());
        }
    }

    /// Reads the labels of another process's group.
    pub(super) fn read(record: &mut RecordReader<'_>) -> Result<Self, MalformedRecord> {
        let mut label = || match (record.u8()?, record.text()?) {
            (0, "") => Ok(None),
            (1, text) => Ok(Some(text.to_owned())),
            _ => Err(MalformedRecord),
        };
        Ok(Self([label()?, label()?]))
    }
}

/// Groups by their labels.
#[derive(Debug)]
pub(super) struct Groups {
    /// The first group. Endpoints that nothing was sent to are taken to be as fast.
    first: Arc<Group>,
    // Taken when an endpoint is seen first, when records come, and by the sweep.
    by_key: Mutex<HashMap<GroupKey, Entry>>,
}

#[derive(Debug)]
struct Entry {
    group: Arc<Group>,
    /// An endpoint of the pool has these labels, or had them when it was seen first.
    has_endpoints: bool,
}

impl Groups {
    /// Groups of which the first computes so many prompt tokens per second.
    pub(super) fn new(rate: f64) -> Self {
        Self { first: Arc::new(Group::new(rate)), by_key: Mutex::default() }
    }

    /// The first group.
    pub(super) fn first(&self) -> &Arc<Group> {
        &self.first
    }

    /// All groups.
    pub(super) fn all(&self) -> Vec<(GroupKey, Arc<Group>)> {
        self.by_key().iter().map(|(key, entry)| (key.clone(), Arc::clone(&entry.group))).collect()
    }

    /// Expects this rate of groups that have learned nothing.
    pub(super) fn expect(&self, rate: f64) {
        self.first.expect(rate);
        self.by_key().values().for_each(|entry| entry.group.expect(rate));
    }

    /// The group of an endpoint, which expects this rate if it is new.
    pub(super) fn of(&self, endpoint: &Endpoint, rate: f64) -> Arc<Group> {
        self.get_or_make(GroupKey::of(endpoint), true, rate).unwrap_or_else(|| Arc::clone(&self.first))
    }

    /// The group of these labels, which another replica has learned, last at this time of this process's clock. `None`: no
    /// endpoint has them, and it is too old, or there are too many like that.
    pub(super) fn of_record(
        &self,
        key: GroupKey,
        observed_ms: Option<i64>,
        (snapshot, now_ms): (&Snapshot, u64),
        rate: f64,
    ) -> Option<Arc<Group>> {
        if let Some(entry) = self.by_key().get(&key) {
            return Some(Arc::clone(&entry.group));
        }
        let has_endpoints = snapshot.endpoints().iter().any(|endpoint| labels(endpoint) == key.labels());
        (has_endpoints || is_fresh(observed_ms, now_ms))
            .then(|| self.get_or_make(key, has_endpoints, rate))?
    }

    fn get_or_make(&self, key: GroupKey, has_endpoints: bool, rate: f64) -> Option<Arc<Group>> {
        let mut groups = self.by_key();
        if let Some(entry) = groups.get_mut(&key) {
            entry.has_endpoints |= has_endpoints;
            return Some(Arc::clone(&entry.group));
        }
        let alike = groups.values().filter(|entry| entry.has_endpoints == has_endpoints).count();
        if alike >= if has_endpoints { MOST } else { MOST_EMPTY } {
            return None;
        }
        let group = if groups.is_empty() { Arc::clone(&self.first) } else { Arc::new(Group::new(rate)) };
        groups.insert(key, Entry { group: Arc::clone(&group), has_endpoints });
        Some(group)
    }

    /// Drops groups of which nothing was observed for long, or of which there are too many, but those of endpoints and the first.
    pub(super) fn sweep(&self, snapshot: &Snapshot, now_ms: u64) {
        let labels: HashSet<Labels<'_>> =
            snapshot.endpoints().iter().map(|endpoint| labels(endpoint)).collect();
        let mut groups = self.by_key();
        let mut empty = Vec::new();
        groups.retain(|key, entry| {
            // An endpoint that was given other labels keeps its group, and learns in it.
            let is_held = Arc::strong_count(&entry.group) > 1 && !Arc::ptr_eq(&entry.group, &self.first);
            entry.has_endpoints = is_held || labels.contains(&key.labels());
            if entry.has_endpoints || Arc::ptr_eq(&entry.group, &self.first) {
                return true;
            }
            let observed_ms = entry.group.observed_ms();
            empty.push((Reverse(observed_ms), key.clone()));
            is_fresh(observed_ms, now_ms)
        });
        empty.sort_by_key(|(observed_ms, _)| *observed_ms);
        empty.iter().skip(MOST_EMPTY).for_each(|(_, key)| _ = groups.remove(key));
    }

    fn by_key(&self) -> MutexGuard<'_, HashMap<GroupKey, Entry>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns `true` if a group that was observed last at this time stays without endpoints.
fn is_fresh(observed_ms: Option<i64>, now_ms: u64) -> bool {
    let now_ms = i64::try_from(now_ms).unwrap_or(i64::MAX);
    observed_ms.is_some_and(|ms| now_ms.saturating_sub(ms) <= EMPTY_MS)
}

#[cfg(test)]
mod tests {
    use usher_core::endpoints::{EndpointSpec, Store};

    use super::*;

    const RATE: f64 = 16_000.0;
    const DAY: u64 = 24 * 3600 * 1000;

    fn pool(accelerators: impl IntoIterator<Item = String>) -> Arc<Snapshot> {
        let store = Store::default();
        let spec = |(number, accelerator): (u16, String)| {
            let [high, low] = number.to_be_bytes();
            let mut spec = EndpointSpec::new(format!("pod-{number}"), ([10, 0, high, low], 80));
            spec.labels.insert("llm-d.ai/accelerator".to_owned(), accelerator);
            spec
        };
        store.replace((1..).zip(accelerators).map(spec).collect());
        store.snapshot()
    }

    fn key(accelerator: &str) -> GroupKey {
        GroupKey([Some(accelerator.to_owned()), None])
    }

    fn observe(group: &Group, now_ms: u64) {
        group.first_token(0.0, 1000.0, 0.0, 0.1, 1.0, now_ms);
    }

    /// Accelerators of the groups.
    fn known(groups: &Groups) -> Vec<String> {
        let mut known: Vec<_> =
            groups.all().iter().map(|(key, _)| key.accelerator().unwrap_or_default().to_owned()).collect();
        known.sort();
        known
    }

    #[test]
    fn group_without_endpoints_is_dropped_after_a_day() {
        let (groups, pods) = (Groups::new(RATE), pool(["a", "b", "c"].map(str::to_owned)));
        for endpoint in pods.endpoints() {
            observe(&groups.of(endpoint, RATE), 1000);
        }
        observe(&groups.of(&pods.endpoints()[2], RATE), 5000);
        let (first, none) = (pool(["a".to_owned()]), pool([]));
        groups.sweep(&pods, 10 * DAY);
        assert_eq!(known(&groups), ["a", "b", "c"], "they have endpoints");
        groups.sweep(&first, 1000 + DAY);
        assert_eq!(known(&groups), ["a", "b", "c"]);
        groups.sweep(&first, 1001 + DAY);
        assert_eq!(known(&groups), ["a", "c"]);
        groups.sweep(&none, 10 * DAY);
        assert_eq!(known(&groups), ["a"], "new endpoints are taken to be as fast as the first");
        assert!(Arc::ptr_eq(&groups.of(&first.endpoints()[0], RATE), groups.first()));
    }

    #[test]
    fn group_of_an_endpoint_that_has_other_labels_now_stays() {
        let (groups, pods) = (Groups::new(RATE), pool(["a", "b"].map(str::to_owned)));
        let held: Vec<_> = pods.endpoints().iter().map(|endpoint| groups.of(endpoint, RATE)).collect();
        let relabelled = pool(["a", "a"].map(str::to_owned));
        groups.sweep(&relabelled, 10 * DAY);
        assert_eq!(known(&groups), ["a", "b"]);
        drop(held);
        groups.sweep(&relabelled, 10 * DAY);
        assert_eq!(known(&groups), ["a"]);
    }

    #[test]
    fn groups_of_records_are_bounded_and_expire() {
        let (groups, pods) = (Groups::new(RATE), pool(["a", "old"].map(str::to_owned)));
        let now_ms = 2 * DAY;
        let seconds_ago = |seconds: u64| Some((now_ms - 1000 * seconds) as i64);
        let of_record = |accelerator: &str, observed_ms| {
            groups.of_record(key(accelerator), observed_ms, (&pods, now_ms), RATE)
        };
        groups.of(&pods.endpoints()[0], RATE);
        assert!(of_record("gone", Some(-5)).is_none() && of_record("new", None).is_none());
        assert!(of_record("old", Some(-5)).is_some(), "an endpoint may be observed next");
        for number in 0..2 * MOST_EMPTY as u64 {
            let group = of_record(&format!("{number:03}"), seconds_ago(number));
            assert_eq!(group.is_some(), number < MOST_EMPTY as u64, "{number}");
            if let Some(group) = group {
                observe(&group, now_ms - 1000 * number);
            }
        }
        assert!(of_record("003", seconds_ago(0)).is_some(), "it is there");
        groups.sweep(&pods, now_ms);
        assert_eq!(groups.all().len(), 2 + MOST_EMPTY);
        // Nor do they take the place of endpoints, whose groups may lose theirs at once.
        let many = pool((0..300).map(|number| format!("gpu-{number}")));
        for endpoint in many.endpoints() {
            observe(&groups.of(endpoint, RATE), now_ms);
        }
        assert_eq!(groups.all().len(), MOST + MOST_EMPTY);
        groups.sweep(&pods, now_ms);
        assert_eq!(groups.all().len(), 2 + MOST_EMPTY, "the ones that were observed last");
        assert!(known(&groups).iter().filter(|name| name.starts_with("gpu")).count() >= MOST_EMPTY - 1);
        groups.sweep(&pods, now_ms + DAY + 1);
        assert_eq!(known(&groups), ["a", "old"]);
    }
}
