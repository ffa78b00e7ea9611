//! Numbers of replicas, of anything that has them.

use serde_json::{Value, json};

use super::group::{Group, acting, pair};
use crate::objects::{Definition, least};
use crate::picker::Picker;
use crate::server::Server;
use crate::support::eventually;

const ENGINES: Definition = custom(include_str!("../crds/engines.yaml"), "engines");
const PLAINS: Definition = custom(include_str!("../crds/plains.yaml"), "plains");

const fn custom(file: &'static str, plural: &'static str) -> Definition {
    Definition { file, group: "example.com", version: "v1", plural }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_are_written_to_every_scalable_kind() {
    let Some(server) = Server::own().await else { return };
    server.define(&[crate::objects::POOLS, ENGINES, PLAINS]).await;
    let role = |name: &str, version: &str, kind: &str, more: &str| {
        format!(
            "{name}: {{min: 3, max: 5, scaleTargetRef: {{apiVersion: {version}, kind: {kind}, name: {name}{more}}}}}"
        )
    };
    let roles = [
        role("a", "apps/v1", "Deployment", ""),
        role("b", "apps/v1", "StatefulSet", ""),
        role("c", "example.com/v1", "Engine", ""),
        role("d", "example.com/v1", "Plain", ", replicasPath: /spec/groups/0/workers"),
    ];
    let spec = format!("{{mode: Apply, interval: 1s, roles: {{{}}}}}", roles.join(", "));
    let group = Group::new(&server, &spec).await;
    for (kind, name) in [("Deployment", "a"), ("StatefulSet", "b"), ("Engine", "c"), ("Plain", "d")] {
        group.workload(kind, name, 1).await;
    }
    let _picker = group.picker(&server, &[]).await;
    for (version, plural, name, pointer) in [
        ("apps/v1", "deployments", "a", "/spec/replicas"),
        ("apps/v1", "statefulsets", "b", "/spec/replicas"),
        ("example.com/v1", "engines", "c", "/spec/replicas"),
        ("example.com/v1", "plains", "d", "/spec/groups/0/workers"),
    ] {
        let path = format!("{}/{name}", group.space.path(version, plural));
        eventually(&format!("{plural} to have 3 replicas"), async || {
            (group.space.get(&path).await.unwrap().pointer(pointer)? == 3).then_some(())
        })
        .await;
        let events = eventually("an event about it", async || {
            Some(group.events(name).await).filter(|events| !events.is_empty())
        })
        .await;
        let said = format!("ScaledUp: policy p, role {name}: scaled from 1 to 3 replicas: Min");
        assert_eq!(events, [said]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_follow_the_steps() {
    let Some(server) = Server::shared().await else { return };
    let group = Group::new(server, &pair("")).await;
    group.workload("Deployment", "decode", 0).await;
    group.workload("Deployment", "prefill", 0).await;
    let _picker = group.picker(server, &[]).await;
    group.become_replicas(&[("decode", 4), ("prefill", 2)]).await;
    // Its controller writes the status of a workload all the time.
    let path = format!("{}/decode/status", group.space.path("apps/v1", "deployments"));
    let stirs = async {
        for number in 0.. {
            let status = json!({"status": {"observedGeneration": number}});
            group.space.send("PATCH", &path, &status).await.unwrap();
        }
    };
    let comes_up = async {
        group.ready_pods("decode", 0..4).await;
        group.ready_pods("prefill", 0..1).await;
        // One is missing: a second later there are no more.
        tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
        assert_eq!((group.replicas("decode").await, group.replicas("prefill").await), (4, 2));
        group.ready_pods("prefill", 1..2).await;
        group.become_replicas(&[("decode", 8), ("prefill", 4)]).await;
    };
    tokio::select! {
        () = stirs => {}
        () = comes_up => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_right_is_named() {
    let Some(server) = Server::shared().await else { return };
    let group = Group::new(server, &pair("")).await;
    group.workload("Deployment", "decode", 0).await;
    group.workload("Deployment", "prefill", 0).await;
    let space = server.space(&least()).await;
    space.pool("m", &[8000]).await;
    assert!(acting().len() > least().len());
    // The same policy where nothing but reading is allowed.
    let policy = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let text: Value = json!({"apiVersion": "usher.dev/v1alpha1", "kind": "CapacityPolicy", "metadata": {"name": "p"}, "spec": {
        "mode": "Apply", "interval": "1s",
        "roles": {"decode": {"min": 1, "max": 2, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "decode"}}},
    }});
    std::fs::write(policy.path(), text.to_string()).unwrap();
    let flag = format!("--capacity-policy={}", policy.path().display());
    let picker = Picker::of_pool(server, &space, &[&flag, "--capacity-single-replica=true"]).await;
    picker
        .says(&["capacity actuator cannot read or write", "deployments/scale", "cannot get resource"])
        .await;
}
