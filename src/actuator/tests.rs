//! Both phases with a fake API server and paused time.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::fake::Fake;
use super::{Actuator, Observed, PodLoad};
use crate::capacity::plan::Reason;
use crate::capacity::policy::file;
use crate::capacity::resource::status::{DomainStatus, RoleStatus};
use crate::capacity::{Condition, History, Inputs, Plan, Policy, tick};
use crate::endpoints::Clock;
use crate::leader::Term;

pub(super) const S: fn(u64) -> Duration = Duration::from_secs;

const COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Policy for the role `decode`: `p` of the Deployment `d`, others of one of their own name.
pub(super) fn policy(name: &str, more: &str) -> Arc<Policy> {
    let target = if name == "p" { "d" } else { name };
    let text = format!(
        "{{apiVersion: usher.dev/v1alpha1, kind: CapacityPolicy, metadata: {{name: {name}}}, spec: {{interval: 1s, {more} roles: {{decode: {{min: 1, max: 9, scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {target}}}}}}}}}}}"
    );
    Arc::new(file::parse(&text).unwrap().remove(0).policy)
}

/// Server with three pods of a Deployment, and an actuator that applies these policies.
pub(super) fn actuator(policies: &[Arc<Policy>]) -> (Fake, Actuator, Clock) {
    let (fake, actuator, clock, _) = actuator_of_pool(policies);
    (fake, actuator, clock)
}

/// The same, with the pool's label selector.
fn actuator_of_pool(policies: &[Arc<Policy>]) -> (Fake, Actuator, Clock, watch::Sender<Option<String>>) {
    let fake = Fake::default();
    fake.deployment("d", 3, &json!({}));
    for number in 0..3 {
        fake.pod(&format!("d-{number}"), "decode", false);
    }
    let clock = Clock::stopped();
    clock.set(S(1));
    let (labels, pool) = watch::channel(Some("app=m".to_owned()));
    let term = Arc::new(Term::endless(clock.clone()));
    let mut actuator = Actuator::new(fake.cluster(), "ns".to_owned(), clock.clone(), pool, term);
    actuator.set_policies(policies.iter(), &[]);
    (fake, actuator, clock, labels)
}

/// Observes until this number of pods is seen.
pub(super) async fn observe(actuator: &mut Actuator, policy: &Policy, at: u64, pods: usize) -> Observed {
    for _ in 0..100 {
        if let Some(seen) = actuator.observe(policy, S(at)).await
            && seen.pods.len() == pods
        {
            return seen;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("no observation finds {pods} pods: {}", actuator.why_unobserved());
}

pub(super) fn plan(policy: &Policy, replicas: u32) -> Plan {
    let inputs = Inputs { replicas: vec![replicas], ..Inputs::default() };
    tick(&inputs, policy, &mut History::default(), S(1))
}

/// Applies a plan with this number of pods for the role.
pub(super) async fn act(
    actuator: &mut Actuator,
    policy: &Policy,
    mut seen: Observed,
    at: u64,
    write: u32,
) -> Plan {
    let loads = ["d-0", "d-1", "d-2"].map(|name| (name.to_owned(), PodLoad::default()));
    seen.loads = Some(loads.into());
    let mut plan = plan(policy, 3);
    (plan.roles[0].write, plan.roles[0].admitted) = (write, write);
    plan.conditions.clear();
    actuator.apply(policy, &plan, seen, S(at), None).await.plan
}

/// Number of pods with a low deletion cost.
fn marked(fake: &Fake) -> usize {
    (0..3).filter(|number| fake.annotation(&format!("d-{number}"), COST) != Value::Null).count()
}

#[tokio::test(start_paused = true)]
async fn deleted_policy_without_steps_opens_its_gates() {
    let recommends = policy("p", "mode: Recommend,");
    for after in [vec![], vec![recommends]] {
        let policy = policy("p", "mode: Apply,");
        let (fake, mut actuator, _) = actuator(std::slice::from_ref(&policy));
        let seen = observe(&mut actuator, &policy, 1, 3).await;
        act(&mut actuator, &policy, seen, 1, 3).await;
        actuator.set_policies(after.iter(), &[]);
        fake.delete("d-0");
        for name in ["d-8", "d-9"] {
            fake.pod(name, "decode", true);
        }
        tokio::time::sleep(S(1)).await;
        actuator.open_gates_of_retired().await;
        assert!(fake.is_gated("d-8") != fake.is_gated("d-9"), "one replaces another: {after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_role_with_other_pods_begins_without_replacements() {
    let before = policy("p", "mode: Apply,");
    let edited = |edit: &dyn Fn(&mut Policy)| {
        let mut policy = Policy::clone(&before);
        edit(&mut policy);
        Arc::new(policy)
    };
    let larger = edited(&|policy| policy.roles[0].range.max = 12);
    let relabelled =
        edited(&|policy| policy.roles[0].selector = [("tier".to_owned(), "gold".to_owned())].into());
    let retargeted =
        edited(&|policy| policy.roles[0].target.iter_mut().for_each(|of| of.name = "e".to_owned()));
    for (after, known) in [(larger, Some(3)), (relabelled, None), (retargeted, None)] {
        let (_fake, mut actuator, _) = actuator(std::slice::from_ref(&before));
        let seen = observe(&mut actuator, &before, 1, 3).await;
        act(&mut actuator, &before, seen, 1, 3).await;
        assert_eq!(actuator.let_through("p", "decode"), Some(3));
        actuator.set_policies(std::iter::once(&after), &[]);
        assert_eq!(actuator.let_through("p", "decode"), known, "{after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn new_leader_takes_over_domains_of_admitted_pods() {
    let policy = policy("p", "mode: Apply,");
    let (_fake, mut actuator, _) = actuator(std::slice::from_ref(&policy));
    let role = &policy.roles[0];
    let domain =
        |domain: &str, pods| DomainStatus { layer: "rack".to_owned(), domain: domain.to_owned(), pods };
    let status = |let_through, domains| RoleStatus {
        name: role.name.clone(),
        selector: Some(role.label_selector()),
        target: role.target_name(),
        let_through: Some(let_through),
        domains,
        ..RoleStatus::default()
    };
    actuator.restore_admissions(&policy, &[status(5, vec![domain("r1", 3), domain("r2", 2)])]);
    assert_eq!(actuator.domains("p", "decode"), [domain("r1", 3), domain("r2", 2)]);
    // Its own knowledge is newer.
    actuator.restore_admissions(&policy, &[status(9, vec![domain("r3", 9)])]);
    assert_eq!(actuator.let_through("p", "decode"), Some(5));
    assert_eq!(actuator.domains("p", "decode"), [domain("r1", 3), domain("r2", 2)]);
    actuator.forget();
    assert_eq!(actuator.domains("p", "decode"), []);
}

#[tokio::test(start_paused = true)]
async fn deletion_cost_is_removed_when_no_policy_scales_down() {
    let steps = "deploy: {steps: {decode: 1}},";
    let recommends = policy("p", &format!("mode: Recommend, {steps}"));
    for after in [vec![], vec![recommends]] {
        let policy = policy("p", &format!("mode: Apply, {steps}"));
        let (fake, mut actuator, _) = actuator(std::slice::from_ref(&policy));
        let seen = observe(&mut actuator, &policy, 1, 3).await;
        let plan = act(&mut actuator, &policy, seen, 1, 2).await;
        assert!(plan.roles[0].reasons.contains(&Reason::Draining) && marked(&fake) == 1);
        actuator.set_policies(after.iter(), &[]);
        tokio::time::sleep(S(1)).await;
        if let Some(recommends) = after.first() {
            let seen = observe(&mut actuator, recommends, 2, 3).await;
            act(&mut actuator, recommends, seen, 2, 2).await;
        } else {
            actuator.open_gates_of_retired().await;
        }
        assert_eq!(marked(&fake), 0, "{after:?}");
        assert!(actuator.draining().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn recommend_policy_ignores_pods_of_an_apply_policy() {
    let (acts, tries) = (policy("p", "mode: Apply,"), policy("q", "deploy: {steps: {decode: 1}},"));
    let (fake, mut actuator, _) = actuator(&[Arc::clone(&acts), Arc::clone(&tries)]);
    let seen = observe(&mut actuator, &tries, 1, 3).await;
    act(&mut actuator, &tries, seen, 1, 3).await;
    // One is about to go, and another waits for the next step.
    let draining =
        json!({"controller.kubernetes.io/pod-deletion-cost": "-1000", "usher.dev/draining": "true"});
    fake.annotate("d-0", &draining);
    fake.pod("d-1", "decode", true);
    tokio::time::sleep(S(1)).await;
    let seen = observe(&mut actuator, &tries, 2, 3).await;
    act(&mut actuator, &tries, seen, 2, 3).await;
    actuator.open_replacement_gates(&tries).await;
    actuator.open_all_replacement_gates().await;
    assert!(fake.is_gated("d-1"));
    assert_eq!(fake.annotation("d-0", "usher.dev/draining"), "true");
    assert!(fake.written("").is_empty());
}

#[tokio::test(start_paused = true)]
async fn all_pods_of_a_role_without_target_pass() {
    let mut sized = Policy::clone(&policy("p", "mode: Apply,"));
    sized.roles[0].target = None;
    let policy = Arc::new(sized);
    let frozen = [None, Some(Condition::Suspended), Some(Condition::TargetConflict)];
    for frozen in frozen {
        let (fake, mut actuator, _) = actuator(std::slice::from_ref(&policy));
        let seen = observe(&mut actuator, &policy, 1, 3).await;
        actuator.apply(&policy, &plan(&policy, 3), seen, S(1), frozen).await;
        fake.pod("d-3", "decode", true);
        tokio::time::sleep(S(1)).await;
        actuator.open_all_replacement_gates().await;
        assert!(!fake.is_gated("d-3"), "before the next observation: {frozen:?}");
        fake.pod("d-4", "decode", true);
        tokio::time::sleep(S(1)).await;
        let seen = observe(&mut actuator, &policy, 2, 5).await;
        actuator.apply(&policy, &plan(&policy, 3), seen, S(2), frozen).await;
        assert!(!fake.is_gated("d-4"), "{frozen:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn retired_policy_opens_gates_beside_another_target() {
    let gone = policy("p", "mode: Apply,");
    let mut other = Policy::clone(&policy("q", "mode: Apply,"));
    other.roles[0].target.as_mut().unwrap().name = "e".to_owned();
    let other = Arc::new(other);
    let (fake, mut actuator, _) = actuator(&[Arc::clone(&gone), Arc::clone(&other)]);
    for number in 0..3 {
        fake.owned_pod(&format!("d-{number}"), "decode", false, "d");
    }
    let seen = observe(&mut actuator, &gone, 1, 3).await;
    act(&mut actuator, &gone, seen, 1, 3).await;
    actuator.set_policies(std::iter::once(&other), &[]);
    fake.owned_pod("d-0", "decode", true, "d");
    tokio::time::sleep(S(1)).await;
    actuator.open_gates_of_retired().await;
    assert!(!fake.is_gated("d-0"));
}

#[tokio::test(start_paused = true)]
async fn problems_of_deleted_policies_are_forgotten() {
    let (fake, mut actuator, _) = actuator(&[]);
    fake.refuse(Method::GET, "/scale", 503);
    for number in 0..20 {
        let policy = policy(&format!("p{number}"), "mode: Apply,");
        actuator.set_policies(std::iter::once(&policy), &[]);
        for _ in 0..20 {
            assert!(actuator.observe(&policy, S(1)).await.is_none());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(actuator.reported_problems(), 1, "{}", policy.name);
    }
    for pod in 0..3 {
        fake.delete(&format!("d-{pod}"));
    }
    actuator.set_policies(std::iter::empty(), &[]);
    tokio::time::sleep(S(1)).await;
    assert_eq!(actuator.reported_problems(), 0);
}

#[tokio::test(start_paused = true)]
async fn changed_pool_is_observed_again_before_writes() {
    let policy = policy("p", "mode: Apply, behavior: {scaleDown: {drainTimeout: 0s}},");
    let (fake, mut actuator, _, labels) = actuator_of_pool(std::slice::from_ref(&policy));
    let seen = observe(&mut actuator, &policy, 1, 3).await;
    let asked = actuator.fetch_request(&policy).send().await;
    labels.send_replace(Some("app=n".to_owned()));
    act(&mut actuator, &policy, seen, 1, 2).await;
    assert!(fake.written("").is_empty(), "the pods are of another pool");
    assert!(actuator.observe_fetched(&policy, asked, S(1)).await.is_none());
    let why = actuator.why_unobserved();
    assert!(why.ends_with("the pool's labels changed while its pods were observed"), "{why}");
    let seen = observe(&mut actuator, &policy, 2, 3).await;
    act(&mut actuator, &policy, seen, 2, 2).await;
    assert_eq!(fake.written("/scale").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn newly_ready_pod_drains_before_its_eviction() {
    let policy = policy("p", "mode: Apply, deploy: {steps: {decode: 1}},");
    let (fake, mut actuator, _) = actuator(std::slice::from_ref(&policy));
    fake.unready_pod("d-2", "decode");
    tokio::time::sleep(S(1)).await;
    let trim = async |actuator: &mut Actuator, seen: Observed, at: u64| {
        let mut plan = plan(&policy, 3);
        (plan.roles[0].write, plan.roles[0].admitted) = (3, 2);
        plan.roles[0].reasons.push(Reason::Trimmed);
        plan.conditions.clear();
        let plan = actuator.apply(&policy, &plan, seen, S(at), None).await.plan;
        assert!(plan.conditions.is_empty(), "{:?}", plan.conditions);
    };
    let seen = observe(&mut actuator, &policy, 1, 3).await;
    fake.pod("d-2", "decode", false);
    trim(&mut actuator, seen, 1).await;
    assert!(!fake.is_gone("d-2"), "it serves by now");
    tokio::time::sleep(S(1)).await;
    let seen = observe(&mut actuator, &policy, 2, 3).await;
    trim(&mut actuator, seen, 2).await;
    assert_eq!(actuator.draining().len(), 1);
}
