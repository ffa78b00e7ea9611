//! Pods that replace others, in every state in which nothing else is done.

use std::sync::Arc;

use serde_json::json;
use usher::actuator::ObservedPod;
use usher::capacity::{Condition, Policy, State};
use usher::scaling::release::{Release, Released};

use super::group::{Group, pair};
use super::setup::{S, actuator, of, plan};
use super::whose::is_gated;
use crate::server::Server;
use crate::support::eventually;

async fn gated(group: &Group, name: &str, role: &str) {
    group.pod(name, role, json!({"schedulingGates": [{"name": "usher.dev/rollout"}]})).await;
}

/// Reason for which nothing is done but to let replacements pass their gates.
#[derive(Clone, Copy, Debug)]
enum Case {
    ForeignWriter,
    TargetGone,
    Failed,
    Recommend,
    Conflict,
    Paused,
    PolicyGone,
}

/// Does what there is to do, as the driver does.
async fn turn(actuator: &mut usher::actuator::Actuator, policy: &Policy, case: Case, at: u64) {
    let frozen = match case {
        Case::Conflict => Some(Condition::TargetConflict),
        Case::Paused => Some(Condition::Suspended),
        _ => None,
    };
    if matches!(case, Case::PolicyGone) {
        return actuator.open_gates_of_retired().await;
    }
    match actuator.observe(policy, S(at)).await {
        Some(seen) => {
            let mut plan = plan(policy, &seen.replicas);
            for role in &mut plan.roles {
                role.admitted = if role.name == "decode" { 4 } else { 2 };
                if matches!(case, Case::Failed) {
                    let place = usize::from(role.name != "decode");
                    let is_past = |pod: &&ObservedPod| pod.role == place && !pod.state.is_gated;
                    role.admitted = seen.pods.iter().filter(is_past).count() as u32;
                    plan.state = State::Failed;
                }
                role.write = seen.replicas[usize::from(role.name != "decode")];
            }
            actuator.apply(policy, &plan, seen, S(at), frozen).await;
        }
        None => actuator.open_replacement_gates(policy).await,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_without_a_policy_are_released_by_command() {
    let Some(server) = Server::with_policies().await else { return };
    let group = Group::new(server, &pair("")).await;
    for (name, role) in [("decode-0", "decode"), ("prefill-0", "prefill"), ("old-0", "gone")] {
        gated(&group, name, role).await;
    }
    let role = |name: &str| {
        let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": name});
        json!({"min": 1, "max": 9, "scaleTargetRef": target})
    };
    let roles = json!({"decode": role("decode"), "prefill": role("prefill")});
    let spec = json!({"mode": "Apply", "roles": roles, "deploy": {"steps": {"decode": 1, "prefill": 1}}});
    group.space.create(crate::objects::POLICIES, "p", spec).await;
    let cluster = usher::cluster::Cluster::from(server.client().await);
    let release = |all: bool, dry_run: bool, labels: &str| {
        let (namespace, labels) = (group.space.name.clone(), labels.to_owned());
        Release { namespace, labels, all, dry_run }
    };
    // Of another model, and of another Deployment: no policy opens their gates, whatever their role is called.
    for (name, app, owner) in [("other-0", "n", "decode-5d4f"), ("canary-0", "m", "canary-5d4f")] {
        let owners = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": "u", "controller": true}]);
        let labels = json!({"app": app, "llm-d.ai/role": "decode", "pod-template-hash": "5d4f"});
        let pod = json!({
            "metadata": {"name": name, "labels": labels, "ownerReferences": owners},
            "spec": {"schedulingGates": [{"name": "usher.dev/rollout"}], "containers": [{"name": "c", "image": "i"}]},
        });
        group.space.send("POST", &group.space.path("v1", "pods"), &pod).await.unwrap();
    }
    let kept = || Released::Kept { policy: "p".to_owned(), held: Vec::new() };
    let free = || Released::Free;
    let expected = [
        ("canary-0", free()),
        ("decode-0", kept()),
        ("old-0", free()),
        ("other-0", free()),
        ("prefill-0", kept()),
    ];
    let expected = std::collections::BTreeMap::from(expected.map(|(name, became)| (name.to_owned(), became)));
    assert_eq!(release(false, true, "").run(&cluster).await.unwrap().0, expected);
    assert!(is_gated(&group, "old-0").await);
    assert_eq!(release(false, false, "").run(&cluster).await.unwrap().0, expected);
    assert!(!is_gated(&group, "old-0").await && is_gated(&group, "decode-0").await);
    // One that stands still is named with the reason.
    let path = format!("{}/p/status", group.space.path("usher.dev/v1alpha1", "capacitypolicies"));
    let condition = json!({"type": "Suspended", "status": "True", "reason": "Suspended", "message": "paused",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    group.space.send("PATCH", &path, &json!({"status": {"conditions": [condition]}})).await.unwrap();
    let became = release(false, true, "").run(&cluster).await.unwrap().0;
    let held = vec!["Suspended".to_owned()];
    assert_eq!(became["decode-0"], Released::Kept { policy: "p".to_owned(), held });
    let one = release(true, false, "llm-d.ai/role=decode").run(&cluster).await.unwrap().0;
    assert_eq!(one.into_iter().collect::<Vec<_>>(), [("decode-0".to_owned(), Released::Free)]);
    assert!(!is_gated(&group, "decode-0").await && is_gated(&group, "prefill-0").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leftovers_of_a_policy_are_released_by_command() {
    let Some(server) = Server::with_policies().await else { return };
    let group = Group::new(server, &pair("")).await;
    for (kind, name) in
        [("Deployment", "decode"), ("Deployment", "prefill"), ("Deployment", "own"), ("StatefulSet", "set")]
    {
        group.workload(kind, name, 2).await;
    }
    let deployments = group.space.path("apps/v1", "deployments");
    let sets = group.space.path("apps/v1", "statefulsets");
    let ours = json!({"metadata": {"annotations": {"usher.dev/paused": "true"}}, "spec": {"paused": true}});
    for name in ["decode", "prefill"] {
        group.space.send("PATCH", &format!("{deployments}/{name}"), &ours).await.unwrap();
    }
    let own = json!({"spec": {"paused": true}});
    group.space.send("PATCH", &format!("{deployments}/own"), &own).await.unwrap();
    let partition = json!({"metadata": {"annotations": {"usher.dev/partition": "1"}},
        "spec": {"updateStrategy": {"rollingUpdate": {"partition": 2}}}});
    group.space.send("PATCH", &format!("{sets}/set"), &partition).await.unwrap();
    group.pod("old-0", "gone", json!({"containers": [{"name": "c", "image": "i"}]})).await;
    let marks = json!({"controller.kubernetes.io/pod-deletion-cost": "-1000", "usher.dev/draining": "true"});
    let pod = format!("{}/old-0", group.space.path("v1", "pods"));
    group.space.send("PATCH", &pod, &json!({"metadata": {"annotations": marks}})).await.unwrap();
    let role = |name: &str| {
        let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": name});
        json!({"min": 1, "max": 9, "scaleTargetRef": target})
    };
    let spec =
        json!({"mode": "Apply", "roles": {"decode": role("decode")}, "update": {"maxSkewPercent": 50}});
    group.space.create(crate::objects::POLICIES, "p", spec).await;
    let cluster = usher::cluster::Cluster::from(server.client().await);
    let run = async |dry_run: bool| {
        let namespace = group.space.name.clone();
        Release { namespace, labels: String::new(), all: false, dry_run }.run(&cluster).await.unwrap().0
    };
    let expected = [
        ("Deployment/decode", Released::Kept { policy: "p".to_owned(), held: Vec::new() }),
        ("Deployment/prefill", Released::Resumed),
        ("StatefulSet/set", Released::Resumed),
        ("old-0", Released::Unmarked),
    ];
    let expected = std::collections::BTreeMap::from(expected.map(|(name, became)| (name.to_owned(), became)));
    assert_eq!(run(true).await, expected);
    assert_eq!(run(false).await, expected);
    assert_eq!(run(false).await.len(), 1, "they are let go");
    let get = async |path: String| group.space.get(&path).await.unwrap();
    assert_eq!(get(format!("{deployments}/decode")).await["spec"]["paused"], true);
    assert!(get(format!("{deployments}/prefill")).await["spec"]["paused"].is_null());
    assert_eq!(get(format!("{deployments}/own")).await["spec"]["paused"], true, "somebody else's");
    assert_eq!(get(format!("{sets}/set")).await["spec"]["updateStrategy"]["rollingUpdate"]["partition"], 1);
    assert!(get(pod.clone()).await["metadata"]["annotations"].is_null());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replacements_pass_their_gate_in_every_state() {
    let Some(server) = Server::shared().await else { return };
    for case in [
        Case::ForeignWriter,
        Case::TargetGone,
        Case::Failed,
        Case::Recommend,
        Case::Conflict,
        Case::Paused,
        Case::PolicyGone,
    ] {
        let group = Group::new(server, &pair("")).await;
        group.workload("Deployment", "decode", 8).await;
        group.workload("Deployment", "prefill", 4).await;
        group.ready_pods("decode", 0..4).await;
        group.ready_pods("prefill", 0..2).await;
        for number in 4..8 {
            gated(&group, &format!("decode-{number}"), "decode").await;
        }
        let mut policy = of(&pair(""));
        let (mut actuator, clock) = actuator(server, &group, &policy).await;
        let all = async |actuator: &mut usher::actuator::Actuator, pods: usize| {
            let what = format!("{pods} pods");
            let policy = of(&pair(""));
            eventually(&what, async || {
                actuator.observe(&policy, S(1)).await.filter(|seen| seen.pods.len() == pods)
            })
            .await
        };
        all(&mut actuator, 10).await;
        let open = if matches!(case, Case::Recommend) {
            policy = of(&pair("").replace("Apply", "Recommend"));
            actuator.set_policies(std::iter::once(&Arc::new(policy.clone())), &[]);
            Case::Recommend
        } else {
            Case::Paused
        };
        turn(&mut actuator, &policy, open, 2).await;
        match case {
            Case::ForeignWriter => {
                for (at, replicas) in [(3, 9), (4, 8)] {
                    group.scale("prefill", replicas).await;
                    clock.set(S(at));
                    turn(&mut actuator, &policy, case, at).await;
                }
            }
            Case::TargetGone => {
                let path = format!("{}/prefill", group.space.path("apps/v1", "deployments"));
                group.space.send("DELETE", &path, &json!({})).await.unwrap();
            }
            Case::PolicyGone => actuator.set_policies(std::iter::empty(), &[]),
            _ => {}
        }
        // One of the first step dies, and another is made in its place.
        group.space.delete_pod("decode-0", 0).await;
        gated(&group, "decode-9", "decode").await;
        let waiting = async || {
            let mut waiting = 0;
            for number in [4, 5, 6, 7, 9] {
                waiting += u32::from(is_gated(&group, &format!("decode-{number}")).await);
            }
            waiting
        };
        let mut at = 5;
        eventually(&format!("{case:?}: one to be let through"), async || {
            at += 1;
            turn(&mut actuator, &policy, case, at).await;
            (waiting().await == 4).then_some(())
        })
        .await;
        // And that is all.
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        turn(&mut actuator, &policy, case, at + 1).await;
        assert_eq!(waiting().await, 4, "{case:?}");
    }
}

/// Numbers of replicas are not read in this mode.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recommend_admits_late_replacements() {
    let Some(server) = Server::shared().await else { return };
    let group = Group::new(server, &pair("")).await;
    group.ready_pods("decode", 0..4).await;
    let policy = of(&pair("").replace("Apply", "Recommend"));
    let (mut actuator, _) = actuator(server, &group, &policy).await;
    let sees = async |actuator: &mut usher::actuator::Actuator, pods: usize| {
        let policy = &policy;
        eventually(&format!("{pods} pods"), async || {
            actuator.observe(policy, S(1)).await.filter(|seen| seen.pods.len() == pods)
        })
        .await;
    };
    sees(&mut actuator, 4).await;
    turn(&mut actuator, &policy, Case::Recommend, 2).await;
    group.space.delete_pod("decode-0", 0).await;
    // Its controller is slow: there is a look at three.
    sees(&mut actuator, 3).await;
    turn(&mut actuator, &policy, Case::Recommend, 3).await;
    for number in [8, 9] {
        gated(&group, &format!("decode-{number}"), "decode").await;
    }
    sees(&mut actuator, 5).await;
    turn(&mut actuator, &policy, Case::Recommend, 4).await;
    let waiting = [is_gated(&group, "decode-8").await, is_gated(&group, "decode-9").await];
    assert_eq!(waiting.iter().filter(|waits| **waits).count(), 1, "one was let through before");
}
