//! Updates of StatefulSets, whose controller the test is.

use serde_json::{Value, json};

use super::group::Group;
use crate::server::Server;
use crate::support::eventually;

const UPDATING: &str = "usher_capacity_state{policy=\"p\",state=\"Update\"} 1";

fn spec() -> String {
    let role = |name: &str, pods: u32| {
        format!(
            "{name}: {{min: {pods}, max: {pods}, scaleTargetRef: {{apiVersion: apps/v1, kind: StatefulSet, name: {name}}}}}"
        )
    };
    format!(
        "{{mode: Apply, interval: 1s, roles: {{{}, {}}}, update: {{}}}}",
        role("decode", 8),
        role("prefill", 4)
    )
}

fn path(group: &Group, name: &str) -> String {
    format!("{}/{name}", group.space.path("apps/v1", "statefulsets"))
}

/// The partition of a StatefulSet, and what is noted of the one before.
async fn partition_of(group: &Group, name: &str) -> (u64, Value) {
    let mut set = group.space.get(&path(group, name)).await.unwrap();
    let partition = set["spec"]["updateStrategy"]["rollingUpdate"]["partition"].as_u64().unwrap_or(0);
    (partition, set["metadata"]["annotations"]["usher.dev/partition"].take())
}

async fn has_partition(group: &Group, name: &str, partition: u64, own: Option<&str>) {
    let (what, own) = (format!("{name} to have the partition {partition}, {own:?} before"), json!(own));
    eventually(&what, async || (partition_of(group, name).await == (partition, own.clone())).then_some(()))
        .await;
}

/// Pods of a role have a revision.
async fn revise(group: &Group, role: &str, numbers: std::ops::Range<u32>, revision: &str) {
    for number in numbers {
        let pod = format!("{}/{role}-{number}", group.space.path("v1", "pods"));
        let labels = json!({"metadata": {"labels": {"controller-revision-hash": revision}}});
        group.space.send("PATCH", &pod, &labels).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn update_continues_after_a_restart_and_restores_partitions() {
    let Some(server) = Server::shared().await else { return };
    let group = Group::new(server, &spec()).await;
    for (role, pods) in [("decode", 8), ("prefill", 4)] {
        group.workload("StatefulSet", role, pods).await;
        group.ready_pods(role, 0..pods).await;
        revise(&group, role, 0..pods, "old").await;
    }
    // Somebody wants only the last three to be new.
    let own =
        json!({"spec": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 5}}}});
    group.space.send("PATCH", &path(&group, "decode"), &own).await.unwrap();
    let mut picker = group.picker(server, &["--metrics-endpoint-auth=false"]).await;
    picker.exports("usher_capacity_state{policy=\"p\",state=\"Idle\"} 1").await;
    // No pod is of the newest revision yet, and the youngest one is old.
    for role in ["decode", "prefill"] {
        let status = json!({"status": {"replicas": 4, "currentRevision": "old", "updateRevision": "new"}});
        group.space.send("PATCH", &format!("{}/status", path(&group, role)), &status).await.unwrap();
    }
    picker.exports(UPDATING).await;
    // Decode is further along, as five of its pods stay as they are.
    has_partition(&group, "prefill", 3, Some("0")).await;
    has_partition(&group, "decode", 8, Some("5")).await;
    picker.kill().await;
    let picker = group.picker(server, &["--metrics-endpoint-auth=false"]).await;
    picker.exports(UPDATING).await;
    assert_eq!(partition_of(&group, "prefill").await.0, 3);
    assert_eq!(partition_of(&group, "decode").await.0, 8);
    revise(&group, "prefill", 0..4, "new").await;
    has_partition(&group, "decode", 7, Some("5")).await;
    // An old pod that is made anew is the youngest of all. That is no update back.
    revise(&group, "decode", 7..8, "new").await;
    group
        .space
        .send(
            "DELETE",
            &format!("{}/decode-6", group.space.path("v1", "pods")),
            &json!({"gracePeriodSeconds": 0}),
        )
        .await
        .unwrap();
    group.ready_pods("decode", 6..7).await;
    revise(&group, "decode", 6..7, "old").await;
    has_partition(&group, "decode", 6, Some("5")).await;
    tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
    assert_eq!(partition_of(&group, "decode").await.0, 6);
    revise(&group, "decode", 5..7, "new").await;
    has_partition(&group, "decode", 5, None).await;
    has_partition(&group, "prefill", 0, None).await;
    let events = group.events("decode").await;
    assert!(
        events
            .iter()
            .any(|event| event.contains("policy p, role decode: patched ") && event.contains("Updating")),
        "{events:?}"
    );
}
