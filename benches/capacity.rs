//! A tick of 64 policies over 1,000 endpoints each, and what gathers its inputs: together they are to take
//! less than 20 ms. So is a tick of 64 groups of 1,000 pods that come up in steps, and one before an API server,
//! looks at pods and targets included.

#![allow(clippy::panic, reason = "a benchmark that cannot go on has nothing to measure")]

use std::convert::Infallible;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;
use usher::actuator::Actuator;
use usher::capacity::policy::file;
use usher::capacity::rollout::Domain;
use usher::capacity::{History, Inputs, Pod, PodState, Policy, tick};
use usher::cluster::Cluster;
use usher::endpoints::{Clock, EndpointSpec, Snapshot, Store};
use usher::leader::Term;
use usher::scaling::{Freshness, Group, Members, Signal, gather, gather_observed};

const GROUPS: usize = 64;
const ENDPOINTS: u16 = 1_000;

fn policy(number: usize) -> Policy {
    let text = format!(
        "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {{name: p{number}}}\nspec:\n  roles:\n    prefill: {{min: 2, max: 800, cost: 100}}\n    decode: {{min: 4, max: 1600, cost: 60}}\n  total: {{metrics: [{{name: queue_depth, target: 4}}]}}\n  coordination:\n    mode: Preferred\n    preferredRatio: {{prefill: {{min: 25, max: 60}}, decode: {{min: 40, max: 75}}}}\n    ratio: {{numerator: prefill, denominator: decode, min: \"1:4\", max: \"1:1\"}}\n"
    );
    file::parse(&text).unwrap_or_else(|errors| panic!("{errors:?}")).remove(0).policy
}

const FRESHNESS: Freshness =
    Freshness { now_ms: 2, configured: Duration::from_secs(2), scraped: Duration::from_secs(15) };

fn role(number: u16) -> &'static str {
    if number.is_multiple_of(3) { "prefill" } else { "decode" }
}

/// The endpoints of a group.
fn snapshot(group: &str) -> Arc<Snapshot> {
    let store = Store::default();
    let spec = |number: u16| {
        let [high, low] = number.to_be_bytes();
        let labels = [("llm-d.ai/role", role(number)), ("group", group)];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
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
    let snapshot = snapshot("g");
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
            gather(group, members, FRESHNESS, members.counts().to_vec(), 3)
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
    let rack = |number: u32| Domain {
        name: format!("rack-{number}"),
        slots: vec![number % 9, number % 7],
        ..Domain::default()
    };
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

/// The ready pods of a role of a group, as the API server lists them.
fn pods(group: &str, of: &str) -> Value {
    let expression = json!({"key": "gpu", "operator": "In", "values": ["h100", "h200"]});
    let needs = json!({"requests": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"}});
    let pod = |number: u16| {
        let labels = json!({
            "app": "m", "group": group, "llm-d.ai/role": of, "pod-template-hash": "h",
            "app.kubernetes.io/name": "vllm", "app.kubernetes.io/part-of": "llm-d",
        });
        json!({
            "metadata": {
                "name": format!("pod-{number}"), "namespace": "ns", "uid": format!("{group}-{number}"),
                "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": labels,
                "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "8000"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet",
                                     "name": format!("{group}-{of}-h"), "controller": true}],
            },
            "spec": {
                "nodeName": format!("node-{number}"),
                "containers": [{"resources": needs}, {"resources": {"requests": {"cpu": "1"}}}],
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [expression]}]}}},
            },
            "status": {"phase": "Running", "conditions": [
                {"type": "PodScheduled", "status": "True"}, {"type": "Initialized", "status": "True"},
                {"type": "ContainersReady", "status": "True"}, {"type": "Ready", "status": "True"}]},
        })
    };
    let items: Vec<Value> = (0..ENDPOINTS).filter(|number| role(*number) == of).map(pod).collect();
    json!({"metadata": {"resourceVersion": "1"}, "items": items})
}

/// An API server that responds at once, and whose watches tell of no change.
async fn respond(request: Request<Body>) -> Result<Response<Body>, Infallible> {
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    if query.contains("watch=true") {
        return std::future::pending().await;
    }
    let response = if path.ends_with("/pods") {
        let group = query.split("group%3D").nth(1).and_then(|rest| rest.split(['%', '&']).next());
        pods(group.unwrap_or_default(), if query.contains("decode") { "decode" } else { "prefill" })
    } else if path.ends_with("/scale") {
        let replicas = (0..ENDPOINTS).filter(|number| path.contains(role(*number))).count();
        json!({"metadata": {"uid": path, "resourceVersion": "1"}, "spec": {"replicas": replicas}})
    } else {
        json!({"resources": [
            {"name": "deployments", "kind": "Deployment"}, {"name": "deployments/scale", "kind": "Scale"}]})
    };
    Ok(Response::new(Body::from(response.to_string().into_bytes())))
}

/// Ticks of 64 groups of 1,000 pods each before an API server: looks at pods and targets, what is gathered of
/// them, and plans.
fn observe(criterion: &mut Criterion) {
    let policy = |number: usize| {
        let role = |role: &str, most: u32| {
            format!(
                "{role}: {{min: 2, max: {most}, selector: {{group: g{number}, llm-d.ai/role: {role}}}, scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: g{number}-{role}}}}}"
            )
        };
        let text = format!(
            "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {{name: g{number}}}\nspec:\n  mode: Apply\n  roles: {{{}, {}}}\n  total: {{metrics: [{{name: queue_depth, target: 4}}]}}\n  deploy: {{steps: {{prefill: 2, decode: 4}}}}\n",
            role("prefill", 800),
            role("decode", 1600),
        );
        Arc::new(file::parse(&text).unwrap_or_else(|errors| panic!("{errors:?}")).remove(0).policy)
    };
    let policies: Vec<Arc<Policy>> = (0..GROUPS).map(policy).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.unwrap_or_else(|error| panic!("{error}"));
    // The client begins a task.
    let _entered = runtime.enter();
    let cluster = Cluster::from(kube::Client::new(tower::service_fn(respond), "ns"));
    let (clock, pool) = (Clock::stopped(), watch::channel(Some("app=m".to_owned())));
    let term = Arc::new(Term::endless(clock.clone()));
    let mut actuator = Actuator::new(cluster, "ns".to_owned(), clock, pool.1, term);
    runtime.block_on(async {
        actuator.set_policies(policies.iter(), &[]);
        for policy in &policies {
            let mut tries = 0;
            while actuator.observe(policy, Duration::ZERO).await.is_none() {
                tries += 1;
                assert!(tries < 100_000, "{}", actuator.why_unobserved());
                tokio::task::yield_now().await;
            }
        }
    });
    let mut groups: Vec<(Group, Members)> = policies
        .into_iter()
        .map(|policy| {
            let mut members = Members::default();
            members.follow(&policy, &snapshot(&policy.name), &Arc::default());
            (Group { policy, signals: vec![Signal::Waiting], frozen: None }, members)
        })
        .collect();
    let mut histories: Vec<History> = groups.iter().map(|_| History::default()).collect();
    let mut now = Duration::ZERO;
    criterion.bench_function("capacity/observe, gather and tick 64x1000", |bencher| {
        bencher.iter(|| {
            now += Duration::from_secs(15);
            for ((group, members), history) in groups.iter_mut().zip(&mut histories) {
                let observed = runtime.block_on(actuator.observe(&group.policy, now));
                let observed = observed.unwrap_or_else(|| panic!("{}", actuator.why_unobserved()));
                let inputs = gather_observed(group, members, FRESHNESS, &observed, 3);
                assert_eq!(inputs.pods.len(), usize::from(ENDPOINTS));
                black_box(tick(&inputs, &group.policy, history, now));
            }
        });
    });
}

criterion_group!(benches, capacity, rollout, observe);
criterion_main!(benches);
