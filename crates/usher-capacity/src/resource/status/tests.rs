//! Statuses of policies by plan and previous status.

use super::*;
use crate::plan::{Reason, RolePlan, RuleOutcome, RuleStage, Shortfalls, Stages, State};
use crate::policy::file;
use crate::rollout::Shortfall;

const FINE: Verdict = Verdict { is_accepted: true, reason: "Accepted", message: String::new() };

fn policy() -> Policy {
    let text = "apiVersion: usher.dev/v1alpha1\nkind: CapacityPolicy\nmetadata: {name: p}\nspec:\n  roles: {a: {max: 5}}\n  rules:\n  - {name: up, role: a, metric: queue_depth, comparator: GREATER_THAN, threshold: 5, step: 1}\n  - {name: down, role: a, metric: queue_depth, comparator: LESS_THAN, threshold: 1, step: -1}\n";
    file::parse(text).unwrap().remove(0).policy
}

fn plan() -> Plan {
    let stage = |name: &str, outcome| RuleStage { name: name.to_owned(), value: Some(7.25), outcome };
    let rules = vec![stage("up", RuleOutcome::Fired), stage("down", RuleOutcome::Quiet)];
    let role = RolePlan {
        name: "a".to_owned(),
        current: 1,
        ready: 1,
        desired: 2,
        admitted: 2,
        reasons: vec![Reason::Rule],
        ..RolePlan::default()
    };
    let stages = Stages { current: 1, rules, ..Stages::default() };
    Plan { roles: vec![role], total: 2, state: State::Scale, stages, ..Plan::default() }
}

fn of(plan: &Plan, fired: &[Option<String>], before: &PolicyStatus, now: &str) -> PolicyStatus {
    let domain = DomainStatus { layer: "rack".to_owned(), domain: "r1".to_owned(), pods: 2 };
    let let_through = [LetThrough { role: "a".to_owned(), pods: 2, domains: vec![domain] }];
    let ticked = TickStatus { policy: &policy(), plan, fired, writes: &[], let_through: &let_through };
    status(StatusInput { generation: Some(3), verdict: &FINE, ticked: Some(ticked), held: None }, before, now)
}

fn condition<'a>(status: &'a PolicyStatus, name: &str) -> &'a StatusCondition {
    status.conditions.iter().find(|condition| condition.of == name).unwrap()
}

#[test]
fn status_ignores_changing_metric_values() {
    let fired = [Some("2026-01-01T00:00:00Z".to_owned()), None];
    let first = of(&plan(), &fired, &PolicyStatus::default(), "t1");
    assert_eq!((first.observed_generation, first.current, first.desired), (Some(3), Some(1), Some(2)));
    assert_eq!(first.state.as_deref(), Some("Scale"));
    assert_eq!(first.roles[0].reasons, ["Rule"]);
    let rule = |place: usize| first.rules[place].clone();
    assert_eq!(rule(0).last_trigger_time.as_deref(), Some("2026-01-01T00:00:00Z"));
    assert_eq!((rule(0).last_skip_reason, rule(1).last_skip_reason.as_deref()), (None, Some("Quiet")));
    // Another value of the same metric, at another time: nothing to write.
    let mut later = plan();
    later.stages.rules[0].value = Some(8.5);
    assert_eq!(of(&later, &fired, &first, "t2"), first);
    // Who leads next doesn't know when a rule fired, and the status does.
    let next = of(&plan(), &[None, None], &first, "t3");
    assert_eq!(next.rules, first.rules);
}

#[test]
fn transition_time_changes_only_with_the_condition() {
    let mut blocked = plan();
    blocked.state = State::Blocked;
    blocked.conditions = vec![Condition::TopologyUnsatisfied];
    let domains = vec![Shortfall { domain: "r1".to_owned(), missing: vec![1] }];
    blocked.shortfalls = Some(Shortfalls { layer: "rack".to_owned(), need: vec![2], domains });
    let first = of(&blocked, &[], &PolicyStatus::default(), "t1");
    let progressing = condition(&first, "Progressing");
    assert_eq!((progressing.status.as_str(), progressing.reason.as_str()), ("False", "TopologyUnsatisfied"));
    assert!(progressing.message.contains("r1 lacks 1 a"), "{}", progressing.message);
    assert!(first.conditions.iter().all(|condition| condition.last_transition_time == "t1"));
    let same = of(&blocked, &[], &first, "t2");
    assert_eq!(same, first);
    let turned = of(&plan(), &[], &first, "t3");
    let unsatisfied = condition(&turned, "TopologyUnsatisfied");
    assert_eq!((unsatisfied.status.as_str(), unsatisfied.last_transition_time.as_str()), ("False", "t3"));
    assert_eq!(condition(&turned, "Accepted").last_transition_time, "t1");
    assert!(
        turned.conditions.iter().all(|condition| condition.of != "Panic"),
        "what never was is not reported"
    );
}

#[test]
fn refused_policy_keeps_its_previous_status() {
    let first = of(&plan(), &[], &PolicyStatus::default(), "t1");
    let verdict = Verdict { is_accepted: false, reason: "Invalid", message: "no".to_owned() };
    let refused = status(
        StatusInput { generation: Some(4), verdict: &verdict, ticked: None, held: None },
        &first,
        "t2",
    );
    let accepted = condition(&refused, "Accepted");
    assert_eq!((accepted.status.as_str(), accepted.last_transition_time.as_str()), ("False", "t2"));
    assert_eq!((accepted.observed_generation, accepted.message.as_str()), (Some(4), "no"));
    assert_eq!((refused.roles[0].admitted, first.roles[0].let_through), (2, Some(2)));
    let role = &refused.roles[0];
    assert_eq!((role.let_through, role.selector.as_deref()), (Some(2), Some("llm-d.ai/role=a")));
    assert_eq!((role.domains[0].domain.as_str(), role.domains[0].pods), ("r1", 2));
    assert_eq!(condition(&refused, "Progressing"), condition(&first, "Progressing"));
    let read: PolicyStatus = serde_json::from_str(&serde_json::to_string(&refused).unwrap()).unwrap();
    assert_eq!(read, refused);
}

#[test]
fn status_has_the_last_write_to_each_role() {
    let write = |role: &str, time: &str| LastWrite {
        role: role.to_owned(),
        time: time.to_owned(),
        ..LastWrite::default()
    };
    let status = |writes: &[LastWrite], before: &PolicyStatus| {
        let mut plan = plan();
        plan.roles.push(RolePlan { name: "b".to_owned(), ..RolePlan::default() });
        let ticked = TickStatus { policy: &policy(), plan: &plan, fired: &[], writes, let_through: &[] };
        let input = StatusInput { generation: None, verdict: &FINE, ticked: Some(ticked), held: None };
        status(input, before, "t1")
    };
    let first = status(&[write("a", "t1"), write("b", "t2")], &PolicyStatus::default());
    assert_eq!(first.last_writes, [write("b", "t2"), write("a", "t1")]);
    // That of the one that led before stays until there is a newer one, or the role is gone.
    let next = status(&[write("a", "t3")], &first);
    assert_eq!(next.last_writes, [write("a", "t3"), write("b", "t2")]);
    assert_eq!(of(&plan(), &[], &next, "t4").last_writes, [write("a", "t3")]);
}
