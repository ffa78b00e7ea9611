//! Trimmed steps, with a fake API server and paused time.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;

use super::Driver;
use super::gate_tests::{acting, beside, within};
use super::tests::S;
use crate::actuator::fake::Fake;
use crate::endpoints::{Clock, EndpointSpec, ROLE_LABEL, Snapshot, Store};

/// Steps of four and two pods, three in the end.
const SPEC: &str = "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {name: p}\nspec: {mode: Apply, interval: 10s, roles: {decode: {min: 12, max: 12, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: d}}, prefill: {min: 6, max: 6, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: p}}}, deploy: {steps: {decode: 4, prefill: 2}, batchTimeout: 60s, onTimeout: Trim}}\n";

/// Server where one pod of the second step stays unready.
fn server() -> Fake {
    let fake = Fake::default();
    fake.deployment("d", 12, &json!({}));
    fake.deployment("p", 6, &json!({}));
    for number in 0..12 {
        fake.pod(&format!("d-{number}"), "decode", number >= 8);
    }
    for number in 0..6 {
        fake.pod(&format!("p-{number}"), "prefill", number >= 4);
    }
    fake.unready_pod("p-3", "prefill");
    fake
}

/// Endpoints of the ready pods, as a picker knows them.
struct Scene {
    fake: Fake,
    store: Arc<Store>,
    clock: Clock,
    all: Arc<Snapshot>,
}

impl Scene {
    fn new(fake: &Fake, driver: &mut Driver) -> Self {
        driver.live.staleness = S(9000);
        let (store, clock) = (Arc::clone(&driver.live.store), driver.live.clock.clone());
        let roles = [("d", "decode", 8u8), ("p", "prefill", 3)];
        let pods = roles.into_iter().flat_map(|(pod, role, pods)| (0..pods).map(move |n| (pod, role, n)));
        let spec = |(pod, role, number): (&str, &str, u8)| {
            let name = format!("{pod}-{number}");
            EndpointSpec {
                namespace: "ns".to_owned(),
                labels: [(ROLE_LABEL.to_owned(), role.to_owned())].into(),
                uid: Some(format!("uid-{name}")),
                ..EndpointSpec::new(name, ([10, 0, pod.as_bytes()[0], number], 8000))
            }
        };
        store.replace(pods.map(spec).collect());
        let all = store.snapshot();
        Self { fake: fake.clone(), store, clock, all }
    }

    /// Gives a request to this pod only.
    fn runs(&self, busy: &str) {
        for endpoint in self.all.endpoints() {
            endpoint.load().waiting.set(0.0, self.clock.now_ms());
            endpoint.load().running.set(f64::from(u8::from(endpoint.name() == busy)), self.clock.now_ms());
        }
    }

    fn names(&self) -> impl Iterator<Item = String> {
        self.all.endpoints().iter().map(|endpoint| endpoint.name().to_owned())
    }

    /// Draining pods, and evicted ones.
    fn going(&self) -> BTreeSet<String> {
        let snapshot = self.store.snapshot();
        let some = snapshot.all();
        let chosen: BTreeSet<&str> = some.view().iter().map(|endpoint| endpoint.name()).collect();
        self.names().filter(|name| !chosen.contains(&**name)).collect()
    }

    fn is_evicted(&self, name: &str) -> bool {
        self.fake.is_gone(name)
    }

    /// Checks that no evicted pod gets requests.
    fn none_is_chosen(&self) {
        let going = self.going();
        assert!(self.names().all(|name| going.contains(&name) || !self.is_evicted(&name)), "{going:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn trimmed_ready_pods_drain_before_eviction() {
    let fake = server();
    let (mut driver, _, goes) = acting(&fake, SPEC);
    let scene = Scene::new(&fake, &mut driver);
    let evicted = |name: &str| scene.is_evicted(name);
    let test = async {
        scene.runs("d-1");
        within(S(90), "the trim", || evicted("p-3")).await;
        let expected = ["d-0", "d-1", "d-2", "d-3", "p-0"];
        assert!(scene.going().iter().eq(expected), "{:?}", scene.going());
        assert!(!expected.iter().any(|name| evicted(name)), "a ready pod goes at once");
        let is_gone = || {
            scene.none_is_chosen();
            ["d-0", "d-2", "d-3", "p-0"].iter().all(|name| evicted(name))
        };
        within(S(5), "evictions", is_gone).await;
        for _ in 0..20 {
            tokio::time::sleep(S(1)).await;
            scene.none_is_chosen();
            assert!(scene.going().contains("d-1") && !evicted("d-1"), "it has a request");
        }
        scene.runs("");
        within(S(5), "the last eviction", || evicted("d-1")).await;
        assert!(scene.going().contains("d-1"));
    };
    beside(driver, goes, SPEC, test).await;
}

#[tokio::test(start_paused = true)]
async fn pod_kept_by_a_disruption_budget_gets_requests() {
    let fake = server();
    let (mut driver, _, goes) = acting(&fake, SPEC);
    let scene = Scene::new(&fake, &mut driver);
    let evictions = || {
        let asked = fake.written("/pods/d-1/eviction");
        asked.iter().filter(|eviction| eviction["deleteOptions"].get("dryRun").is_none()).count()
    };
    let test = async {
        scene.runs("");
        fake.keep("d-1", true);
        let others = ["d-0", "d-2", "d-3", "p-0"];
        within(S(95), "the trim", || others.iter().all(|name| scene.is_evicted(name))).await;
        within(S(1), "requests", || !scene.going().contains("d-1")).await;
        for _ in 0..25 {
            tokio::time::sleep(S(1)).await;
            assert!(!scene.going().contains("d-1"), "it can't go");
        }
        assert_eq!(evictions(), 1, "after that it is only asked whether it could be");
        fake.keep("d-1", false);
        within(S(11), "no requests", || scene.going().contains("d-1")).await;
        assert!(!scene.is_evicted("d-1"));
        within(S(5), "the eviction", || scene.is_evicted("d-1")).await;
        assert!(scene.going().contains("d-1"));
    };
    beside(driver, goes, SPEC, test).await;
}
