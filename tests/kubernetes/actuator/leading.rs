//! Who acts, of several replicas and after a restart.

use super::group::{Group, pair};
use crate::server::Server;

const ELECTS: &str = "--ha-enable-leader-election";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_leader_goes_on_in_the_middle_of_a_step() {
    let Some(server) = Server::shared().await else { return };
    let group = Group::new(server, &pair("")).await;
    group.workload("Deployment", "decode", 0).await;
    group.workload("Deployment", "prefill", 0).await;
    let mut first = group.picker(server, &[ELECTS]).await;
    group.become_replicas(&[("decode", 4), ("prefill", 2)]).await;
    let second = group.picker(server, &[ELECTS]).await;
    group.ready_pods("decode", 0..4).await;
    group.ready_pods("prefill", 0..1).await;
    first.kill().await;
    // Whoever leads now knows where the group stands.
    second.turns(true).await;
    tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
    assert_eq!((group.replicas("decode").await, group.replicas("prefill").await), (4, 2));
    group.ready_pods("prefill", 1..2).await;
    group.become_replicas(&[("decode", 8), ("prefill", 4)]).await;
    let events = group.events("decode").await;
    assert_eq!(events.len(), 2, "each step was written once: {events:?}");
}

const METRICS: &str = "--metrics-endpoint-auth=false";

fn state(name: &str) -> String {
    format!("usher_capacity_state{{policy=\"p\",state=\"{name}\"}} 1")
}

/// How a group comes to a state, and what there is to be in it before and after a restart. The state Update
/// is in [`super::updates`].
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_changes_nothing_in_any_state() {
    let Some(server) = Server::shared().await else { return };
    let rule = "}, rules: [{name: up, role: decode, metric: in_flight, comparator: LESS_THAN, threshold: 1, step: 4, max: 12, cooldown: 1h}], update: {";
    for (name, more, (decode, prefill), ready, expected) in [
        ("Idle", "", (8, 4), (8, 4), (8, 4)),
        ("Deploy", "", (0, 0), (4, 1), (4, 2)),
        ("Scale", rule, (8, 4), (8, 4), (12, 4)),
        ("Blocked", ", batchTimeout: 2s", (0, 0), (4, 1), (4, 2)),
        ("Failed", ", batchTimeout: 2s, onTimeout: Fail", (0, 0), (4, 1), (4, 2)),
    ] {
        let group = Group::new(server, &pair(more)).await;
        group.workload("Deployment", "decode", decode).await;
        group.workload("Deployment", "prefill", prefill).await;
        group.ready_pods("decode", 0..ready.0).await;
        group.ready_pods("prefill", 0..ready.1).await;
        let mut picker = group.picker(server, &[METRICS]).await;
        let wanted = [("decode", expected.0), ("prefill", expected.1)];
        group.become_replicas(&wanted).await;
        picker.exports(&state(name)).await;
        // That a step is stuck is said by every leader that finds it so: it isn't written to the objects.
        let is_stuck = |event: &String| event.starts_with(&format!("Step{name}:"));
        let mut before = group.events("decode").await;
        let stuck: Vec<String> = before.extract_if(.., |event| is_stuck(event)).collect();
        if let "Blocked" | "Failed" = name {
            let expected = "4 of 8 pods are ready, 4 may exist, by policy p, role decode: BatchTimeout";
            assert_eq!(stuck, [format!("Step{name}: {expected}")]);
        }
        picker.kill().await;
        let picker = group.picker(server, &[METRICS]).await;
        // From a file it doesn't know that the group was up before.
        picker.exports(&state(if name == "Scale" { "Deploy" } else { name })).await;
        tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
        group.become_replicas(&wanted).await;
        let mut after = group.events("decode").await;
        after.retain(|event| !is_stuck(event));
        assert_eq!(after, before, "{name}");
    }
}
