//! Pods that go: which, when, and what holds them.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use serde_json::{Value, json};
use usher::actuator::{Actuator, PodLoad};
use usher::capacity::{Condition, Plan, Policy, Reason};

use super::group::Group;
use super::setup::{S, actuator, of, plan};
use crate::engines::engines;
use crate::server::Server;
use crate::support::eventually;

/// A role with one pod too many.
const SPEC: &str = "{mode: Apply, interval: 1s, behavior: {scaleDown: {drainTimeout: 60s}}, roles: {decode: {min: 1, max: 2, \
    scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: decode}}}}";

async fn pod(group: &Group, name: &str) -> Option<Value> {
    group.space.get(&format!("{}/{name}", group.space.path("v1", "pods"))).await.ok()
}

/// The deletion cost of a pod.
async fn cost(group: &Group, name: &str) -> Value {
    let pod = pod(group, name).await.unwrap();
    pod["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"].clone()
}

/// Waits until all pods are seen, and acts: one that has requests under way, and numbers of requests sent.
/// Returns the plan, and which roles were not written.
async fn act(
    actuator: &mut Actuator,
    policy: &Policy,
    at: u64,
    write: u32,
    busy: &[&str],
) -> (Plan, Vec<usize>) {
    let mut seen = eventually("three pods", async || {
        actuator.observe(policy, S(at)).await.filter(|seen| seen.pods.len() == 3)
    })
    .await;
    let load = |(name, sent): (&str, u64)| {
        let is_busy = busy.contains(&name);
        let load = PodLoad { is_idle: !is_busy, under_way: is_busy.into(), sent, ..PodLoad::default() };
        (name.to_owned(), load)
    };
    let loads = [("decode-0", 5), ("decode-1", 90), ("decode-2", 1)].map(load);
    seen.loads = Some(HashMap::from(loads));
    let mut plan = plan(policy, &seen.replicas);
    (plan.roles[0].write, plan.roles[0].admitted) = (write, write);
    let outcome = actuator.apply(policy, &plan, seen, S(at), None).await;
    (outcome.plan, outcome.unwritten)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_smaller_role_loses_idle_pods_after_their_last_response() {
    let Some(server) = Server::shared().await else { return };
    let (group, policy) = (Group::new(server, SPEC).await, of(SPEC));
    group.workload("Deployment", "decode", 3).await;
    group.ready_pods("decode", 0..3).await;
    let (mut actuator, clock) = actuator(server, &group, &policy).await;
    let uid =
        async |name: &str| pod(&group, name).await.unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let busy = ["decode-0", "decode-2"];
    clock.set(S(2));
    let (plan, unwritten) = act(&mut actuator, &policy, 2, 2, &busy).await;
    assert_eq!((unwritten, plan.roles[0].reasons.contains(&Reason::Draining)), (vec![0], true));
    assert_eq!(actuator.draining().into_iter().collect::<Vec<_>>(), [uid("decode-1").await]);
    assert_eq!(
        (cost(&group, "decode-1").await, cost(&group, "decode-0").await),
        (json!("-1000"), Value::Null)
    );
    assert_eq!(group.replicas("decode").await, 3);
    // There are to be three again, and then two: another one is idle by now.
    clock.set(S(4));
    // The mark is taken away by the first look that sees it.
    eventually("the pod's cost to be as it was", async || {
        let (_, unwritten) = act(&mut actuator, &policy, 4, 3, &busy).await;
        assert!(unwritten.is_empty() && actuator.draining().is_empty());
        cost(&group, "decode-1").await.is_null().then_some(())
    })
    .await;
    clock.set(S(6));
    act(&mut actuator, &policy, 6, 2, &[]).await;
    assert_eq!(cost(&group, "decode-2").await, json!("-1000"), "of idle ones that with the coldest cache");
    // A request that was on its way there.
    clock.set(S(8));
    assert_eq!(act(&mut actuator, &policy, 8, 2, &["decode-2"]).await.1, [0]);
    clock.set(S(10));
    assert!(act(&mut actuator, &policy, 10, 2, &[]).await.1.is_empty());
    assert_eq!((group.replicas("decode").await, actuator.draining().len()), (2, 1));
    // Smaller once more before its controller has deleted that one.
    let going = uid("decode-2").await;
    clock.set(S(12));
    assert_eq!(act(&mut actuator, &policy, 12, 1, &["decode-1"]).await.1, [0]);
    let draining = actuator.draining();
    assert!(draining.len() == 2 && draining.contains(&going), "{draining:?}");
    assert_eq!(cost(&group, "decode-2").await, json!("-1000"));
    // Pods of a policy that is gone have requests again.
    actuator.set_policies(std::iter::empty(), &[]);
    assert!(actuator.draining().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_that_never_drain_are_removed_at_the_timeout() {
    let Some(server) = Server::shared().await else { return };
    let (group, policy) = (Group::new(server, SPEC).await, of(SPEC));
    group.workload("Deployment", "decode", 3).await;
    group.ready_pods("decode", 0..3).await;
    let (mut actuator, clock) = actuator(server, &group, &policy).await;
    let busy = ["decode-0", "decode-1", "decode-2"];
    for (at, unwritten) in [(2, vec![0]), (40, vec![0]), (61, vec![0]), (62, vec![])] {
        clock.set(S(at));
        assert_eq!(act(&mut actuator, &policy, at, 2, &busy).await.1, unwritten, "{at}");
    }
    assert_eq!(group.replicas("decode").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_picker_drains_before_it_writes() {
    let Some(server) = Server::shared().await else { return };
    let group = Group::new(server, SPEC).await;
    group.workload("Deployment", "decode", 3).await;
    let addresses: Vec<Ipv4Addr> = (1..=3).map(|last| Ipv4Addr::new(127, 9, 4, last)).collect();
    let _engines = engines(addresses.iter().copied()).await;
    for (number, address) in addresses.iter().enumerate() {
        let name = format!("decode-{number}");
        group.pod(&name, "decode", json!({})).await;
        group.space.status(&name, &address.to_string(), true).await;
    }
    let picker = group.picker(server, &[]).await;
    group.become_replicas(&[("decode", 2)]).await;
    picker.says(&["draining pods before deletion"]).await;
    let mut marked = 0;
    for number in 0..3 {
        marked += u32::from(cost(&group, &format!("decode-{number}")).await == "-1000");
    }
    assert_eq!(marked, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disruption_budget_delays_scale_down() {
    let Some(server) = Server::shared().await else { return };
    let (group, policy) = (Group::new(server, SPEC).await, of(SPEC));
    group.workload("Deployment", "decode", 2).await;
    group.ready_pods("decode", 0..1).await;
    group.pod("decode-1", "decode", json!({})).await;
    // It runs, and isn't ready.
    group.space.status("decode-1", "127.9.1.99", false).await;
    let budgets = group.space.path("policy/v1", "poddisruptionbudgets");
    let budget = json!({"metadata": {"name": "all"}, "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "m"}}}});
    group.space.send("POST", &budgets, &budget).await.unwrap();
    let (mut actuator, _) = actuator(server, &group, &policy).await;
    let trim = async |actuator: &mut Actuator, at: Duration| {
        let seen = eventually("two pods", async || {
            actuator.observe(&policy, at).await.filter(|seen| seen.pods.len() == 2)
        })
        .await;
        let mut plan = plan(&policy, &seen.replicas);
        (plan.roles[0].write, plan.roles[0].admitted) = (2, 1);
        plan.roles[0].reasons.push(Reason::Trimmed);
        actuator.apply(&policy, &plan, seen, at, None).await.plan.conditions
    };
    assert_eq!(trim(&mut actuator, S(2)).await, [Condition::EvictionRefused]);
    let events = group.events("decode").await;
    assert!(
        events.iter().any(|event| event.starts_with("EvictionRefused: policy p: pod decode-1")),
        "{events:?}"
    );
    let is_there = async || {
        pod(&group, "decode-1").await.is_some_and(|pod| pod["metadata"]["deletionTimestamp"].is_null())
    };
    assert!(is_there().await);
    group.space.send("DELETE", &format!("{budgets}/all"), &json!({})).await.unwrap();
    // The API server asks for some seconds while it hasn't looked at the budget.
    assert!(trim(&mut actuator, S(63)).await.is_empty());
    assert!(!is_there().await && pod(&group, "decode-0").await.is_some());
}
