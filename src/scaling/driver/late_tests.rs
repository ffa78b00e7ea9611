//! Slow or silent API server for some policies.

use std::sync::{Mutex, PoisonError};

use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

use super::tests::{S, driver_of, live};
use super::*;
use crate::capacity::Condition;
use crate::cluster::Cluster;
use crate::leader::Term;

/// API server that never responds about the group `example.com`, nor to writes to names beginning with
/// `stuck`.
#[derive(Debug, Default)]
struct Api {
    replicas: Mutex<BTreeMap<String, u64>>,
    reads: Mutex<BTreeMap<String, u32>>,
    writes: Mutex<Vec<String>>,
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Api {
    fn reads(&self, name: &str) -> u32 {
        lock(&self.reads).get(name).copied().unwrap_or(0)
    }

    fn writes(&self, name: &str) -> usize {
        lock(&self.writes).iter().filter(|write| *write == name).count()
    }

    fn set(&self, name: &str, replicas: u64) {
        lock(&self.replicas).insert(name.to_owned(), replicas);
    }

    /// Response to a request; `None`: none.
    fn respond(&self, method: &Method, path: &str, query: &str, body: &Value) -> Option<Value> {
        if let Some(scale) = path.strip_suffix("/scale") {
            let name = scale.rsplit('/').next()?;
            let reads = *method == Method::GET;
            if reads {
                *lock(&self.reads).entry(name.to_owned()).or_default() += 1;
            } else {
                lock(&self.writes).push(name.to_owned());
                if name.starts_with("stuck") {
                    return None;
                }
                self.set(name, body["spec"]["replicas"].as_u64()?);
            }
            let replicas = lock(&self.replicas).get(name).copied().unwrap_or(1);
            return Some(
                json!({"metadata": {"uid": name, "resourceVersion": "1"}, "spec": {"replicas": replicas}}),
            );
        }
        let resources = json!({"resources": [
            {"name": "deployments", "kind": "Deployment"}, {"name": "deployments/scale", "kind": "Scale"}]});
        match path {
            "/apis/apps/v1" => Some(resources),
            _ if path.starts_with("/apis/example.com/") || query.contains("watch=true") => None,
            _ => Some(json!({"metadata": {"resourceVersion": "1"}, "items": []})),
        }
    }
}

/// Actuator for this API server.
fn actuator(api: &Arc<Api>, clock: &Clock) -> Actuator {
    let api = Arc::clone(api);
    let respond = move |request: Request<Body>| {
        let api = Arc::clone(&api);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap_or_default();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let query = parts.uri.query().unwrap_or_default();
            match api.respond(&parts.method, parts.uri.path(), query, &body) {
                Some(body) => Response::builder().body(Body::from(body.to_string().into_bytes())),
                None => std::future::pending().await,
            }
        }
    };
    let cluster = Cluster::from(kube::Client::new(tower::util::service_fn(respond), "ns"));
    let (_, pool) = watch::channel(Some("app=m".to_owned()));
    Actuator::new(cluster, "ns".to_owned(), clock.clone(), pool, Arc::new(Term::endless(clock.clone())))
}

/// Policy with a role of its name that has to have five pods.
fn policy(name: &str, target: &str, more: &str) -> String {
    format!(
        "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {{name: {name}}}\nspec: {{mode: Apply, interval: 1s, {more}roles: {{{name}: {{min: 5, max: 9, scaleTargetRef: {{{target}, name: {name}}}}}}}}}\n"
    )
}

const DEPLOYMENT: &str = "apiVersion: apps/v1, kind: Deployment";

/// Runs a driver with this API server until the scenario has ended.
async fn drive(
    policies: &str,
    live: Live,
    scenario: impl AsyncFnOnce(mpsc::Sender<PolicyUpdate>, Arc<PlanStore>),
) {
    let clock = live.clock.clone();
    let mut driver = driver_of(policies, live);
    let (say, mut updates) = mpsc::channel(WAITING);
    let (began, plan_store) = (Instant::now(), Arc::clone(driver.plan_store()));
    let tick = async {
        let mut every = tokio::time::interval(Duration::from_millis(10));
        loop {
            every.tick().await;
            clock.set(began.elapsed());
        }
    };
    let lookups = Lookups::default();
    tokio::select! {
        () = driver.drive(&mut updates, &lookups, "p.yaml") => {}
        () = tick => {}
        () = scenario(say, plan_store) => {}
    }
}

fn acting(api: &Arc<Api>) -> Live {
    let live = live(0);
    let actuator = Some(actuator(api, &live.clock));
    Live { actuator, ..live }
}

#[tokio::test(start_paused = true)]
async fn hanging_reads_do_not_delay_other_policies() {
    let api = Arc::new(Api::default());
    let policies = [
        policy("away", "apiVersion: example.com/v1, kind: Engine", ""),
        policy("fast", DEPLOYMENT, ""),
        policy("gone", "apiVersion: example.com/v2, kind: Engine", ""),
    ];
    drive(&policies.join("---\n"), acting(&api), async |_, plan_store| {
        tokio::time::sleep(S(30)).await;
        assert!(api.reads("fast") >= 28, "every second: {}", api.reads("fast"));
        assert_eq!(lock(&api.replicas).get("fast"), Some(&5));
        let plans = plan_store.plans();
        let why = plans.policies[0].held.as_ref().map_or("", |held| &*held.why);
        assert!(why.contains("did not respond within 10 s"), "{why}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn hanging_writes_delay_others_less_and_less() {
    let api = Arc::new(Api::default());
    let policies = [policy("fast", DEPLOYMENT, ""), policy("stuck", DEPLOYMENT, "")].join("---\n");
    drive(&policies, acting(&api), async |_, _| {
        tokio::time::sleep(S(60)).await;
        let (reads, tries) = (api.reads("fast"), api.writes("stuck"));
        // Each try takes five seconds.
        assert!((2..=6).contains(&tries) && reads >= 25, "{tries} {reads}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn plans_are_applied_during_hanging_writes() {
    let api = Arc::new(Api::default());
    let stuck = (0..6).map(|number| policy(&format!("stuck{number}"), DEPLOYMENT, ""));
    let policies: Vec<String> = stuck.chain([policy("fast", DEPLOYMENT, "")]).collect();
    drive(&policies.join("---\n"), acting(&api), async |_, _| {
        tokio::time::sleep(S(30)).await;
        assert_eq!(lock(&api.replicas).get("fast"), Some(&5), "it acts beside the others");
        assert!(api.reads("fast") >= 25, "every second: {}", api.reads("fast"));
        assert!((0..6).all(|number| api.writes(&format!("stuck{number}")) >= 2));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn policy_can_be_paused_during_hanging_writes() {
    let api = Arc::new(Api::default());
    let stuck = |more: &str| policy("stuck", DEPLOYMENT, more);
    drive(&stuck(""), acting(&api), async |say, plan_store| {
        let mut plans = plan_store.subscribe();
        while api.writes("stuck") == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let said = Instant::now();
        say.send(PolicyUpdate::File(Ok(stuck("paused: true, ")))).await.unwrap();
        let is_paused = |plans: &Arc<Plans>| plans.policies[0].group.frozen == Some(Condition::Suspended);
        plans.wait_for(is_paused).await.unwrap();
        assert!(said.elapsed() <= S(6), "{:?}", said.elapsed());
        tokio::time::sleep(S(60)).await;
        assert_eq!(api.writes("stuck"), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn writes_outlast_an_edit_of_another_policy() {
    let api = Arc::new(Api::default());
    let with =
        |more: &str| [policy("stuck", DEPLOYMENT, ""), policy("other", DEPLOYMENT, more)].join("---\n");
    drive(&with(""), acting(&api), async |say, plan_store| {
        let mut plans = plan_store.subscribe();
        while api.writes("stuck") == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let wrote = Instant::now();
        say.send(PolicyUpdate::File(Ok(with("behavior: {scaleDown: {drainTimeout: 1s}}, ")))).await.unwrap();
        let has_failed = |plans: &Arc<Plans>| {
            let latest = plans.policies[0].latest.as_ref();
            latest.is_some_and(|latest| latest.plan.conditions.contains(&Condition::WriteFailed))
        };
        plans.wait_for(has_failed).await.unwrap();
        assert!(wrote.elapsed() <= S(6), "{:?}", wrote.elapsed());
    })
    .await;
}
