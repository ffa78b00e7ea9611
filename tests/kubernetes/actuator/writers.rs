//! Writes of the actuator where others write as well.

use serde_json::json;
use usher::actuator::Actuator;
use usher::capacity::{Condition, Policy};
use usher::endpoints::Clock;

use super::group::Group;
use super::setup::{S, actuator, of, plan};
use crate::server::Server;
use crate::support::eventually;

const SPEC: &str = "{mode: Apply, interval: 2s, roles: {decode: {min: 2, max: 6, \
    scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: decode}}}}";

/// Looks and acts at a time, in seconds. Says what stands in its way.
async fn act(actuator: &mut Actuator, clock: &Clock, policy: &Policy, at: u64) -> Vec<Condition> {
    clock.set(S(at));
    let seen = eventually("a look", async || actuator.observe(policy, S(at)).await).await;
    let mut plan = plan(policy, &seen.replicas);
    plan.conditions.clear();
    actuator.apply(policy, &plan, seen, S(at), None).await.plan.conditions
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_foreign_write_is_the_baseline_and_two_are_another_writer() {
    let Some(server) = Server::shared().await else { return };
    let (group, policy) = (Group::new(server, SPEC).await, of(SPEC));
    group.workload("Deployment", "decode", 3).await;
    let (mut actuator, clock) = actuator(server, &group, &policy).await;
    let foreign = vec![Condition::ForeignWriter];
    assert!(act(&mut actuator, &clock, &policy, 2).await.is_empty());
    // Within the bounds it is what somebody wants.
    group.scale("decode", 5).await;
    assert!(act(&mut actuator, &clock, &policy, 4).await.is_empty());
    assert_eq!(group.replicas("decode").await, 5);
    // Once outside of them, much later, it comes back.
    group.scale("decode", 9).await;
    assert!(act(&mut actuator, &clock, &policy, 70).await.is_empty());
    assert_eq!(group.replicas("decode").await, 6);
    // As often as an HPA: another one wants it so.
    group.scale("decode", 9).await;
    assert_eq!(act(&mut actuator, &clock, &policy, 85).await, foreign);
    assert_eq!(group.replicas("decode").await, 9, "it steps back");
    assert_eq!(act(&mut actuator, &clock, &policy, 144).await, foreign);
    // Until it has been quiet.
    assert!(act(&mut actuator, &clock, &policy, 145).await.is_empty());
    assert_eq!(group.replicas("decode").await, 6);
    // The other one is still there: it was only quiet because we were, and gets twice as long.
    group.scale("decode", 9).await;
    for at in [160, 221, 279] {
        assert_eq!(act(&mut actuator, &clock, &policy, at).await, foreign, "{at}");
    }
    assert_eq!(group.replicas("decode").await, 9);
    assert!(act(&mut actuator, &clock, &policy, 280).await.is_empty());
    assert_eq!(group.replicas("decode").await, 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_autoscaler_of_the_target_is_found_before_the_first_write() {
    let Some(server) = Server::shared().await else { return };
    let (group, policy) = (Group::new(server, SPEC).await, of(SPEC));
    group.workload("Deployment", "decode", 1).await;
    let of = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "decode"});
    let hpa = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "h"}, "spec": {"scaleTargetRef": of, "maxReplicas": 9}});
    let hpas = group.space.path("autoscaling/v2", "horizontalpodautoscalers");
    group.space.send("POST", &hpas, &hpa).await.unwrap();
    let (mut actuator, clock) = actuator(server, &group, &policy).await;
    assert_eq!(act(&mut actuator, &clock, &policy, 2).await, [Condition::OtherScaler]);
    assert_eq!(group.replicas("decode").await, 1);
    let said = "policy p: HorizontalPodAutoscaler 'h' scales Deployment decode; nothing is written";
    assert_eq!(group.events("decode").await, [format!("OtherScaler: {said}")]);
    // It is said once, and over when it is gone.
    assert_eq!(act(&mut actuator, &clock, &policy, 4).await, [Condition::OtherScaler]);
    assert_eq!(group.events("decode").await.len(), 1);
    group.space.send("DELETE", &format!("{hpas}/h"), &json!({})).await.unwrap();
    assert!(act(&mut actuator, &clock, &policy, 15).await.is_empty());
    assert_eq!(group.replicas("decode").await, 2);
}
