//! Controllers that delete the highest ordinals, with paused time.

use std::sync::Arc;

use serde_json::json;

use super::Actuator;
use super::tests::{S, act, actuator, observe, plan, policy};
use crate::capacity::plan::Reason;
use crate::capacity::policy::{Mode, file};
use crate::capacity::{Condition, Policy};

/// A policy for the role `decode` of the StatefulSet `d`.
fn ordinals(more: &str) -> Arc<Policy> {
    let text = format!(
        "{{apiVersion: usher.dev/v1alpha1, kind: CapacityPolicy, metadata: {{name: p}}, spec: {{mode: Apply, interval: 1s, behavior: {{scaleDown: {{drainTimeout: 0s}}}}, {more} roles: {{decode: {{min: 1, max: 9, scaleTargetRef: {{apiVersion: apps/v1, kind: StatefulSet, name: d}}}}}}}}}}"
    );
    Arc::new(file::parse(&text).unwrap().remove(0).policy)
}

#[tokio::test(start_paused = true)]
async fn wait_for_lower_ordinals_restarts_after_recommend() {
    let policy = ordinals("deploy: {steps: {decode: 1}, batchTimeout: 30s},");
    let recommends = Arc::new(Policy { mode: Mode::Recommend, ..Policy::clone(&policy) });
    let (fake, mut actuator, clock) = actuator(std::slice::from_ref(&policy));
    fake.workload("statefulsets", "d", 3, &json!({}));
    fake.unready_pod("d-0", "decode");
    for (at, policy) in [(1, &policy), (2, &recommends), (40, &policy)] {
        clock.set(S(at));
        tokio::time::sleep(S(1)).await;
        let seen = observe(&mut actuator, policy, at, 3).await;
        act(&mut actuator, policy, seen, at, 2).await;
    }
    assert!(fake.written("/scale").is_empty(), "it was ready in between, for all that is known");
}

#[tokio::test(start_paused = true)]
async fn high_ordinals_drain_also_where_a_lower_one_is_missing() {
    let drains = "deploy: {steps: {decode: 1}, batchTimeout: 30s},";
    let policy = Policy { behavior: policy("p", "").behavior, ..Policy::clone(&ordinals(drains)) };
    let policy = Arc::new(policy);
    let (fake, mut actuator, clock) = actuator(std::slice::from_ref(&policy));
    fake.workload("statefulsets", "d", 3, &json!({}));
    fake.delete("d-0");
    for at in [1, 31] {
        clock.set(S(at));
        tokio::time::sleep(S(1)).await;
        let seen = observe(&mut actuator, &policy, at, 2).await;
        act(&mut actuator, &policy, seen, at, 2).await;
    }
    assert!(fake.written("/scale").is_empty(), "d-2 may have requests");
    assert_eq!(actuator.draining().into_iter().collect::<Vec<_>>(), ["uid-d-2"]);
}

#[tokio::test(start_paused = true)]
async fn a_trim_keeps_ready_ordinals_above_unready_ones() {
    let policy = ordinals("deploy: {steps: {decode: 2}, batchTimeout: 30s, onTimeout: Trim},");
    let (fake, mut actuator, _) = actuator(std::slice::from_ref(&policy));
    fake.workload("statefulsets", "d", 3, &json!({}));
    fake.unready_pod("d-0", "decode");
    let trim = async |actuator: &mut Actuator, at: u64| {
        tokio::time::sleep(S(1)).await;
        let seen = observe(actuator, &policy, at, 3).await;
        let mut plan = plan(&policy, 3);
        (plan.roles[0].write, plan.roles[0].admitted) = (2, 2);
        plan.roles[0].reasons.push(Reason::Trimmed);
        plan.conditions.clear();
        actuator.apply(&policy, &plan, seen, S(at), None).await.plan.conditions
    };
    assert_eq!(trim(&mut actuator, 2).await, [Condition::LowerOrdinalsUnready]);
    assert!(fake.written("/scale").is_empty(), "d-1 and d-2 make a group, d-0 and d-1 make none");
    // The pod that isn't ready is the highest: it goes.
    fake.pod("d-0", "decode", false);
    fake.unready_pod("d-2", "decode");
    assert!(trim(&mut actuator, 4).await.is_empty());
    assert_eq!(fake.written("/scale").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn kept_pod_passes_its_gate_before_others_are_deleted() {
    let policy = ordinals("deploy: {steps: {decode: 1}, batchTimeout: 30s},");
    let (fake, mut actuator, _) = actuator(std::slice::from_ref(&policy));
    fake.workload("statefulsets", "d", 4, &json!({}));
    fake.pod("d-0", "decode", true);
    fake.pod("d-3", "decode", true);
    tokio::time::sleep(S(1)).await;
    // Of those before the gate one stays, and one goes.
    let seen = observe(&mut actuator, &policy, 1, 4).await;
    act(&mut actuator, &policy, seen, 1, 2).await;
    assert_eq!([fake.is_gated("d-0"), fake.is_gated("d-3")], [false, true]);
    assert!(fake.written("/scale").is_empty(), "d-2 is ready, and d-0 is not yet");
}

#[tokio::test(start_paused = true)]
async fn stateful_set_keeps_one_ready_pod() {
    let policy = ordinals("deploy: {steps: {decode: 1}, batchTimeout: 5s},");
    // Of one it keeps that, of several the lowest.
    for (pods, written) in [(2, None), (3, Some(2))] {
        let (fake, mut actuator, clock) = actuator(std::slice::from_ref(&policy));
        fake.workload("statefulsets", "d", pods, &json!({}));
        if pods == 2 {
            fake.delete("d-2");
        }
        fake.unready_pod("d-0", "decode");
        for at in [1, 6, 11, 16, 40] {
            clock.set(S(at));
            tokio::time::sleep(S(1)).await;
            let seen = observe(&mut actuator, &policy, at, pods as usize).await;
            let conditions = act(&mut actuator, &policy, seen, at, 1).await.conditions;
            let is_over = at > 1 && written.is_some();
            assert!(is_over || conditions == [Condition::LowerOrdinalsUnready], "{at} {conditions:?}");
        }
        let writes = fake.written("/scale");
        let replicas = writes.first().map(|write| write["spec"]["replicas"].as_u64().unwrap());
        assert_eq!(replicas, written, "{writes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn stateful_set_waits_for_lower_ordinals_with_a_limit() {
    let policy = ordinals("deploy: {steps: {decode: 1}, batchTimeout: 30s},");
    let waits = [Condition::LowerOrdinalsUnready];
    for is_ready_later in [true, false] {
        let (fake, mut actuator, clock) = actuator(std::slice::from_ref(&policy));
        fake.workload("statefulsets", "d", 3, &json!({}));
        fake.unready_pod("d-0", "decode");
        for at in [1, 2, 30] {
            clock.set(S(at));
            tokio::time::sleep(S(1)).await;
            let seen = observe(&mut actuator, &policy, at, 3).await;
            assert_eq!(act(&mut actuator, &policy, seen, at, 2).await.conditions, waits, "{at}");
        }
        assert!(fake.written("/scale").is_empty());
        let events = fake.written("/events");
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!(
            events[0]["message"],
            "policy p: role decode: unready lower ordinals: 1, ready pods that scale-down would delete: d-2"
        );
        // Either it gets ready, or half a minute has passed.
        let at = if is_ready_later { 30 } else { 31 };
        if is_ready_later {
            fake.pod("d-0", "decode", false);
            tokio::time::sleep(S(1)).await;
        }
        clock.set(S(at));
        let seen = observe(&mut actuator, &policy, at, 3).await;
        assert!(act(&mut actuator, &policy, seen, at, 2).await.conditions.is_empty());
        assert_eq!(fake.written("/scale").len(), 1);
    }
}
