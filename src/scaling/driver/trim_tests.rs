//! Steps that are given back, before an API server, while time is paused.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;

use super::gate_tests::{acting, beside, within};
use super::tests::S;
use crate::actuator::fake::Fake;
use crate::endpoints::{EndpointSpec, ROLE_LABEL};

/// Groups of four and two pods, three in the end.
const SPEC: &str = "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {name: p}\nspec: {mode: Apply, interval: 10s, roles: {decode: {min: 12, max: 12, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: d}}, prefill: {min: 6, max: 6, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: p}}}, deploy: {steps: {decode: 4, prefill: 2}, batchTimeout: 60s, onTimeout: Trim}}\n";

/// A server where one pod of the second group doesn't come up.
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

#[tokio::test(start_paused = true)]
async fn ready_pods_of_a_trimmed_step_get_no_requests_before_they_are_evicted() {
    let fake = server();
    let (mut driver, _, goes) = acting(&fake, SPEC);
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
    let runs = |busy: &str| {
        for endpoint in all.endpoints() {
            endpoint.load().waiting.set(0.0, clock.now_ms());
            endpoint.load().running.set(f64::from(u8::from(endpoint.name() == busy)), clock.now_ms());
        }
    };
    // Pods that get no requests, and pods that were evicted.
    let going = || -> BTreeSet<String> {
        let snapshot = store.snapshot();
        let some = snapshot.all();
        let chosen: BTreeSet<&str> = some.view().iter().map(|endpoint| endpoint.name()).collect();
        let all = all.endpoints().iter().map(|endpoint| endpoint.name());
        all.filter(|name| !chosen.contains(name)).map(str::to_owned).collect()
    };
    let evicted = |name: &str| !fake.written(&format!("/pods/{name}/eviction")).is_empty();
    let none_is_chosen = || {
        let going = going();
        let mut all = all.endpoints().iter().map(|endpoint| endpoint.name());
        assert!(all.all(|name| going.contains(name) || !evicted(name)), "{going:?}");
    };
    let test = async {
        runs("d-1");
        within(S(90), "the trim", || evicted("p-3")).await;
        let expected = ["d-0", "d-1", "d-2", "d-3", "p-0"];
        assert!(going().iter().eq(expected), "{:?}", going());
        assert!(!expected.iter().any(|name| evicted(name)), "a ready pod goes at once");
        let is_gone = || {
            none_is_chosen();
            ["d-0", "d-2", "d-3", "p-0"].iter().all(|name| evicted(name))
        };
        within(S(5), "evictions", is_gone).await;
        for _ in 0..20 {
            tokio::time::sleep(S(1)).await;
            none_is_chosen();
            assert!(going().contains("d-1") && !evicted("d-1"), "it has a request");
        }
        runs("");
        within(S(5), "the last eviction", || evicted("d-1")).await;
        assert!(going().contains("d-1"));
    };
    beside(driver, goes, SPEC, test).await;
}
