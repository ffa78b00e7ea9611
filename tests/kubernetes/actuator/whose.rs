//! Ownership of the pods that are acted on, where others in the namespace have the same labels.

use serde_json::{Value, json};

use super::group::{Group, pair};
use super::setup::{S, actuator, of};
use crate::server::Server;
use crate::support::eventually;

/// A pod at its gate with the labels of a role: of a model, and made by a ReplicaSet.
async fn gated(group: &Group, name: &str, role: &str, app: &str, set: Option<&str>) {
    let mut labels = json!({"app": app, "llm-d.ai/role": role});
    let mut owners = json!([]);
    if let Some(set) = set {
        labels["pod-template-hash"] = json!(set.rsplit_once('-').unwrap().1);
        owners = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": set, "uid": "u", "controller": true}]);
    }
    let object = json!({
        "metadata": {"name": name, "labels": labels, "ownerReferences": owners},
        "spec": {"schedulingGates": [{"name": "usher.dev/rollout"}], "containers": [{"name": "c", "image": "i"}]},
    });
    group.space.send("POST", &group.space.path("v1", "pods"), &object).await.unwrap();
}

pub(super) async fn is_gated(group: &Group, name: &str) -> bool {
    let pod: Value = group.space.get(&format!("{}/{name}", group.space.path("v1", "pods"))).await.unwrap();
    pod["spec"].get("schedulingGates").is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_another_model_are_neither_counted_nor_admitted() {
    let Some(server) = Server::shared().await else { return };
    let group = Group::new(server, &pair("")).await;
    group.workload("Deployment", "decode", 8).await;
    group.workload("Deployment", "prefill", 4).await;
    // Older than ours, so they would go first: of another pool, and of another Deployment of this one.
    for number in 0..3 {
        gated(&group, &format!("other-{number}"), "decode", "n", None).await;
        gated(&group, &format!("canary-{number}"), "decode", "m", Some("canary-5d4f")).await;
    }
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    for number in 0..8 {
        gated(&group, &format!("decode-{number}"), "decode", "m", Some("decode-5d4f")).await;
    }
    for number in 0..4 {
        gated(&group, &format!("prefill-{number}"), "prefill", "m", None).await;
    }
    let policy = of(&pair(""));
    let (mut actuator, _) = actuator(server, &group, &policy).await;
    let seen = eventually("all pods", async || {
        actuator.observe(&policy, S(1)).await.filter(|seen| seen.pods.len() >= 12)
    })
    .await;
    let names: Vec<&str> = seen.pods.iter().map(|pod| pod.name.as_str()).collect();
    assert_eq!(names.len(), 12, "{names:?}");
    assert!(
        names.iter().all(|name| name.starts_with("decode-") || name.starts_with("prefill-")),
        "{names:?}"
    );
    let _picker = group.picker(server, &[]).await;
    eventually("the first step", async || {
        for name in ["decode-0", "decode-1", "decode-2", "decode-3", "prefill-0", "prefill-1"] {
            if is_gated(&group, name).await {
                return None;
            }
        }
        Some(())
    })
    .await;
    for number in 0..3 {
        assert!(is_gated(&group, &format!("other-{number}")).await);
        assert!(is_gated(&group, &format!("canary-{number}")).await);
    }
}
