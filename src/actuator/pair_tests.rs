//! Writes of two roles with a ratio, with paused time.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde_json::json;
use tokio::sync::watch;

use super::fake::Fake;
use super::tests::{S, observe};
use super::{Actuator, Outcome};
use crate::capacity::plan::{Reason, RolePlan};
use crate::capacity::policy::file;
use crate::capacity::{Condition, Plan, Policy};
use crate::endpoints::Clock;
use crate::leader::Term;

/// A policy with between one and three pods of `decode`, of the Deployment `d`, for each of `prefill`, of `p`.
fn policy() -> Arc<Policy> {
    policy_of(true)
}

/// The same; the role `prefill` may have no target.
fn policy_of(has_target: bool) -> Arc<Policy> {
    let role = |name: &str| {
        let target = format!(", scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {name}}}");
        format!("{{min: 1, max: 9{}}}", if has_target || name == "d" { &*target } else { "" })
    };
    let text = format!(
        "{{apiVersion: usher.dev/v1alpha1, kind: CapacityPolicy, metadata: {{name: p}}, spec: {{mode: Apply, interval: 1s, behavior: {{scaleDown: {{drainTimeout: 0s}}}}, coordination: {{ratio: {{numerator: prefill, denominator: decode, min: '1:3', max: '1:1'}}}}, roles: {{decode: {}, prefill: {}}}}}}}",
        role("d"),
        role("p")
    );
    Arc::new(file::parse(&text).unwrap().remove(0).policy)
}

/// Server with these ready pods of both roles, and an actuator that applies the policy.
fn actuator(policy: &Arc<Policy>, pods: [u32; 2]) -> (Fake, Actuator) {
    let fake = Fake::default();
    for ((name, role), pods) in [("d", "decode"), ("p", "prefill")].into_iter().zip(pods) {
        fake.deployment(name, pods, &json!({}));
        (0..pods).for_each(|number| fake.pod(&format!("{name}-{number}"), role, false));
    }
    let clock = Clock::stopped();
    clock.set(S(1));
    let (_, pool) = watch::channel(Some("app=m".to_owned()));
    let term = Arc::new(Term::endless(clock.clone()));
    let mut actuator = Actuator::new(fake.cluster(), "ns".to_owned(), clock, pool, term);
    actuator.set_policies(std::iter::once(policy), &[]);
    (fake, actuator)
}

fn plan(write: [u32; 2]) -> Plan {
    let role = |(name, write): (&str, u32)| RolePlan {
        name: name.to_owned(),
        goal: write,
        desired: write,
        admitted: write,
        write,
        ..RolePlan::default()
    };
    Plan { roles: ["decode", "prefill"].into_iter().zip(write).map(role).collect(), ..Plan::default() }
}

#[tokio::test(start_paused = true)]
async fn failed_write_stops_the_write_of_the_partner() {
    let policy = policy();
    // Pods, what is to be written, whose write fails, and how many replicas are written in all.
    for (pods, write, fails, expected) in [
        // Six decode pods beside one prefill pod would be too many: decode goes first.
        ([6, 3], [3, 1], "deployments/d", 0),
        ([6, 3], [3, 1], "deployments/p", 1),
        ([6, 3], [3, 1], "nothing", 2),
        // Nine beside one, too: prefill grows first.
        ([3, 1], [9, 3], "deployments/p", 0),
        ([3, 1], [9, 3], "deployments/d", 1),
        // Either way it holds.
        ([4, 2], [3, 3], "deployments/d", 1),
        ([4, 2], [3, 3], "deployments/p", 1),
    ] {
        for code in [409, 403, 500] {
            let (fake, mut actuator) = actuator(&policy, pods);
            fake.refuse(Method::PATCH, fails, code);
            let seen = observe(&mut actuator, &policy, 1, (pods[0] + pods[1]) as usize).await;
            actuator.apply(&policy, &plan(write), seen, S(1), None).await;
            let written = fake.written("/scale").len();
            assert_eq!(written, expected, "{pods:?} {write:?} {fails} {code}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_response_stops_the_write_of_the_partner() {
    let policy = policy();
    let (fake, mut actuator) = actuator(&policy, [6, 3]);
    let seen = observe(&mut actuator, &policy, 1, 9).await;
    fake.takes(Duration::from_secs(20));
    let unwritten = actuator.apply(&policy, &plan([3, 1]), seen, S(1), None).await.unwritten;
    fake.takes(Duration::ZERO);
    tokio::time::sleep(S(60)).await;
    assert!(fake.written("/p/scale").is_empty());
    assert_eq!(unwritten, [1], "the other may have been written");
}

#[tokio::test(start_paused = true)]
async fn changed_pods_stop_a_shrink() {
    let policy = policy();
    let (fake, mut actuator) = actuator(&policy, [6, 3]);
    let seen = observe(&mut actuator, &policy, 1, 9).await;
    fake.unready_pod("p-0", "prefill");
    actuator.apply(&policy, &plan([5, 3]), seen, S(1), None).await;
    assert!(fake.written("/scale").is_empty());
    tokio::time::sleep(S(1)).await;
    let seen = observe(&mut actuator, &policy, 2, 9).await;
    actuator.apply(&policy, &plan([5, 3]), seen, S(2), None).await;
    assert_eq!(fake.written("/scale").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn no_role_shrinks_without_a_list_of_its_pods() {
    let policy = policy();
    let (fake, mut actuator) = actuator(&policy, [6, 3]);
    let seen = observe(&mut actuator, &policy, 1, 9).await;
    fake.refuse(Method::GET, "/pods", 500);
    let plan = plan([5, 3]);
    let Outcome { plan, unwritten } = actuator.apply(&policy, &plan, seen, S(1), None).await;
    assert!(fake.written("/scale").is_empty());
    assert_eq!((unwritten, plan.conditions), (vec![0], vec![Condition::WriteFailed]));
}

#[tokio::test(start_paused = true)]
async fn ratio_holds_beside_a_role_without_a_target() {
    let policy = policy_of(false);
    for (pods, write, expected) in [
        // Less than one decode pod for each of prefill, and more than three.
        ([6, 3], [2, 2], Some(3)),
        ([3, 3], [2, 2], None),
        ([6, 2], [8, 3], None),
        ([4, 2], [8, 3], Some(6)),
        ([6, 3], [4, 2], Some(4)),
        ([6, 3], [9, 3], Some(9)),
        // One that is broken is mended.
        ([9, 1], [5, 2], Some(5)),
        // Its minimum it gets.
        ([0, 3], [9, 3], Some(9)),
        ([0, 0], [9, 3], Some(1)),
    ] {
        let (fake, mut actuator) = actuator(&policy, pods);
        let seen = observe(&mut actuator, &policy, 1, (pods[0] + pods[1]) as usize).await;
        let Outcome { plan, unwritten } = actuator.apply(&policy, &plan(write), seen, S(1), None).await;
        let written = fake.written("/d/scale");
        let number = written.first().map(|body| body["spec"]["replicas"].as_u64().unwrap() as u32);
        assert_eq!(number, expected, "{pods:?} {write:?}");
        let role = &plan.roles[0];
        assert_eq!(role.admitted, role.write, "those that stay may be replaced: {pods:?} {write:?}");
        let is_reported = plan.conditions.contains(&Condition::NoTarget);
        assert_eq!(is_reported, expected != Some(write[0]), "{pods:?} {write:?}");
        assert_eq!(unwritten.contains(&0), expected.is_none(), "{pods:?} {write:?}");
    }
}

/// One of six decode pods is unready for a moment, or two are abandoned that never became ready.
#[tokio::test(start_paused = true)]
async fn unready_pods_do_not_bypass_a_ratio() {
    let policy = policy_of(false);
    for (pods, unready, is_trimmed, expected) in
        [(6, 1, false, None), (8, 2, true, Some(6)), (6, 0, true, None)]
    {
        let (fake, mut actuator) = actuator(&policy, [pods, 6]);
        for number in 0..unready {
            fake.unready_pod(&format!("d-{number}"), "decode");
        }
        let mut plan = plan([4, 6]);
        if is_trimmed {
            plan.roles[0].reasons.push(Reason::Trimmed);
        }
        // Again and again: nothing is given up bit by bit.
        for at in 1..4 {
            let seen = observe(&mut actuator, &policy, at, (pods + 6) as usize).await;
            let outcome = actuator.apply(&policy, &plan, seen, S(at), None).await;
            assert!(outcome.plan.conditions.contains(&Condition::NoTarget), "{pods} {unready}");
        }
        let written = fake.written("/d/scale");
        let numbers: Vec<_> =
            written.iter().map(|body| body["spec"]["replicas"].as_u64().unwrap() as u32).collect();
        assert!(numbers.iter().all(|number| Some(*number) == expected), "{pods} {unready}: {numbers:?}");
        assert_eq!(numbers.is_empty(), expected.is_none(), "{pods} {unready}");
    }
}

/// With gates a trim evicts, and leaves the replicas.
#[tokio::test(start_paused = true)]
async fn gated_trim_keeps_ready_pods_needed_by_a_ratio() {
    let policy = policy_of(false);
    // Pods that prefill has, and those of decode that are kept.
    for (prefill, kept) in [(6, 6), (5, 5), (3, 4)] {
        let (fake, mut actuator) = actuator(&policy, [8, prefill]);
        for number in 0..2 {
            fake.unready_pod(&format!("d-{number}"), "decode");
        }
        let mut plan = plan([8, prefill]);
        plan.roles[0].admitted = 4;
        plan.roles[0].reasons.push(Reason::Trimmed);
        let seen = observe(&mut actuator, &policy, 1, (8 + prefill) as usize).await;
        let outcome = actuator.apply(&policy, &plan, seen, S(1), None).await;
        assert_eq!(outcome.plan.roles[0].admitted, kept, "{prefill}");
        assert_eq!(outcome.plan.conditions.contains(&Condition::NoTarget), kept > 4, "{prefill}");
    }
}
