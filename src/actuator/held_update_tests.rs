//! Rolling updates of Deployments held back by a pause, and resumed, with paused time.

use std::sync::Arc;

use http::Method;
use serde_json::json;

use super::tests::{S, actuator, observe, plan, policy};
use crate::capacity::plan::OpenRole;
use crate::capacity::{Condition, Policy};

#[tokio::test(start_paused = true)]
async fn stuck_deployment_update_is_not_paused() {
    let policy = policy("p", "mode: Apply, update: {maxSkewPercent: 50},");
    let (fake, mut actuator, _) = actuator(std::slice::from_ref(&policy));
    let path = "/apis/apps/v1/namespaces/ns/deployments/d";
    let stuck = Some(OpenRole { pods: 1, up: 0, is_update: true });
    // Others may be stuck, and it isn't.
    for (is_paused, open, patched) in
        [(false, None, Some(true)), (true, None, None), (true, stuck, Some(false)), (false, stuck, None)]
    {
        let annotations = if is_paused { json!({"usher.dev/paused": "true"}) } else { json!({}) };
        fake.has(
            path,
            json!({"metadata": {"annotations": annotations}, "spec": {"replicas": 3, "paused": is_paused}}),
        );
        let mut seen = observe(&mut actuator, &policy, 1, 3).await;
        // Two of three are of the older revision, as many as are to be by now.
        Arc::make_mut(&mut seen.pods).iter_mut().take(2).for_each(|pod| pod.state.is_outdated = true);
        let mut plan = plan(&policy, 3);
        plan.roles[0].partition = Some(2);
        (plan.conditions, plan.roles[0].open) = (vec![Condition::BatchTimeout], open);
        let before = fake.written("/deployments/d").len();
        actuator.apply(&policy, &plan, seen, S(1), None).await;
        let written = fake.written("/deployments/d");
        let paused = written.get(before).map(|patch| patch["spec"]["paused"].as_bool().unwrap());
        assert_eq!(paused, patched, "{is_paused} {open:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn held_update_goes_on_without_its_policy() {
    let update = "update: {maxSkewPercent: 50},";
    let holds = policy("p", &format!("mode: Apply, {update}"));
    let path = "/apis/apps/v1/namespaces/ns/deployments/d";
    // The policy is gone, is edited, or another one holds it back from now on.
    for (next, goes_on) in [
        (None, true),
        (Some(policy("p", "mode: Apply,")), true),
        (Some(policy("p", update)), true),
        (Some(Arc::new(Policy { name: "q".to_owned(), ..Policy::clone(&holds) })), false),
        (Some(Arc::clone(&holds)), false),
    ] {
        for is_ours in [true, false] {
            let (fake, mut actuator, clock) = actuator(std::slice::from_ref(&holds));
            let annotations = if is_ours { json!({"usher.dev/paused": "true"}) } else { json!({}) };
            fake.has(
                path,
                json!({"metadata": {"annotations": annotations}, "spec": {"replicas": 3, "paused": true}}),
            );
            actuator.set_policies(next.iter(), &[]);
            // Another may hold it back from the same moment on.
            actuator.resume_updates(&[]).await;
            assert!(fake.written("/deployments/d").is_empty());
            clock.set(S(12));
            fake.refuse(Method::PATCH, "deployments/d", 503);
            actuator.resume_updates(&[]).await;
            fake.accept();
            actuator.resume_updates(&[]).await;
            let written = fake.written("/deployments/d");
            let is_paused = written.iter().map(|patch| patch["spec"]["paused"].as_bool()).collect::<Vec<_>>();
            let expected: &[Option<bool>] = if goes_on && is_ours { &[Some(false)] } else { &[] };
            assert_eq!(is_paused, expected, "{next:?}");
            // The check ends at some time: somebody else may pause it.
            clock.set(S(62));
            actuator.resume_updates(&[]).await;
            let written = fake.written("/deployments/d").len();
            clock.set(S(70));
            actuator.resume_updates(&[]).await;
            assert_eq!(
                (fake.written("/deployments/d").len(), actuator.has_updates_to_resume()),
                (written, false),
                "{next:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn update_held_for_another_pool_stays_held() {
    let holds = policy("p", "mode: Apply, update: {maxSkewPercent: 50},");
    let (fake, mut actuator, clock) = actuator(std::slice::from_ref(&holds));
    let path = "/apis/apps/v1/namespaces/ns/deployments/d";
    let annotations = json!({"usher.dev/paused": "true"});
    fake.has(
        path,
        json!({"metadata": {"annotations": annotations}, "spec": {"replicas": 3, "paused": true}}),
    );
    actuator.set_policies(std::iter::empty(), &[]);
    clock.set(S(12));
    actuator.resume_updates(&[holds.roles[0].target.clone().unwrap()]).await;
    assert!(fake.written("/deployments/d").is_empty());
    // It is gone as well.
    for at in [13, 23] {
        clock.set(S(at));
        actuator.resume_updates(&[]).await;
    }
    assert_eq!(fake.written("/deployments/d").len(), 1);
}
