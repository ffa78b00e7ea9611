//! A tick of 64 policies over 1,000 endpoints each, and what gathers its inputs: together they are to take
//! less than 20 ms. So is a tick of 64 groups of 1,000 pods that come up in steps.

#![allow(clippy::panic, reason = "a benchmark that cannot go on has nothing to measure")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use usher::capacity::policy::file;
use usher::capacity::rollout::Domain;
use usher::capacity::{History, Inputs, Pod, PodState, Policy, tick};
use usher::endpoints::{EndpointSpec, Snapshot, Store};
use usher::scaling::{Freshness, Group, Members, Signal, gather};

const GROUPS: usize = 64;
const ENDPOINTS: u16 = 1_000;

fn policy(number: usize) -> Policy {
    let text = format!(
        "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {{name: p{number}}}\nspec:\n  roles:\n    prefill: {{min: 2, max: 800, cost: 100}}\n    decode: {{min: 4, max: 1600, cost: 60}}\n  total: {{metrics: [{{name: queue_depth, target: 4}}]}}\n  coordination:\n    mode: Preferred\n    preferredRatio: {{prefill: {{min: 25, max: 60}}, decode: {{min: 40, max: 75}}}}\n    ratio: {{numerator: prefill, denominator: decode, min: \"1:4\", max: \"1:1\"}}\n"
    );
    file::parse(&text).unwrap_or_else(|errors| panic!("{errors:?}")).remove(0).policy
}

fn snapshot() -> Arc<Snapshot> {
    let store = Store::default();
    let spec = |number: u16| {
        let [high, low] = number.to_be_bytes();
        let role = if number.is_multiple_of(3) { "prefill" } else { "decode" };
        let labels = BTreeMap::from([("llm-d.ai/role".to_owned(), role.to_owned())]);
        EndpointSpec { labels, ..EndpointSpec::new(format!("pod-{number}"), ([10, 0, high, low], 8000)) }
    };
    store.replace((0..ENDPOINTS).map(spec).collect());
    let snapshot = store.snapshot();
    for (endpoint, number) in snapshot.endpoints().iter().zip(0u32..) {
        let load = endpoint.load();
        load.waiting.set(f64::from(number % 11), 1);
        load.kv_usage.set(f64::from(number % 97) / 97.0, 1);
        load.first_token.set(f64::from(number % 13) / 10.0, 1);
    }
    snapshot
}

fn capacity(criterion: &mut Criterion) {
    let snapshot = snapshot();
    let freshness =
        Freshness { now_ms: 2, configured: Duration::from_secs(2), scraped: Duration::from_secs(15) };
    let groups: Vec<(Group, Members)> = (0..GROUPS)
        .map(|number| {
            let policy = Arc::new(policy(number));
            let signal = |name: &String| match name.as_str() {
                "queue_depth" => Signal::Waiting,
                "kv_cache_utilization" => Signal::KvUsage,
                "ttft" => Signal::FirstToken,
                other => panic!("{other} has no signal here"),
            };
            let signals = policy.signals.iter().map(signal).collect();
            let mut members = Members::default();
            members.follow(&policy, &snapshot, &Arc::default());
            (Group { policy, signals, frozen: None }, members)
        })
        .collect();
    let gathered = || -> Vec<Inputs> {
        let of = |(group, members): &(Group, Members)| {
            gather(group, members, freshness, members.counts().to_vec(), 3)
        };
        groups.iter().map(of).collect()
    };
    criterion.bench_function("capacity/gather 64x1000", |bencher| bencher.iter(|| black_box(gathered())));
    let inputs = gathered();
    let mut histories: Vec<History> = groups.iter().map(|_| History::default()).collect();
    let mut now = Duration::ZERO;
    criterion.bench_function("capacity/tick 64x1000", |bencher| {
        bencher.iter(|| {
            now += Duration::from_secs(15);
            for (((group, _), inputs), history) in groups.iter().zip(&inputs).zip(&mut histories) {
                black_box(tick(black_box(inputs), &group.policy, history, now));
            }
        });
    });
}

/// Groups of 1,000 pods that come up in 100 steps, half of which are up.
fn rollout(criterion: &mut Criterion) {
    let policy = |number: usize| {
        let text = format!(
            "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {{name: p{number}}}\nspec:\n  roles:\n    prefill: {{min: 400, max: 400}}\n    decode: {{min: 600, max: 600}}\n  deploy:\n    steps: {{prefill: 4, decode: 6}}\n    topology: {{layers: [rack], constraint: Required}}\n"
        );
        file::parse(&text).unwrap_or_else(|errors| panic!("{errors:?}")).remove(0).policy
    };
    let policies: Vec<Policy> = (0..GROUPS).map(policy).collect();
    let pod = |role: usize, is_up: bool| Pod {
        role,
        is_ready: is_up,
        state: PodState { is_gated: !is_up, is_scheduled: is_up, ..PodState::default() },
        values: [].into(),
    };
    // Roles are in the order of their names.
    let roles = [(0, 600), (1, 400)];
    let pods = roles.into_iter().flat_map(|(role, pods)| (0..pods).map(move |n| pod(role, n < pods / 2)));
    let rack = |number: u32| Domain { name: format!("rack-{number}"), slots: vec![number % 9, number % 7] };
    let inputs = Inputs {
        replicas: vec![600, 400],
        pods: pods.collect(),
        domains: Some([("rack".to_owned(), (0..100).map(rack).collect())].into()),
        ..Inputs::default()
    };
    let mut histories: Vec<History> = policies.iter().map(|_| History::default()).collect();
    let mut now = Duration::ZERO;
    let plan = policies.first().map(|policy| tick(&inputs, policy, &mut History::default(), now));
    let admitted: Option<Vec<u32>> = plan.map(|plan| plan.roles.iter().map(|role| role.admitted).collect());
    assert_eq!(admitted, Some(vec![306, 204]), "a step is to be placed");
    criterion.bench_function("capacity/tick 64x1000 in 100 steps", |bencher| {
        bencher.iter(|| {
            now += Duration::from_secs(15);
            for (policy, history) in policies.iter().zip(&mut histories) {
                black_box(tick(black_box(&inputs), policy, history, now));
            }
        });
    });
}

criterion_group!(benches, capacity, rollout);
criterion_main!(benches);
