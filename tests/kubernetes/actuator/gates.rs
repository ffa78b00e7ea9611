//! Pods at gates, on nodes with room and without.

use serde_json::json;

use super::group::{Group, pair};
use crate::server::Server;
use crate::support::eventually;

/// The layer of these tests' nodes.
const RACK: &str = "test.usher.dev/rack";

/// A node for so many pods.
async fn node(group: &Group, name: &str, rack: &str, pods: u32) {
    let labels = json!({RACK: rack});
    let object = json!({"metadata": {"name": name, "labels": labels}});
    group.space.send("POST", "/api/v1/nodes", &object).await.unwrap();
    let status = json!({"status": {
        "allocatable": {"cpu": pods.to_string(), "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }});
    group.space.send("PATCH", &format!("/api/v1/nodes/{name}/status"), &status).await.unwrap();
    // It is not tainted as a new node is, which nobody takes away here.
    let spec = json!({"spec": {"taints": null}});
    group.space.send("PATCH", &format!("/api/v1/nodes/{name}"), &spec).await.unwrap();
}

/// Pods at the gate.
async fn gated(group: &Group, role: &str, count: u32) {
    for number in 0..count {
        gated_pod(group, &format!("{role}-{number}")).await;
    }
}

/// A pod at the gate, which needs a CPU.
async fn gated_pod(group: &Group, name: &str) {
    let spec = json!({
        "schedulingGates": [{"name": "usher.dev/rollout"}],
        "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}],
    });
    let (role, _) = name.split_once('-').unwrap();
    group.pod(name, role, spec).await;
}

/// The rack that a pod has to go to; `None`: it waits at its gate, or is gone.
async fn rack(group: &Group, name: &str) -> Option<String> {
    let pod = group.space.get(&format!("{}/{name}", group.space.path("v1", "pods"))).await.ok()?;
    let spec = pod["spec"].clone();
    if spec.get("schedulingGates").is_some() {
        return None;
    }
    let affinity = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let expression = &affinity["nodeSelectorTerms"][0]["matchExpressions"][0];
    Some(expression["values"][0].as_str().unwrap_or("anywhere").to_owned())
}

/// The racks of all pods that were let go, by name.
async fn racks(group: &Group) -> Vec<(String, String)> {
    racks_of(group, 8, 4).await
}

async fn racks_of(group: &Group, decode: u32, prefill: u32) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (role, count) in [("decode", decode), ("prefill", prefill)] {
        for number in 0..count {
            let name = format!("{role}-{number}");
            if let Some(rack) = rack(group, &name).await {
                found.push((name, rack));
            }
        }
    }
    found
}

/// The scheduler and the kubelet take pods that were let go.
async fn run(group: &Group, pods: &[(String, String)], node: &str) {
    for (name, _) in pods {
        let bind = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        let path = format!("{}/{name}/binding", group.space.path("v1", "pods"));
        if group.space.send("POST", &path, &bind).await.is_ok() {
            let (role, number) = name.split_once('-').unwrap();
            group.ready(name, role, number.parse().unwrap()).await;
        }
    }
}

/// A group whose steps have to fit into a rack, and a picker that may see what nodes have.
async fn on_racks(server: &Server) -> Group {
    on_racks_with(server, |spec| spec).await
}

async fn on_racks_with(server: &Server, of: impl FnOnce(String) -> String) -> Group {
    let topology = format!(", topology: {{layers: [{RACK}], constraint: Required}}");
    Group::new(server, &of(pair(&topology))).await
}

/// The same, whose pods wait at their gates: room for two steps in one rack, and for one in the other.
async fn on_two_racks(server: &Server) -> Group {
    let group = on_racks(server).await;
    node(&group, "wide", "r1", 20).await;
    node(&group, "tight", "r2", 7).await;
    group.workload("Deployment", "decode", 8).await;
    group.workload("Deployment", "prefill", 4).await;
    gated(&group, "decode", 8).await;
    gated(&group, "prefill", 4).await;
    group
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn step_goes_to_one_rack_and_the_next_follows_when_it_is_up() {
    let Some(server) = Server::with_nodes().await else { return };
    let group = on_two_racks(&server).await;
    let _picker = group.picker(&server, &[]).await;
    let step = |racks: &[(String, String)], count: usize| (racks.len() == count).then(|| racks.to_vec());
    let first = eventually("the first step", async || step(&racks(&group).await, 6)).await;
    assert!(first.iter().all(|(_, rack)| rack == "r2"), "where it fits most tightly: {first:?}");
    let decode = first.iter().filter(|(name, _)| name.starts_with("decode")).count();
    assert_eq!(decode, 4);
    run(&group, &first, "tight").await;
    let both = eventually("the second step", async || step(&racks(&group).await, 12)).await;
    let second: Vec<_> = both.iter().filter(|found| !first.contains(found)).collect();
    assert!(second.iter().all(|(_, rack)| rack == "r1"), "{second:?}");
    let events = group.events("decode").await;
    let said = format!("policy p, role decode: opened the gates of 4 pods to {RACK}=r2, 4 admitted");
    assert!(events.iter().any(|event| event.contains(&said)), "{events:?}");
    assert_eq!(group.replicas("decode").await, 8, "pods at gates exist");
}

/// The next leader finds pods that have to go to one rack, and takes that for where they were sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_step_goes_to_a_rack_with_room_after_a_restart() {
    let Some(server) = Server::with_nodes().await else { return };
    let group = on_two_racks(&server).await;
    let mut picker = group.picker(&server, &[]).await;
    let step = |racks: &[(String, String)], count: usize| (racks.len() == count).then(|| racks.to_vec());
    let first = eventually("the first step", async || step(&racks(&group).await, 6)).await;
    assert!(first.iter().all(|(_, rack)| rack == "r2"), "{first:?}");
    picker.kill().await;
    let _next = group.picker(&server, &["--metrics-endpoint-auth=false"]).await;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert_eq!(racks(&group).await, first, "the step isn't up yet");
    // All but one: were they all up, the second step could begin before that one is lost.
    run(&group, &first[1..], "tight").await;
    // One of the first step is lost, and one that waits comes in its place, beside the others.
    group.space.delete_pod(&first[0].0, 0).await;
    gated_pod(&group, &first[0].0).await;
    let again = eventually("its replacement", async || step(&racks(&group).await, 6)).await;
    assert!(again.iter().all(|(_, rack)| rack == "r2"), "{again:?}");
    run(&group, &again, "tight").await;
    let both = eventually("the second step", async || step(&racks(&group).await, 12)).await;
    let second: Vec<_> = both.iter().filter(|found| !again.contains(found)).collect();
    assert!(second.iter().all(|(_, rack)| rack == "r1"), "{second:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn step_without_room_waits_at_its_gate() {
    let Some(server) = Server::with_nodes().await else { return };
    let group = on_racks(&server).await;
    node(&group, "small", "r1", 5).await;
    group.workload("Deployment", "decode", 8).await;
    group.workload("Deployment", "prefill", 4).await;
    gated(&group, "decode", 8).await;
    gated(&group, "prefill", 4).await;
    let picker = group.picker(&server, &["--metrics-endpoint-auth=false"]).await;
    let blocked = "usher_capacity_condition{condition=\"TopologyUnsatisfied\",policy=\"p\"} 1";
    picker.exports(blocked).await;
    assert!(racks(&group).await.is_empty());
    node(&group, "more", "r1", 1).await;
    let found = eventually("the step", async || Some(racks(&group).await).filter(|all| all.len() == 6)).await;
    assert!(found.iter().all(|(_, rack)| rack == "r1"));
}

/// Controllers make others in place of pods that are gone.
async fn make_again(group: &Group, names: &[String]) {
    for name in names {
        if group.space.get(&format!("{}/{name}", group.space.path("v1", "pods"))).await.is_err() {
            gated_pod(group, name).await;
        }
    }
}

/// A rack goes while pods of a step run there and others wait for its nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_a_rack_without_nodes_move_to_one_with_room() {
    let Some(server) = Server::with_nodes().await else { return };
    let group = on_two_racks(&server).await;
    let picker = group.picker(&server, &["--metrics-endpoint-auth=false"]).await;
    let decode = (0..8).map(|number| format!("decode-{number}"));
    let names: Vec<String> = decode.chain((0..4).map(|number| format!("prefill-{number}"))).collect();
    let on = async |rack: &str, count: usize| {
        make_again(&group, &names).await;
        let racks = racks(&group).await;
        (racks.len() == count && racks.iter().all(|(_, found)| found == rack)).then_some(racks)
    };
    let first = eventually("the first step", async || on("r2", 6).await).await;
    let (_, runs) = first.split_last().unwrap();
    // There is room for a part of them elsewhere.
    let cordon = |is: bool| json!({"spec": {"unschedulable": is}});
    group.space.send("PATCH", "/api/v1/nodes/wide", &cordon(true)).await.unwrap();
    node(&group, "small", "r3", 5).await;
    run(&group, runs, "tight").await;
    for (name, _) in runs {
        group.space.delete_pod(name, 0).await;
    }
    group.space.send("DELETE", "/api/v1/nodes/tight", &json!({})).await.unwrap();
    // Nodes of theirs may come back.
    eventually("they wait where they were", async || on("r2", 6).await).await;
    picker.exports("usher_capacity_condition{condition=\"TopologyUnsatisfied\",policy=\"p\"} 1").await;
    make_again(&group, &names).await;
    assert!(racks(&group).await.iter().all(|(_, rack)| rack == "r2"), "none goes where all have no room");
    group.space.send("PATCH", "/api/v1/nodes/wide", &cordon(false)).await.unwrap();
    let again = eventually("the step elsewhere", async || on("r1", 6).await).await;
    run(&group, &again, "wide").await;
    eventually("the second step", async || on("r1", 12).await).await;
}

/// A group of one step, which has all the pods that it may have, runs in a rack that nodes go from one by one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_of_a_closed_rack_moves_to_one_with_room_for_all() {
    let Some(server) = Server::with_nodes().await else { return };
    let one_step = |spec: String| {
        spec.replace("min: 8, max: 16", "min: 4, max: 4").replace("min: 4, max: 8", "min: 2, max: 2")
    };
    let group = on_racks_with(&server, one_step).await;
    node(&group, "tight", "r2", 6).await;
    group.workload("Deployment", "decode", 4).await;
    group.workload("Deployment", "prefill", 2).await;
    gated(&group, "decode", 4).await;
    gated(&group, "prefill", 2).await;
    let _picker = group.picker(&server, &[]).await;
    let on = async |rack: &str, count: usize| {
        let racks = racks_of(&group, 4, 2).await;
        (racks.len() == count && racks.iter().all(|(_, found)| found == rack)).then_some(racks)
    };
    let all = eventually("the step", async || on("r2", 6).await).await;
    run(&group, &all, "tight").await;
    // One has room for the pods of one role, the other for all of them.
    node(&group, "small", "r3", 4).await;
    node(&group, "large", "r4", 6).await;
    group.space.send("DELETE", "/api/v1/nodes/tight", &json!({})).await.unwrap();
    group.space.delete_pod("decode-0", 0).await;
    // One of each role that waits at its gate says what they need: of the other role's first, as the first of this
    // one may be moved before the next is there.
    let more = ["prefill-2", "decode-4", "decode-5"].map(str::to_owned);
    let moved = eventually("the pod that replaces it", async || {
        make_again(&group, &more).await;
        let racks = [rack(&group, &more[1]).await, rack(&group, &more[2]).await];
        racks.into_iter().flatten().find(|rack| rack != "r2")
    });
    assert_eq!(moved.await, "r4");
}

/// The nodes of a rack go while pods of a StatefulSet that have volumes there run, and those of a Deployment that have none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_with_own_volume_stays_when_another_role_moves() {
    let Some(server) = Server::with_nodes().await else { return };
    let one_step = |spec: String| {
        spec.replace("min: 8, max: 16", "min: 4, max: 4")
            .replace("min: 4, max: 8", "min: 2, max: 2")
            .replacen("kind: Deployment, name: prefill", "kind: StatefulSet, name: prefill", 1)
    };
    let group = on_racks_with(&server, one_step).await;
    node(&group, "tight", "r2", 6).await;
    group.workload("Deployment", "decode", 4).await;
    group.workload("StatefulSet", "prefill", 2).await;
    gated(&group, "decode", 4).await;
    let with_volume = async |name: &str| {
        let spec = json!({
            "schedulingGates": [{"name": "usher.dev/rollout"}],
            "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": format!("v-{name}")}}],
        });
        group.pod(name, "prefill", spec).await;
    };
    with_volume("prefill-0").await;
    with_volume("prefill-1").await;
    let picker = group.picker(&server, &["--metrics-endpoint-auth=false"]).await;
    let all =
        eventually("the step", async || Some(racks_of(&group, 4, 2).await).filter(|all| all.len() == 6));
    run(&group, &all.await, "tight").await;
    picker.exports("usher_capacity_state{policy=\"p\",state=\"Idle\"} 1").await;
    node(&group, "large", "r4", 6).await;
    group.space.send("DELETE", "/api/v1/nodes/tight", &json!({})).await.unwrap();
    for name in ["decode-0", "decode-1", "decode-2", "decode-3", "prefill-1"] {
        group.space.delete_pod(name, 0).await;
    }
    let more: Vec<String> = (4..8).map(|number| format!("decode-{number}")).collect();
    eventually("those without volumes elsewhere", async || {
        make_again(&group, &more).await;
        let mut moved = Vec::new();
        for name in &more {
            moved.extend(rack(&group, name).await.filter(|rack| rack == "r4"));
        }
        (moved.len() == 4).then_some(())
    })
    .await;
    with_volume("prefill-1").await;
    let found = eventually("the pod with a volume", async || rack(&group, "prefill-1").await).await;
    assert_eq!(found, "r2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_without_pods_begins_in_a_domain_with_room() {
    let Some(server) = Server::with_nodes().await else { return };
    let group = on_racks(&server).await;
    node(&group, "tight", "r2", 7).await;
    group.workload("Deployment", "decode", 0).await;
    group.workload("Deployment", "prefill", 0).await;
    let _picker = group.picker(&server, &[]).await;
    // There is no pod yet that says what it needs.
    group.become_replicas(&[("decode", 4), ("prefill", 2)]).await;
    gated(&group, "decode", 4).await;
    gated(&group, "prefill", 2).await;
    let found =
        eventually("the step", async || Some(racks_of(&group, 4, 2).await).filter(|all| all.len() == 6))
            .await;
    assert!(found.iter().all(|(_, rack)| rack == "r2"), "{found:?}");
    // What begins at a gate is asked for as a whole.
    group.become_replicas(&[("decode", 8), ("prefill", 4)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_right_to_see_nodes_the_scheduler_decides() {
    let Some(server) = Server::shared().await else { return };
    let topology = format!(", topology: {{layers: [{RACK}], constraint: Preferred}}");
    let group = Group::new(server, &pair(&topology)).await;
    group.workload("Deployment", "decode", 8).await;
    group.workload("Deployment", "prefill", 4).await;
    gated(&group, "decode", 8).await;
    gated(&group, "prefill", 4).await;
    let picker = group.picker(server, &["--metrics-endpoint-auth=false"]).await;
    let found = eventually("the step", async || Some(racks(&group).await).filter(|all| all.len() == 6)).await;
    assert!(found.iter().all(|(_, rack)| rack == "anywhere"), "{found:?}");
    picker.exports("usher_capacity_condition{condition=\"TopologyUnknown\",policy=\"p\"} 1").await;
    picker.says(&["denies access", "/api/v1/nodes"]).await;
}
