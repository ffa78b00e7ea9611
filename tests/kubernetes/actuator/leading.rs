//! Leadership among several replicas, and after a restart.

use std::net::Ipv4Addr;

use serde_json::json;

use super::group::{Group, pair};
use crate::engines::engines;
use crate::server::Server;
use crate::support::eventually;

const ELECTS: &str = "--ha-enable-leader-election";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_leader_continues_a_step() {
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
    // They are written after the replicas.
    let two = async || Some(group.events("decode").await).filter(|events| events.len() >= 2);
    let events = eventually("the events of two steps", two).await;
    assert_eq!(events.len(), 2, "each step was written once: {events:?}");
}

/// A replica that stood still for longer than its lease finds that another acts before it does anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_stopped_past_its_lease_writes_nothing() {
    let Some(server) = Server::shared().await else { return };
    let spec = "{mode: Apply, interval: 1s, roles: {decode: {min: 2, max: 6, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: decode}}}}";
    let group = Group::new(server, spec).await;
    group.workload("Deployment", "decode", 1).await;
    let first = group.picker(server, &[ELECTS]).await;
    group.become_replicas(&[("decode", 2)]).await;
    let second = group.picker(server, &[ELECTS]).await;
    first.signal("STOP");
    second.turns(true).await;
    // It has looked by now, and has nothing to do.
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    let (before, after) = (first.log.end(), second.log.end());
    group.scale("decode", 9).await;
    first.signal("CONT");
    group.become_replicas(&[("decode", 6)]).await;
    first.turns(false).await;
    assert!(!first.log.mentions_since(before, "replicas written"));
    // It says so once it is answered.
    second.log.find(after, "a write", |line| line.contains("replicas written").then_some(())).await;
}

const METRICS: &str = "--metrics-endpoint-auth=false";

fn state(name: &str) -> String {
    format!("usher_capacity_state{{policy=\"p\",state=\"{name}\"}} 1")
}

/// Ways of a group to a state, and what there is to be in it before and after a restart. The state Update
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
        // That nothing runs there is known.
        let mut idle = None;
        if name == "Scale" {
            let addresses: Vec<Ipv4Addr> = (1..=8).map(|last| Ipv4Addr::new(127, 9, 3, last)).collect();
            idle = Some(engines(addresses.iter().copied()).await);
            for (number, address) in addresses.iter().enumerate() {
                let pod = format!("decode-{number}");
                group.pod(&pod, "decode", json!({})).await;
                group.space.status(&pod, &address.to_string(), true).await;
            }
        } else {
            group.ready_pods("decode", 0..ready.0).await;
        }
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
            let expected = "policy p, role decode: 4 of 8 pods are ready, 4 admitted: BatchTimeout";
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
        drop(idle);
    }
}

#[test]
fn apply_needs_leader_election_or_the_single_replica_flag() {
    let mut policy = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let text = "{apiVersion: usher.dev/v1alpha1, kind: CapacityPolicy, metadata: {name: p}, spec: {mode: Apply, roles: {a: {min: 1, max: 2}}}}";
    std::io::Write::write_all(&mut policy, text.as_bytes()).unwrap();
    let serve = |more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_usher"));
        command.args(["serve", "--endpoint-selector=app=m", "--endpoint-target-ports=8000"]);
        command.args(["--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0"]);
        command.arg(format!("--capacity-policy={}", policy.path().display())).args(more);
        // There is no cluster to go on with.
        command.env("KUBECONFIG", "/nonexistent").env_remove("KUBERNETES_SERVICE_HOST");
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let refused = serve(&[]);
    assert!(refused.contains("policy 'p' has mode Apply") && refused.contains(ELECTS), "{refused}");
    for more in [ELECTS, "--capacity-single-replica=true"] {
        let said = serve(&[more]);
        assert!(said.contains("/nonexistent") && !said.contains("mode Apply"), "{said}");
    }
}
