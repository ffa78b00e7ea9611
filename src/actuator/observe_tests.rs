//! Observation of nodes and their free capacity.

use http::Method;
use serde_json::json;

use super::Actuator;
use super::fake::Fake;
use super::tests::{S, actuator, observe, policy};

const STEPS: &str = "mode: Apply, deploy: {steps: {decode: 1}, topology: {layers: [rack]}},";

/// Adds a node.
fn with_node(fake: &Fake) {
    let node = json!({"metadata": {"name": "n", "labels": {"rack": "r"}}, "status": {
        "allocatable": {"pods": "110"}, "conditions": [{"type": "Ready", "status": "True"}],
    }});
    fake.has("/api/v1/nodes", json!({"metadata": {"resourceVersion": "1"}, "items": [node]}));
    fake.has("/api/v1/pods", json!({"metadata": {"resourceVersion": "1"}, "items": []}));
}

/// A thousand nodes take long, and the thread serves others.
#[test]
fn room_is_packed_on_another_thread() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let policy = policy("p", STEPS);
        let (fake, mut actuator, _) = actuator(std::slice::from_ref(&policy));
        with_node(&fake);
        observe(&mut actuator, &policy, 1, 3).await;
        let (release, held) = std::sync::mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking(move || held.recv());
        let seen = actuator.fetch_request(&policy).send().await;
        {
            let mut packing = std::pin::pin!(actuator.observe_fetched(&policy, seen, S(2)));
            for _ in 0..100 {
                assert!(futures_util::poll!(packing.as_mut()).is_pending(), "the only other thread is busy");
                tokio::task::yield_now().await;
            }
            release.send(()).unwrap();
            let domains = packing.await.unwrap().domains.unwrap();
            assert!(format!("{domains:?}").contains("rack"), "{domains:?}");
        }
        busy.await.unwrap().unwrap();
    });
}

#[tokio::test(start_paused = true)]
async fn unknown_nodes_are_given_as_the_reason() {
    let policy = policy("p", STEPS);
    let (fake, mut actuator, clock) = actuator(std::slice::from_ref(&policy));
    fake.has("/api/v1/nodes", json!({"metadata": {"resourceVersion": "1"}, "items": []}));
    fake.has("/api/v1/pods", json!({"metadata": {"resourceVersion": "1"}, "items": []}));
    observe(&mut actuator, &policy, 1, 3).await;
    // Nothing is said of nodes any more, and of pods there is.
    fake.refuse(Method::GET, "/api/v1/nodes", 503);
    fake.refuse(Method::GET, "/api/v1/pods", 503);
    tokio::time::sleep(S(60)).await;
    clock.set(S(100));
    let is_blind = async |actuator: &mut Actuator| {
        for number in 0..20 {
            fake.pod(&format!("x-{number}"), "other", false);
            tokio::time::sleep(S(5)).await;
            let why = actuator.observe(&policy, S(100)).await.is_none().then(|| actuator.why_unobserved());
            if let Some(why) = why.filter(|why| why.contains("nodes")) {
                return why;
            }
        }
        actuator.why_unobserved()
    };
    let why = is_blind(&mut actuator).await;
    assert!(why.ends_with("nodes: no update from the API server for 99 s"), "{why}");
}
