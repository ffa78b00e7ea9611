//! The two moves by themselves: what was seen too long ago, and what changed since.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use usher::actuator::Actuator;
use usher::capacity::policy::file;
use usher::capacity::{History, Inputs, Plan, Policy, tick};
use usher::cluster::Cluster;
use usher::endpoints::Clock;
use usher::leader::Term;

use super::group::Group;
use crate::server::Server;
use crate::support::eventually;

pub(super) const S: fn(u64) -> Duration = Duration::from_secs;

/// A role that has to have five pods.
const SPEC: &str = "{mode: Apply, interval: 1s, roles: {decode: {min: 5, max: 9, \
    scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: decode}}}}";

fn policy() -> Policy {
    of(SPEC)
}

/// The policy of a specification.
pub(super) fn of(spec: &str) -> Policy {
    let text = format!(
        "{{apiVersion: usher.dev/v1alpha1, kind: CapacityPolicy, metadata: {{name: p}}, spec: {spec}}}"
    );
    file::parse(&text).unwrap().remove(0).policy
}

/// An actuator that may do everything in a group's namespace, and their clock.
pub(super) async fn actuator(server: &Server, group: &Group, policy: &Policy) -> (Actuator, Clock) {
    let clock = Clock::stopped();
    clock.set(S(1));
    let cluster = Cluster::from(server.client().await);
    let (_, pool) = watch::channel(Some("app=m".to_owned()));
    let term = Arc::new(Term::endless(clock.clone()));
    let mut actuator = Actuator::new(cluster, group.space.name.clone(), clock.clone(), pool, term);
    actuator.set_policies(std::iter::once(&Arc::new(policy.clone())), &[]);
    (actuator, clock)
}

pub(super) fn plan(policy: &Policy, replicas: &[u32]) -> Plan {
    let inputs = Inputs { replicas: replicas.to_vec(), ..Inputs::default() };
    tick(&inputs, policy, &mut History::default(), S(1))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_pod_list_is_not_acted_on() {
    let Some(server) = Server::shared().await else { return };
    let (group, policy) = (Group::new(server, SPEC).await, policy());
    group.workload("Deployment", "decode", 1).await;
    let (mut actuator, clock) = actuator(server, &group, &policy).await;
    eventually("the pods to be listed", async || actuator.observe(&policy, S(1)).await).await;
    // It stands still, so what it says now counts as said at this time.
    clock.set(S(45));
    assert!(actuator.observe(&policy, S(45)).await.is_some());
    // Unless the server has just said something.
    let mut now = S(45);
    eventually("the pods to be old", async || {
        now += S(46);
        clock.set(now);
        actuator.observe(&policy, now).await.is_none().then_some(())
    })
    .await;
    // A word of any of them, and all are known as they are.
    group.ready_pods("decode", 0..1).await;
    let seen = eventually("the pod", async || actuator.observe(&policy, now).await).await;
    assert_eq!((seen.replicas.as_slice(), seen.pods.len()), (&[1][..], 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_replica_change_is_not_overwritten() {
    let Some(server) = Server::shared().await else { return };
    let (group, policy) = (Group::new(server, SPEC).await, policy());
    group.workload("Deployment", "decode", 1).await;
    let (mut actuator, _) = actuator(server, &group, &policy).await;
    let seen = eventually("the pods to be listed", async || actuator.observe(&policy, S(1)).await).await;
    let first = plan(&policy, &seen.replicas);
    assert_eq!(first.roles[0].write, 5);
    group.scale("decode", 3).await;
    assert_eq!(actuator.apply(&policy, &first, seen, S(1), None).await.unwritten, [0]);
    assert_eq!(group.replicas("decode").await, 3);
    // The next look begins there.
    let seen = actuator.observe(&policy, S(2)).await.unwrap();
    assert_eq!(seen.replicas, [3]);
    let next = plan(&policy, &seen.replicas);
    assert!(actuator.apply(&policy, &next, seen, S(2), None).await.unwritten.is_empty());
    assert_eq!(group.replicas("decode").await, 5);
}
