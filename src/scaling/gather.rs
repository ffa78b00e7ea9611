//! Gathers the inputs of a tick from live state.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::groups::Group;
use super::signal::{Ages, Join, Signal};
use crate::actuator::{Observed, ObservedPod, PodLoad};
use crate::capacity::{Inputs, Pod, PodState, Policy, Values, Work};
use crate::endpoints::{Endpoint, Gauge, Load, Snapshot, StartingPod};

/// Requests that are under way for so long after this process began to lead, and that it hasn't sent, are those
/// of others that go on sending, rather than of the process before.
const OF_OTHERS: Duration = Duration::from_secs(300);

/// The pods of a policy's roles. Found anew only when the pool's membership changes.
#[derive(Debug, Default)]
pub struct Members {
    /// The snapshot that they are of, and the list of those that start.
    seen: Option<(u64, Arc<Vec<StartingPod>>)>,
    pods: Vec<Member>,
    counts: Vec<u32>,
    places: Option<MemberIndex>,
    /// Endpoints that left the snapshot with requests of this process under way.
    left: Vec<Departed>,
}

/// An endpoint that left the snapshot.
#[derive(Debug)]
struct Departed {
    role: usize,
    endpoint: Arc<Endpoint>,
}

/// Pods of the cluster, as they were looked for last among the members.
#[derive(Debug)]
struct MemberIndex {
    of: Arc<Vec<ObservedPod>>,
    /// Place among the members of each pod.
    members: Vec<Option<usize>>,
    /// Places of members that are no pods of the policy.
    others: Vec<usize>,
    /// Number of pods of each role.
    counts: Vec<u32>,
}

/// A pod, with its ranks; none while it starts.
#[derive(Debug)]
struct Member {
    role: usize,
    ranks: SmallVec<[Rank; 1]>,
}

/// An endpoint of a pod.
#[derive(Debug)]
struct Rank {
    endpoint: Arc<Endpoint>,
    /// The endpoint's load, which a tick reads without going to the endpoint first.
    load: Arc<Load>,
    senders: Senders,
}

/// Origin of the requests at an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Senders {
    /// Unknown: the previous leader may have sent requests, too.
    Unknown,
    /// Others do, too, as the model server says.
    Others,
    /// Requests of this process alone, which has known all of them.
    Own,
}

impl Rank {
    /// Requests under way there; `None`: it isn't known of all.
    fn in_flight(&self, freshness: Freshness) -> Option<f64> {
        let known = known(&self.load) as f64;
        match self.senders {
            Senders::Unknown => None,
            Senders::Others => Some(known.max(freshness.under_way(&self.load)?)),
            Senders::Own => Some(known),
        }
    }
}

impl Members {
    /// Finds the pods in a snapshot and among those that start, unless they are of these. A pod belongs
    /// to the first role, by name, whose labels it has.
    pub fn follow(&mut self, policy: &Policy, snapshot: &Snapshot, starting: &Arc<Vec<StartingPod>>) {
        let is_seen = |(number, list): &(u64, Arc<Vec<StartingPod>>)| {
            *number == snapshot.number() && Arc::ptr_eq(list, starting)
        };
        if self.seen.as_ref().is_some_and(is_seen) {
            return;
        }
        self.seen = Some((snapshot.number(), Arc::clone(starting)));
        self.places = None;
        let before = std::mem::take(&mut self.pods);
        let ranks = || before.iter().flat_map(|pod| pod.ranks.iter().map(|rank| (pod.role, rank)));
        let senders: HashMap<&Arc<str>, Senders> =
            ranks().map(|(_, rank)| (rank.endpoint.identity(), rank.senders)).collect();
        let there: HashSet<&Arc<str>> = snapshot.endpoints().iter().map(|of| of.identity()).collect();
        let gone = ranks().filter(|(_, rank)| !there.contains(rank.endpoint.identity()));
        self.left.extend(gone.map(|(role, rank)| Departed { role, endpoint: Arc::clone(&rank.endpoint) }));
        self.left.retain(|left| known(left.endpoint.load()) > 0);
        self.counts = vec![0; policy.roles.len()];
        let mut places: HashMap<(&str, &str), usize> = HashMap::new();
        for endpoint in snapshot.endpoints() {
            let Some(role) = role_of(policy, &endpoint.spec().labels) else { continue };
            let place = *places.entry((endpoint.namespace(), endpoint.pod())).or_insert(self.pods.len());
            let sends = senders.get(endpoint.identity()).copied().unwrap_or(Senders::Unknown);
            let load = Arc::clone(endpoint.load());
            let rank = Rank { endpoint: Arc::clone(endpoint), load, senders: sends };
            match self.pods.get_mut(place) {
                Some(pod) => pod.ranks.push(rank),
                None => self.pods.push(Member { role, ranks: SmallVec::from_iter([rank]) }),
            }
        }
        for pod in starting.iter() {
            // The list and the snapshot are not of the same moment: it may have become ready in between.
            if places.contains_key(&(pod.namespace.as_str(), pod.name.as_str())) {
                continue;
            }
            if let Some(role) = role_of(policy, &pod.labels) {
                self.pods.push(Member { role, ranks: SmallVec::new() });
            }
        }
        for pod in &self.pods {
            if let Some(count) = self.counts.get_mut(pod.role) {
                *count += 1;
            }
        }
    }

    /// Finds these pods among them by their names, unless that was done.
    fn find(&mut self, pods: &Arc<Vec<ObservedPod>>) {
        if self.places.as_ref().is_some_and(|places| Arc::ptr_eq(&places.of, pods)) {
            return;
        }
        let named = self.pods.iter().enumerate();
        let named = named.filter_map(|(place, pod)| Some((pod.ranks.first()?.endpoint.pod(), place)));
        let named: HashMap<&str, usize> = named.collect();
        let members: Vec<Option<usize>> =
            pods.iter().map(|pod| named.get(pod.name.as_str()).copied()).collect();
        let placed: HashSet<usize> = members.iter().flatten().copied().collect();
        let others = (0..self.pods.len()).filter(|place| !placed.contains(place)).collect();
        let roles = pods.iter().map(|pod| pod.role + 1).max().unwrap_or(0);
        let mut counts = vec![0; roles];
        for pod in pods.iter() {
            if let Some(count) = counts.get_mut(pod.role) {
                *count += 1;
            }
        }
        self.places = Some(MemberIndex { of: Arc::clone(pods), members, others, counts });
    }

    /// Learns where this process knows of all requests: where no more run and wait than it has sent. `led` is
    /// how long it has been the one to send them; `is_shared`: it never is, and others say what they send, as
    /// long as the store is there.
    pub fn learn(&mut self, freshness: Freshness, led: Duration, is_shared: bool) {
        let all = self.pods.iter_mut().flat_map(|pod| &mut pod.ranks);
        for rank in all.filter(|rank| rank.senders == Senders::Unknown) {
            let load = &rank.load;
            let known = known(load) as f64;
            let is_late = led >= OF_OTHERS;
            rank.senders = match freshness.under_way(load) {
                Some(_) if is_shared => Senders::Others,
                Some(under_way) if under_way <= known => Senders::Own,
                Some(_) if is_late => Senders::Others,
                // A server that responds, and never says how many run or wait, leaves nothing to compare with.
                None if is_late && freshness.reports_none(load) => Senders::Own,
                _ => rank.senders,
            };
        }
    }

    /// Adds the loads of pods of a namespace that left the snapshot and still respond.
    pub fn add_left(&self, namespace: &str, loads: &mut HashMap<String, PodLoad>) {
        let left = self.left.iter().map(|left| &left.endpoint);
        for endpoint in left.filter(|endpoint| endpoint.namespace() == namespace) {
            let requests = known(endpoint.load());
            let pod = loads.entry(endpoint.pod().to_owned()).or_default();
            pod.is_idle &= requests == 0;
            pod.under_way = pod.under_way.saturating_add(requests);
        }
    }

    /// Number of pods of each role.
    pub fn counts(&self) -> &[u32] {
        &self.counts
    }
}

/// Loads of the pods of a namespace, by name.
pub fn pod_loads(snapshot: &Snapshot, namespace: &str, freshness: Freshness) -> HashMap<String, PodLoad> {
    let mut loads: HashMap<String, PodLoad> = HashMap::new();
    for endpoint in snapshot.endpoints().iter().filter(|endpoint| endpoint.spec().namespace == namespace) {
        let load = endpoint.load();
        let engine = freshness.under_way(load);
        // Others may send requests there, too, and not say so.
        let under_way = known(load).max(engine.unwrap_or(0.0).max(0.0) as u64);
        let fresh = PodLoad { is_idle: true, ..PodLoad::default() };
        let pod = loads.entry(endpoint.spec().pod.clone()).or_insert(fresh);
        pod.is_idle &= under_way == 0 && engine.is_some();
        pod.under_way = pod.under_way.saturating_add(under_way);
        pod.sent = pod.sent.saturating_add(load.sent());
        pod.cached = pod.cached.saturating_add(load.cached_blocks());
    }
    loads
}

/// Requests under way there as far as replicas say.
fn known(load: &Load) -> u64 {
    u64::try_from(load.in_flight().saturating_add(load.others())).unwrap_or(0)
}

/// The first role, by name, whose labels are among these.
fn role_of(policy: &Policy, labels: &BTreeMap<String, String>) -> Option<usize> {
    let has = |(key, value): (&String, &String)| labels.get(key) == Some(value);
    policy.roles.iter().position(|role| role.selector.iter().all(has))
}

/// Limit of the age of numbers, and the time.
#[derive(Clone, Copy, Debug)]
pub struct Freshness {
    /// Milliseconds on the clock of the readings.
    pub now_ms: u64,
    /// From which age on what the configuration reads no longer counts.
    pub configured: Duration,
    /// The same for what is read for policies only.
    pub scraped: Duration,
}

impl Freshness {
    /// Requests that run and wait at a model server, as it says; `None`: it hasn't said so lately.
    fn under_way(&self, load: &Load) -> Option<f64> {
        let fresh = |gauge: &Gauge| gauge.fresh(self.now_ms, self.configured);
        Some(fresh(&load.running)? + fresh(&load.waiting)?)
    }

    /// Returns `true` if a model server responds, and has never said both how many requests run and how
    /// many wait.
    fn reports_none(&self, load: &Load) -> bool {
        let is_missing = [&load.running, &load.waiting].into_iter().any(|of| of.read_at_ms().is_none());
        is_missing && load.is_fresh(self.now_ms, self.configured)
    }
}

/// Reads endpoints. Their numbers and their work are read together: of many, each is read from memory.
struct Reader<'a> {
    signals: &'a [Signal],
    freshness: Freshness,
    /// Work of each role's pods so far. One whose numbers are missing or old is taken for busy.
    work: Vec<Work>,
    /// `true` if this process knows of all requests at all of them so far.
    are_known: bool,
}

impl<'a> Reader<'a> {
    fn new(group: &'a Group, members: &Members, freshness: Freshness) -> Self {
        let mut work = vec![Work::default(); members.counts.len()];
        for left in &members.left {
            if let Some(work) = work.get_mut(left.role) {
                work.is_busy |= known(left.endpoint.load()) > 0;
            }
        }
        Self { signals: &group.signals, freshness, work, are_known: true }
    }

    /// Numbers of a pod, and whether it serves. One that is no endpoint has none.
    fn read(&mut self, member: Option<&Member>) -> (Values, bool) {
        let ranks = member.map_or(&[][..], |member| member.ranks.as_slice());
        let Freshness { now_ms, configured, scraped } = self.freshness;
        let ages = Ages { configured, scraped };
        let of = |signal: &Signal| of_pod(signal, ranks, self.freshness, ages);
        let values = self.signals.iter().map(of).collect();
        let is_serving = !ranks.is_empty() && ranks.iter().all(|rank| rank.load.is_fresh(now_ms, configured));
        if let Some(member) = member {
            self.add(member);
        }
        (values, is_serving)
    }

    /// Adds the work of a pod.
    fn add(&mut self, member: &Member) {
        let Freshness { now_ms, configured, .. } = self.freshness;
        self.are_known &= member.ranks.iter().all(|rank| rank.in_flight(self.freshness).is_some());
        let Some(work) = self.work.get_mut(member.role) else { return };
        for load in member.ranks.iter().map(|rank| &rank.load) {
            let none = |gauge: &Gauge| gauge.fresh(now_ms, configured) == Some(0.0);
            work.is_busy |= known(load) > 0 || !none(&load.running) || !none(&load.waiting);
            // The time of the others' last request moves with each of theirs.
            let elsewhere = load.sent_elsewhere_ms().unwrap_or(0);
            work.sent = work.sent.wrapping_add(load.sent()).wrapping_add(elsewhere);
        }
    }
}

/// A number of a pod. Unless all ranks have it, the pod has none.
fn of_pod(signal: &Signal, ranks: &[Rank], freshness: Freshness, ages: Ages) -> f64 {
    let value = |rank: &Rank| signal.of(&rank.load, rank.in_flight(freshness), freshness.now_ms, ages);
    let joined = ranks.iter().map(value).reduce(|a, b| match signal.join() {
        Join::Sum => a + b,
        Join::Largest if a.is_nan() || b.is_nan() => f64::NAN,
        Join::Largest => a.max(b),
    });
    joined.unwrap_or(f64::NAN)
}

/// Inputs of a tick. `replicas` is the number of pods that each role is taken to have.
pub fn gather(
    group: &Group,
    members: &Members,
    freshness: Freshness,
    replicas: Vec<u32>,
    waiting: u64,
) -> Inputs {
    let mut reader = Reader::new(group, members, freshness);
    let pod = |member: &Member| {
        // What has an endpoint is ready: discovery lists no others.
        let is_ready = !member.ranks.is_empty();
        let (values, is_serving) = if is_ready { reader.read(Some(member)) } else { Default::default() };
        let state =
            PodState { is_scheduled: is_ready, is_running: is_ready, is_serving, ..PodState::default() };
        Pod { role: member.role, is_ready, state, values }
    };
    let pods = members.pods.iter().map(pod).collect();
    let starting = replicas.iter().zip(members.counts()).map(|(all, there)| all.saturating_sub(*there));
    Inputs {
        starting: starting.collect(),
        replicas,
        pods,
        waiting,
        work: reader.work,
        is_settling: !reader.are_known,
        ..Inputs::default()
    }
}

/// Inputs of a tick where all pods are known, including those that don't serve. Pods that are endpoints have
/// numbers.
pub fn gather_observed(
    group: &Group,
    members: &mut Members,
    freshness: Freshness,
    observed: &Observed,
    waiting: u64,
) -> Inputs {
    members.find(&observed.pods);
    let members = &*members;
    let mut reader = Reader::new(group, members, freshness);
    let places = || members.places.iter();
    let pod = |(pod, place): (&ObservedPod, &Option<usize>)| {
        let (values, is_serving) = reader.read(place.and_then(|place| members.pods.get(place)));
        let is_leaving = observed.leaving.contains(&pod.name);
        let state = PodState { is_serving, is_leaving, ..pod.state };
        Pod { role: pod.role, is_ready: pod.is_ready, state, values }
    };
    let pods = observed.pods.iter().zip(places().flat_map(|places| &places.members)).map(pod).collect();
    let others = places().flat_map(|places| &places.others);
    others.filter_map(|place| members.pods.get(*place)).for_each(|member| reader.add(member));
    // Replicas without a pod: their objects were not made yet, or a quota keeps them from that.
    let listed = |role: usize| places().find_map(|places| places.counts.get(role).copied()).unwrap_or(0);
    let starting = observed.replicas.iter().enumerate().map(|(role, all)| all.saturating_sub(listed(role)));
    Inputs {
        replicas: observed.replicas.clone(),
        pods,
        starting: starting.collect(),
        waiting,
        work: reader.work,
        is_settling: !reader.are_known,
        domains: observed.domains.clone(),
        displaced: observed.displaced(),
        provisioning: observed.provisioning,
        ..Inputs::default()
    }
}

#[cfg(test)]
#[path = "gather_tests.rs"]
mod tests;
