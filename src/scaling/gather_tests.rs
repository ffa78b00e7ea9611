//! Pods, their numbers and their work, from endpoints.

use super::*;
use crate::capacity::policy::file;
use crate::endpoints::{EndpointSpec, Store};

const SECOND: Duration = Duration::from_secs(1);

fn group(signals: Vec<Signal>) -> Group {
    let text = "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {name: p}\nspec:\n  roles: {a: {max: 5, selector: {tier: gold, zone: x}}, b: {max: 5, selector: {tier: gold}}}\n";
    Group { policy: Arc::new(file::parse(text).unwrap().remove(0).policy), signals, frozen: None }
}

fn spec(pod: &str, rank: u8, labels: &[(&str, &str)]) -> EndpointSpec {
    let labels: BTreeMap<_, _> =
        labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let name = format!("{pod}-rank-{rank}");
    let address = ([10, 0, 0, rank], 8000 + pod.len() as u16);
    EndpointSpec { pod: pod.to_owned(), labels, ..EndpointSpec::new(name, address) }
}

/// Sets all endpoints to idle.
fn rest(snapshot: &Snapshot, now_ms: u64) {
    for load in snapshot.endpoints().iter().map(|endpoint| endpoint.load()) {
        load.waiting.set(0.0, now_ms);
        load.running.set(0.0, now_ms);
    }
}

#[test]
fn ranks_of_a_pod_count_as_one_pod() {
    let store = Store::default();
    let gold = &[("tier", "gold")][..];
    let both = &[("tier", "gold"), ("zone", "x")][..];
    store.replace(vec![
        spec("one", 0, gold),
        spec("two", 0, both),
        spec("one", 1, gold),
        spec("other", 0, &[("tier", "tin")]),
    ]);
    let snapshot = store.snapshot();
    let load = |index: usize| snapshot.endpoints()[index].load();
    let mut members = Members::default();
    let at = |now_ms| Freshness { now_ms, configured: SECOND, scraped: SECOND };
    let policy = group(Vec::new()).policy;
    members.follow(&policy, &snapshot, &store.starting());
    rest(&snapshot, 500);
    members.learn(at(500), Duration::ZERO, false);
    load(0).waiting.set(3.0, 1_000);
    load(2).waiting.set(4.0, 1_000);
    load(0).kv_usage.set(0.25, 1_000);
    load(2).kv_usage.set(0.75, 900);
    load(1).waiting.set(9.0, 1_000);
    load(1).kv_usage.set(0.5, 999);
    load(1).first_token.blend(0.5, 1_000);
    let running = load(1).book();
    let signals = vec![Signal::Waiting, Signal::KvUsage, Signal::InFlight, Signal::FirstToken];
    let group = group(signals);
    let starting = |pods: &[(&str, &[(&str, &str)])]| {
        let labels = |list: &[(&str, &str)]| -> BTreeMap<String, String> {
            list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let pod = |(name, list): &(&str, &[(&str, &str)])| StartingPod {
            namespace: "default".to_owned(),
            name: (*name).to_owned(),
            labels: labels(list),
        };
        Arc::new(pods.iter().map(pod).collect::<Vec<_>>())
    };
    members.follow(&group.policy, &snapshot, &store.starting());
    assert_eq!(members.counts(), [1, 1], "a pod belongs to the first role whose labels it has");
    let inputs = gather(&group, &members, at(2_000), vec![1, 1], 5);
    let values: Vec<(usize, &[f64])> = inputs.pods.iter().map(|pod| (pod.role, &*pod.values)).collect();
    assert_eq!(values[0].1[0], 7.0);
    assert!(values[0].1[1].is_nan(), "one of its ranks is stale");
    // No first token is awaited there.
    assert_eq!(values[0].1[2..], [0.0, 0.0]);
    assert!(values[1].1[1].is_nan() && values[1].1[0] == 9.0, "{values:?}");
    assert_eq!((values[1].0, &values[1].1[2..]), (0, &[1.0, 0.5][..]));
    assert_eq!((inputs.waiting, inputs.replicas.as_slice()), (5, &[1, 1][..]));
    let later = gather(&group, &members, at(61_001), vec![1, 1], 0);
    assert!(later.pods[1].values[3].is_nan(), "what it took is old, and somebody waits");
    // Those that start are there and serve nobody; one that became ready meanwhile counts once.
    let list = starting(&[("new", both), ("two", both), ("newer", gold), ("tin", &[("tier", "tin")])]);
    members.follow(&group.policy, &snapshot, &list);
    assert_eq!(members.counts(), [2, 2]);
    let inputs = gather(&group, &members, at(2_000), vec![2, 2], 0);
    let work = |now_ms| gather(&group, &members, at(now_ms), vec![2, 2], 0).work;
    let busy = |now_ms| work(now_ms).iter().map(|work| work.is_busy).collect::<Vec<_>>();
    assert_eq!(busy(2_000), [true, true]);
    for load in [load(0), load(1), load(2)] {
        load.waiting.set(0.0, 3_000);
        load.running.set(0.0, 3_000);
    }
    assert_eq!(busy(3_500), [true, false], "a request of this process is under way");
    assert_eq!(busy(4_001), [true, true], "who has old numbers may be busy");
    drop(running);
    assert_eq!(busy(3_500), [false, false]);
    assert_eq!(work(3_500)[0].sent, 1);
    let ready: Vec<(usize, bool)> = inputs.pods.iter().map(|pod| (pod.role, pod.is_ready)).collect();
    assert_eq!(ready, [(1, true), (0, true), (0, false), (1, false)]);
    assert!(inputs.pods[2].values.is_empty());
    store.replace(vec![spec("one", 0, gold)]);
    members.follow(&group.policy, &store.snapshot(), &starting(&[]));
    assert_eq!(members.counts(), [0, 1]);
}

fn pod(role: usize, name: &str) -> ObservedPod {
    ObservedPod { role, name: name.to_owned(), is_ready: true, state: PodState::default() }
}

#[test]
fn pods_have_the_numbers_of_their_endpoints() {
    let (store, group) = (Store::default(), group(vec![Signal::Waiting, Signal::InFlight]));
    let (mut members, mut observed) = (Members::default(), Observed::default());
    observed.replicas = vec![1, 1];
    observed.pods = vec![pod(0, "one"), pod(1, "two")].into();
    let at = Freshness { now_ms: 1_000, configured: SECOND, scraped: SECOND };
    let mut look = |pods: &[&str]| {
        store.replace(pods.iter().map(|pod| spec(pod, 0, &[("tier", "gold")])).collect());
        let snapshot = store.snapshot();
        members.follow(&group.policy, &snapshot, &store.starting());
        rest(&snapshot, 1_000);
        members.learn(at, Duration::ZERO, false);
        for (endpoint, waiting) in snapshot.endpoints().iter().zip([4.0, 6.0]) {
            endpoint.load().waiting.set(waiting, 1_000);
        }
        let inputs = gather_observed(&group, &mut members, at, &observed, 0);
        let of = |pod: &Pod| pod.values.iter().map(|value| (!value.is_nan()).then_some(*value)).collect();
        inputs.pods.iter().map(of).collect::<Vec<Vec<Option<f64>>>>()
    };
    let (none, of) = (vec![None, None], |waiting| vec![Some(waiting), Some(0.0)]);
    assert_eq!(look(&["two", "other"]), [none.clone(), of(4.0)]);
    assert_eq!(look(&["one", "two"]), [of(4.0), of(6.0)]);
    assert_eq!(look(&["one"]), [of(4.0), none]);
}

#[test]
fn endpoints_without_an_observed_pod_count_as_busy() {
    let (store, group) = (Store::default(), group(vec![Signal::Waiting]));
    let (mut members, mut observed) = (Members::default(), Observed::default());
    observed.replicas = vec![1, 1];
    observed.pods = vec![pod(0, "one"), pod(1, "two")].into();
    let at = Freshness { now_ms: 1_000, configured: SECOND, scraped: SECOND };
    store.replace(["two", "other"].map(|pod| spec(pod, 0, &[("tier", "gold")])).into());
    let snapshot = store.snapshot();
    members.follow(&group.policy, &snapshot, &store.starting());
    let mut work = |running: [f64; 2]| {
        for (endpoint, running) in snapshot.endpoints().iter().zip(running) {
            endpoint.load().waiting.set(0.0, 1_000);
            endpoint.load().running.set(running, 1_000);
        }
        let inputs = gather_observed(&group, &mut members, at, &observed, 0);
        (inputs.work.iter().map(|work| work.is_busy).collect::<Vec<_>>(), inputs.is_settling)
    };
    for (running, is_busy) in [([0.0, 0.0], false), ([1.0, 0.0], true), ([0.0, 1.0], true)] {
        assert_eq!(work(running), (vec![false, is_busy], true), "{running:?}");
    }
    members.learn(at, OF_OTHERS, false);
    assert!(!gather_observed(&group, &mut members, at, &observed, 0).is_settling);
}

#[test]
fn requests_of_other_replicas_count_beside_what_the_server_reports() {
    let (store, group) = (Store::default(), group(vec![Signal::InFlight]));
    store.replace(vec![spec("one", 0, &[("tier", "gold")])]);
    let snapshot = store.snapshot();
    let load = snapshot.endpoints()[0].load();
    let mut members = Members::default();
    members.follow(&group.policy, &snapshot, &store.starting());
    let at = |now_ms| Freshness { now_ms, configured: SECOND, scraped: SECOND };
    rest(&snapshot, 1_000);
    members.learn(at(1_000), Duration::ZERO, true);
    let seen = |now_ms| {
        let inputs = gather(&group, &members, at(now_ms), vec![0, 1], 0);
        let in_flight = inputs.pods[0].values[0];
        ((!in_flight.is_nan()).then_some(in_flight), inputs.work[1].is_busy)
    };
    assert_eq!(seen(1_000), (Some(0.0), false));
    let running = load.book();
    load.report_others(2);
    assert_eq!(seen(1_000), (Some(3.0), true));
    assert_eq!(pod_loads(&snapshot, "default", at(1_000))["one"].under_way, 3);
    drop(running);
    assert_eq!(seen(1_000), (Some(2.0), true));
    // The store is away, and the server goes on.
    load.report_others(0);
    load.running.set(4.0, 1_000);
    assert_eq!(seen(1_000), (Some(4.0), true));
    assert_eq!(seen(2_001), (None, true), "others may send more than is known");
}

#[test]
fn request_of_another_replica_between_two_ticks_is_work() {
    let (store, group) = (Store::default(), group(vec![Signal::FirstToken]));
    store.replace(vec![spec("one", 0, &[("tier", "gold")])]);
    let snapshot = store.snapshot();
    let load = snapshot.endpoints()[0].load();
    let mut members = Members::default();
    members.follow(&group.policy, &snapshot, &store.starting());
    let at = |now_ms| Freshness { now_ms, configured: SECOND, scraped: SECOND };
    rest(&snapshot, 1_000);
    members.learn(at(1_000), Duration::ZERO, true);
    let seen = |now_ms| {
        rest(&snapshot, now_ms);
        let inputs = gather(&group, &members, at(now_ms), vec![0, 1], 0);
        assert!(!inputs.work[1].is_busy);
        let first_token = inputs.pods[0].values[0];
        (inputs.work[1].sent, (!first_token.is_nan()).then_some(first_token))
    };
    let before = seen(1_000);
    assert_eq!((seen(16_000), before.1), (before, Some(0.0)), "nothing happened");
    load.note_sent_elsewhere(17_000);
    let after = seen(31_000);
    assert_ne!(after.0, before.0);
    assert_eq!(after.1, None, "the other replica has its time");
    assert_eq!(seen(77_001), (after.0, Some(0.0)));
    load.first_token.blend(0.5, 80_000);
    load.note_sent_elsewhere(80_000);
    assert_eq!(seen(81_000).1, Some(0.5));
}

#[test]
fn pod_outside_the_pool_is_busy_until_drained() {
    let (store, group) = (Store::default(), group(vec![Signal::Waiting]));
    let mut members = Members::default();
    let at = Freshness { now_ms: 1_000, configured: SECOND, scraped: SECOND };
    store.replace(vec![spec("one", 0, &[("tier", "gold")])]);
    let running = store.snapshot().endpoints()[0].load().book();
    let mut is_busy = || {
        members.follow(&group.policy, &store.snapshot(), &store.starting());
        gather(&group, &members, at, vec![0, 1], 0).work[1].is_busy
    };
    assert!(is_busy());
    store.replace(Vec::new());
    assert!(is_busy(), "it isn't ready any more, and still responds");
    let mut loads = HashMap::new();
    members.add_left("default", &mut loads);
    members.add_left("another", &mut loads);
    assert_eq!(loads["one"], PodLoad { under_way: 1, ..PodLoad::default() });
    let mut is_busy = || {
        members.follow(&group.policy, &store.snapshot(), &store.starting());
        gather(&group, &members, at, vec![0, 1], 0).work[1].is_busy
    };
    store.replace(vec![spec("two", 0, &[])]);
    assert!(is_busy());
    drop(running);
    assert!(!is_busy());
}

#[test]
fn replicas_without_a_pod_count_as_starting() {
    let group = group(vec![Signal::Waiting]);
    let mut observed = Observed::default();
    observed.replicas = vec![3, 1];
    observed.pods = vec![pod(0, "one"), pod(1, "two"), pod(1, "three")].into();
    let at = Freshness { now_ms: 1_000, configured: SECOND, scraped: SECOND };
    let inputs = gather_observed(&group, &mut Members::default(), at, &observed, 0);
    assert_eq!((inputs.replicas, inputs.starting), (vec![3, 1], vec![2, 0]));
}
