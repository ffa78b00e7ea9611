//! Replicas that share their load through a store: all serve, and one of them acts.

#[path = "../wire/replicas/redis.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod redis;

use std::time::Duration;

use serde_json::json;

pub(crate) use self::redis::Redis;
use crate::actuator::group::Group;
use crate::metrics::page;
use crate::objects::{POLICIES, Space, election, least};
use crate::picker::Picker;
use crate::server::Server;

const ELECTS: &str = "--ha-enable-leader-election";
const OPEN_METRICS: &str = "--metrics-endpoint-auth=false";

/// Waits until something is so.
async fn eventually(what: &str, is_so: impl AsyncFn() -> bool) {
    crate::support::eventually(what, async || is_so().await.then_some(())).await;
}

async fn is_ready(picker: &Picker) {
    eventually("readiness", async || picker.is_healthy("readiness").await).await;
}

/// Generation of a policy that its status is about.
async fn observed_generation(space: &Space) -> Option<u64> {
    let path = format!("/apis/usher.dev/v1alpha1/namespaces/{}/capacitypolicies/p", space.name);
    space.get(&path).await.ok()?["status"]["observedGeneration"].as_u64()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_replicas_serve_and_the_leader_alone_acts() {
    let Some(server) = Server::with_policies().await else { return };
    let Some(redis) = Redis::start(&[]).await else { return };
    let (group, store) = (Group::new(server, "{}").await, redis.flag());
    let space = &group.space;
    space.pod("a", "10.4.8.1", "m").await;
    group.workload("Deployment", "a", 1).await;
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "a"});
    let role = json!({"min": 2, "max": 9, "selector": {"app": "m"}, "scaleTargetRef": target});
    let spec = json!({"mode": "Apply", "interval": "1s", "roles": {"a": role}});
    space.create(POLICIES, "p", spec).await;
    let flags = [ELECTS, OPEN_METRICS, "--capacity-policies", "--outlier-detection=false", &store];
    let mut first = Picker::of_pool(server, space, &flags).await;
    group.become_replicas(&[("a", 2)]).await;
    let holder = space.holder().await;
    let second = Picker::of_pool(server, space, &flags).await;
    is_ready(&second).await;
    second.says(&["all replicas are ready"]).await;
    second.says(&["capacity policy accepted"]).await;
    assert!(first.is_healthy("readiness").await && first.is_healthy("").await);
    assert!(second.is_healthy("").await && second.is_healthy("liveness").await);
    for picker in [&first, &second] {
        picker.becomes(&["10.4.8.1:8000"]).await;
        picker.exports("usher_state_store_connected 1").await;
    }
    // Whoever only serves neither plans nor writes, though there is something to do.
    group.scale("a", 1).await;
    group.become_replicas(&[("a", 2)]).await;
    eventually("a status", async || observed_generation(space).await == Some(1)).await;
    assert!(first.log.mentions_since(0, "replicas written"));
    assert!(!second.log.mentions_since(0, "replicas written"));
    let plans = async |picker: &Picker| page(picker).await.contains("\nusher_capacity_desired_replicas{");
    assert!(plans(&first).await && !plans(&second).await);
    assert_eq!(space.holder().await, holder);
    first.kill().await;
    // It serves on, and acts as soon as the lease is over.
    assert!(second.is_healthy("readiness").await);
    let path = format!("/apis/usher.dev/v1alpha1/namespaces/{}/capacitypolicies/p", space.name);
    space.send("PATCH", &path, &json!({"spec": {"roles": {"a": {"min": 4}}}})).await.unwrap();
    group.become_replicas(&[("a", 4)]).await;
    eventually("a status", async || observed_generation(space).await == Some(2)).await;
    assert!(second.is_healthy("readiness").await);
    assert_ne!(space.holder().await, holder);
}

/// Readiness doesn't depend on the store, as requests don't.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_stay_ready_without_their_store() {
    let Some(server) = Server::shared().await else { return };
    let Some(mut redis) = Redis::start(&[]).await else { return };
    let space = server.space(&[least(), vec![election()]].concat()).await;
    space.pool("m", &[8000]).await;
    space.pod("a", "10.4.9.1", "m").await;
    let store = redis.flag();
    // One that would wait for the lease to look for endpoints doesn't.
    let cold =
        "--config-text={plugins: [{type: queue-scorer}], featureGates: [haPopulateNonLeaderDatastore=false]}";
    let flags = [ELECTS, OPEN_METRICS, cold, &store];
    let (first, second) =
        (Picker::of_pool(server, &space, &flags).await, Picker::of_pool(server, &space, &flags).await);
    for picker in [&first, &second] {
        is_ready(picker).await;
        picker.says(&["haPopulateNonLeaderDatastore=false has no effect"]).await;
        picker.exports("usher_state_store_connected 1").await;
    }
    redis.kill();
    let third = Picker::of_pool(server, &space, &flags).await;
    for picker in [&first, &second, &third] {
        picker.exports("usher_state_store_connected 0").await;
        is_ready(picker).await;
        picker.becomes(&["10.4.9.1:8000"]).await;
    }
    assert!(
        tokio::time::timeout(Duration::from_secs(60), space.holder()).await.is_ok_and(|held| held.is_some())
    );
}
