//! Refused requests, and conflicts with other writers, with paused time.

use http::Method;
use serde_json::{Value, json};

use super::Actuator;
use super::tests::{S, act, actuator, observe, plan, policy};
use crate::capacity::Condition;
use crate::capacity::plan::Reason;

#[tokio::test(start_paused = true)]
async fn an_owner_of_the_target_is_found_before_the_first_write() {
    let policy = policy("p", "mode: Apply,");
    let (fake, mut actuator, _) = actuator(std::slice::from_ref(&policy));
    let owner =
        json!({"apiVersion": "example.com/v1", "kind": "InferenceService", "name": "i", "controller": true});
    fake.deployment("d", 3, &json!({"ownerReferences": [owner]}));
    let seen = observe(&mut actuator, &policy, 1, 3).await;
    let plan = act(&mut actuator, &policy, seen, 1, 5).await;
    assert_eq!(plan.conditions, [Condition::OtherScaler]);
    assert!(fake.written("/scale").is_empty());
    let events = fake.written("/events");
    assert_eq!(
        events[0]["message"],
        "policy p: InferenceService 'i' controls Deployment d; nothing is written"
    );
    // Another that only keeps it from being collected sets nothing.
    let keeps = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "c"});
    fake.deployment("d", 3, &json!({"ownerReferences": [keeps]}));
    let seen = observe(&mut actuator, &policy, 12, 3).await;
    assert!(act(&mut actuator, &policy, seen, 12, 5).await.conditions.is_empty());
    assert_eq!(fake.written("/scale").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn unreadable_owner_is_reported_as_unknown() {
    let policy = policy("p", "mode: Apply,");
    for (is_refused, code, expected, writes) in [
        // Deployments can't be listed here at all.
        ("nothing", 403, &[][..], 1),
        ("deployments/d", 403, &[Condition::OwnerUnknown], 1),
        ("deployments/d", 500, &[Condition::OtherScaler], 0),
    ] {
        let (fake, mut actuator, _) = actuator(std::slice::from_ref(&policy));
        let seen = observe(&mut actuator, &policy, 1, 3).await;
        fake.refuse(Method::GET, is_refused, code);
        let plan = act(&mut actuator, &policy, seen, 1, 5).await;
        assert_eq!(
            (&*plan.conditions, fake.written("/scale").len()),
            (expected, writes),
            "{is_refused} {code}"
        );
        let has_frozen = plan.conditions.iter().any(|condition| condition.freezes());
        assert_eq!(has_frozen, writes == 0);
    }
}

#[tokio::test(start_paused = true)]
async fn refused_eviction_is_reported_once() {
    let drains = "behavior: {scaleDown: {drainTimeout: 0s}},";
    let policy = policy("p", &format!("mode: Apply, deploy: {{steps: {{decode: 1}}}}, {drains}"));
    let (fake, mut actuator, _) = actuator(std::slice::from_ref(&policy));
    fake.refuse(Method::POST, "/eviction", 429);
    let trim = async |actuator: &mut Actuator, at: u64| {
        let seen = observe(actuator, &policy, at, 3).await;
        let mut plan = plan(&policy, 3);
        (plan.roles[0].write, plan.roles[0].admitted) = (3, 2);
        plan.roles[0].reasons.push(Reason::Trimmed);
        plan.conditions.clear();
        actuator.apply(&policy, &plan, seen, S(at), None).await.plan.conditions
    };
    for at in [1, 2] {
        assert_eq!(trim(&mut actuator, at).await, [Condition::EvictionRefused]);
    }
    let events = fake.written("/events");
    let events: Vec<&Value> = events.iter().filter(|event| event["reason"] == "EvictionRefused").collect();
    assert_eq!(events.len(), 1);
    assert!(events[0]["message"].as_str().unwrap().contains("429"), "{}", events[0]);
    fake.accept();
    assert!(trim(&mut actuator, 3).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn unsent_events_are_sent_at_the_next_tick() {
    let policy = policy("p", "mode: Apply,");
    for code in [503, 429, 403] {
        let (fake, mut actuator, _) = actuator(std::slice::from_ref(&policy));
        fake.refuse(Method::PATCH, "/scale", 403);
        fake.refuse(Method::POST, "/events", code);
        for at in [1, 2] {
            let seen = observe(&mut actuator, &policy, at, 3).await;
            assert_eq!(act(&mut actuator, &policy, seen, at, 4).await.conditions, [Condition::WriteFailed]);
        }
        assert!(fake.written("/events").is_empty());
        fake.accept();
        let seen = observe(&mut actuator, &policy, 3, 3).await;
        act(&mut actuator, &policy, seen, 3, 3).await;
        let reasons: Vec<Value> =
            fake.written("/events").iter().map(|event| event["reason"].clone()).collect();
        // Without the right to write events there is nobody to tell.
        let expected: &[&str] = if code == 403 { &[] } else { &["WriteFailed"] };
        assert_eq!(reasons, expected, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn failed_deletion_cost_delays_the_write() {
    // Response to a patch of a pod, whether it is then as if it had been written, and how the write fails.
    for (code, writes, conditions) in [
        (403, true, &[Condition::NotDrained][..]),
        (429, false, &[Condition::WriteFailed]),
        (500, false, &[Condition::WriteFailed]),
    ] {
        let policy = policy("p", "mode: Apply, behavior: {scaleDown: {drainTimeout: 60s}},");
        let (fake, mut actuator, _) = actuator(std::slice::from_ref(&policy));
        fake.refuse(Method::PATCH, "pods/d-", code);
        let seen = observe(&mut actuator, &policy, 1, 3).await;
        let plan = act(&mut actuator, &policy, seen, 1, 2).await;
        assert_eq!(
            (fake.written("/scale").len(), &*plan.conditions),
            (usize::from(writes), conditions),
            "{code}"
        );
        if writes {
            continue;
        }
        assert_eq!(actuator.draining().len(), 1, "{code}");
        // It goes at last, whoever the controller takes.
        let seen = observe(&mut actuator, &policy, 60, 3).await;
        act(&mut actuator, &policy, seen, 60, 2).await;
        assert_eq!(fake.written("/scale").len(), 0, "{code}");
        let seen = observe(&mut actuator, &policy, 61, 3).await;
        act(&mut actuator, &policy, seen, 61, 2).await;
        assert_eq!(fake.written("/scale").len(), 1, "{code}");
    }
}
