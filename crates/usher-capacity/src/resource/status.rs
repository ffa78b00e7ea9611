//! Status of a policy: a function of the policy's current state, of the status that was written before and
//! of the time.
//!
//! Numbers that change with every tick (a metric's value, how pressed a role is) are not in it: they are
//! metrics of the picker, and every write is one for the whole cluster's store.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan::{Condition, Plan, State};
use crate::policy::{Policy, Role, Sizing};

/// The status of a CapacityPolicy. Written by the leader only.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyStatus {
    /// The generation of the policy that this is about.
    pub observed_generation: Option<i64>,
    /// State of the group: Idle, Deploy, Scale, Update, Blocked or Failed.
    pub state: Option<String>,
    /// Pods that there are, of all roles.
    pub current: Option<u32>,
    /// Pods that there should be, of all roles.
    pub desired: Option<u32>,
    /// The plan, role by role.
    pub roles: Vec<RoleStatus>,
    /// Outcome of each rule.
    pub rules: Vec<RuleStatus>,
    /// The last write to what has each role's replicas, the newest first.
    pub last_writes: Vec<LastWrite>,
    /// Conditions of the policy: what is as it should be, and what is not.
    pub conditions: Vec<StatusCondition>,
}

/// The plan of a role.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["name"]))]
pub struct RoleStatus {
    /// The role.
    pub name: String,
    /// Label selector of its pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Workload that has its pods, by kind, group and name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Pods that there are.
    pub current: u32,
    /// Number of them that are ready.
    pub ready: u32,
    /// Pods that there should be.
    pub desired: u32,
    /// Pods that there should be once other roles have grown. Absent: as many as are desired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal: Option<u32>,
    /// Pods that may exist, and don't wait at a scheduling gate.
    pub admitted: u32,
    /// Pods that were let through their gate and may be replaced by others. Absent: none is known to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub let_through: Option<u32>,
    /// Domains of the topology that those belong in.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<DomainStatus>,
    /// From which ordinal on pods may be of the newest revision, where some are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
    /// The layer that the last step fit into one domain of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
    /// Reasons for these numbers, in the order of the steps.
    pub reasons: Vec<String>,
}

/// Pods of a role in a domain of the topology.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["layer", "domain", "pods"]))]
pub struct DomainStatus {
    /// Layer of the domain: a label of nodes.
    pub layer: String,
    /// The domain: a value of that label.
    pub domain: String,
    /// Pods that were let through their gate for this domain.
    pub pods: u32,
}

/// Pods of a role that were let through their gate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LetThrough {
    /// The role's name.
    pub role: String,
    /// Number of pods that there are.
    pub pods: u32,
    /// Domains that they belong in.
    pub domains: Vec<DomainStatus>,
}

impl RoleStatus {
    /// Returns `true` if its pods are those of a role, of whichever version of the policy.
    pub fn is_of(&self, role: &Role) -> bool {
        self.name == role.name
            && self.selector.as_ref() == Some(&role.label_selector())
            && self.target == role.target_name()
    }
}

/// Outcome of a rule.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["name"]))]
pub struct RuleStatus {
    /// The rule.
    pub name: String,
    /// When it fired last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_trigger_time: Option<String>,
    /// Reason not to fire in the last tick: Quiet, NoData, Coverage, Cooldown, Bound or Lost. Absent: it
    /// fired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_skip_reason: Option<String>,
}

/// A write to what has a role's replicas.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["role"]))]
pub struct LastWrite {
    /// The role.
    pub role: String,
    /// When it was written.
    #[schemars(extend("format" = "date-time"))]
    pub time: String,
    /// Replicas before.
    pub from: u32,
    /// Replicas since.
    pub to: u32,
    /// Reason for the write.
    pub reason: String,
}

/// A condition in the form of Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["type", "status", "lastTransitionTime", "reason", "message"]))]
pub struct StatusCondition {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub of: String,
    /// Status of the condition: True, False or Unknown.
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub status: String,
    /// The generation of the object that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Since when it is so.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    /// Reason in one word.
    pub reason: String,
    /// Message in one sentence.
    pub message: String,
}

/// Verdict on a policy: whether it is in force as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// `true` if it is in force.
    pub is_accepted: bool,
    /// Reason in one word.
    pub reason: &'static str,
    /// Message in one sentence.
    pub message: String,
}

/// Current state of a policy.
#[derive(Clone, Copy, Debug)]
pub struct StatusInput<'a> {
    /// The generation of the object that the verdict is about.
    pub generation: Option<i64>,
    /// Verdict on it.
    pub verdict: &'a Verdict,
    /// The last tick; `None`: there was none yet.
    pub ticked: Option<Ticked<'a>>,
    /// Condition that has kept it from ticking since, with a message in one sentence; `None`: it has
    /// ticked.
    pub held: Option<(Condition, &'a str)>,
}

/// A tick of a policy.
#[derive(Clone, Copy, Debug)]
pub struct Ticked<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// Plan that it came to.
    pub plan: &'a Plan,
    /// When each rule fired last, by its place in the policy: RFC 3339.
    pub fired: &'a [Option<String>],
    /// The last write to each role's replicas, of those that this replica wrote to.
    pub writes: &'a [LastWrite],
    /// Pods of each role that were let through their gate, where that is known.
    pub let_through: &'a [LetThrough],
}

/// The status of what stands now. `before` is what was written last, `now` the time in RFC 3339.
pub fn status(input: StatusInput<'_>, before: &PolicyStatus, now: &str) -> PolicyStatus {
    let StatusInput { generation, verdict, ticked, held } = input;
    let mut conditions = Conditions { before: &before.conditions, generation, now, all: Vec::new() };
    conditions.say("Accepted", verdict.is_accepted, verdict.reason, &verdict.message);
    if let Some((condition, why)) = held {
        let name = format!("{condition:?}");
        conditions.say(&name, true, &name, why);
    }
    let Some(Ticked { policy, plan, fired, writes, let_through }) = ticked else {
        // What another replica said before this one led, or before this one was started, is the last that
        // is known.
        conditions.keep();
        let conditions = conditions.all;
        return PolicyStatus { observed_generation: generation, conditions, ..before.clone() };
    };
    progress(plan, &mut conditions);
    for known in Condition::ALL {
        let (name, holds) = (format!("{known:?}"), plan.conditions.contains(&known));
        if held.is_some_and(|(condition, _)| condition == known) {
            continue;
        } else if holds {
            conditions.say(&name, true, &name, &sentence(known, plan));
        } else if before.conditions.iter().any(|condition| condition.of == name) {
            conditions.say(&name, false, "Resolved", "it was so before, and is no longer");
        }
    }
    let of = |role: &crate::plan::RolePlan| policy.roles.iter().find(|of| of.name == role.name);
    let passed = |role: &crate::plan::RolePlan| let_through.iter().find(|of| of.role == role.name);
    let role = |role: &crate::plan::RolePlan| RoleStatus {
        name: role.name.clone(),
        selector: of(role).map(Role::label_selector),
        target: of(role).and_then(Role::target_name),
        current: role.current,
        ready: role.ready,
        desired: role.desired,
        goal: role.counts_as.filter(|goal| *goal != role.desired),
        admitted: role.admitted,
        let_through: passed(role).map(|of| of.pods),
        domains: passed(role).map(|of| of.domains.clone()).unwrap_or_default(),
        partition: role.partition,
        layer: role.layer.clone(),
        reasons: role.reasons.iter().map(|reason| format!("{reason:?}")).collect(),
    };
    PolicyStatus {
        observed_generation: generation,
        state: Some(plan.state.to_string()),
        current: Some(plan.stages.current),
        desired: Some(plan.total),
        roles: plan.roles.iter().map(role).collect(),
        rules: rules(policy, plan, fired, &before.rules),
        last_writes: last_writes(plan, writes, &before.last_writes),
        conditions: conditions.all,
    }
}

/// The last write to each role. The one that led before may have done it.
fn last_writes(plan: &Plan, writes: &[LastWrite], before: &[LastWrite]) -> Vec<LastWrite> {
    let of = |role: &crate::plan::RolePlan| {
        writes.iter().chain(before).find(|write| write.role == role.name).cloned()
    };
    let mut all: Vec<LastWrite> = plan.roles.iter().filter_map(of).collect();
    all.sort_by(|a, b| b.time.cmp(&a.time));
    all
}

fn rules(policy: &Policy, plan: &Plan, fired: &[Option<String>], before: &[RuleStatus]) -> Vec<RuleStatus> {
    let Sizing::Rules(rules) = &policy.sizing else { return Vec::new() };
    let of = |(place, rule): (usize, &crate::rules::Rule)| {
        let stage = plan.stages.rules.iter().find(|stage| stage.name == rule.name);
        let outcome = stage.map(|stage| format!("{:?}", stage.outcome));
        let known = before.iter().find(|known| known.name == rule.name);
        RuleStatus {
            name: rule.name.clone(),
            // The one that led before may have fired it.
            last_trigger_time: fired
                .get(place)
                .cloned()
                .flatten()
                .or_else(|| known.and_then(|known| known.last_trigger_time.clone())),
            last_skip_reason: outcome.filter(|outcome| outcome != "Fired"),
        }
    };
    rules.iter().enumerate().map(of).collect()
}

/// Adds the condition that a group is on its way.
fn progress(plan: &Plan, conditions: &mut Conditions<'_>) {
    let name = "Progressing";
    let stuck = [Condition::BatchTimeout, Condition::TopologyUnsatisfied, Condition::Deadlock];
    let stuck = stuck.into_iter().find(|condition| plan.conditions.contains(condition));
    match plan.state {
        State::Idle => conditions.say(name, false, "Idle", "all roles are as desired"),
        State::Deploy => conditions.say(name, true, "Deploy", "the group comes up for the first time"),
        State::Scale => conditions.say(name, true, "Scale", "a role is to grow or to shrink"),
        State::Update => {
            conditions.say(name, true, "Update", "pods are replaced by those of another revision")
        }
        State::Failed => conditions.say(name, false, "Failed", "a step took too long, and was given up"),
        State::Blocked => match stuck {
            Some(why) => conditions.say(name, false, &format!("{why:?}"), &sentence(why, plan)),
            None => conditions.say(name, false, "Blocked", "a step has nowhere to go, or takes too long"),
        },
    }
}

/// Meaning of a condition of a plan, in a sentence.
fn sentence(condition: Condition, plan: &Plan) -> String {
    let text = match condition {
        Condition::BandUnsatisfied => "the roles' bands can't be kept by a group of this size",
        Condition::RatioConstraintViolated => "no numbers of pods keep the ratio; the roles stay as they are",
        Condition::StaleData => "a number that sizes is not known; what it could change is kept",
        Condition::Panic => "far more is needed than there is; nothing shrinks",
        Condition::BatchTimeout => "a step takes longer than batchTimeout without a pod coming up",
        Condition::Unschedulable => "no node takes a pod of the step",
        Condition::TopologyUnsatisfied => {
            return plan.shortfall().unwrap_or_else(|| "no domain of the required layer has room".to_owned());
        }
        Condition::Deadlock => "groups wait for each other's room",
        Condition::ForeignWriter => "somebody else changes replicas again and again",
        Condition::Paused => "sizes stay, as pods are being updated",
        Condition::TopologyUnknown => {
            "nodes or the pods of all namespaces may not be seen, so the scheduler decides where pods go"
        }
        Condition::NoTarget => {
            "a role without scaleTargetRef has other pods than it is to have, and others stay as they are for the ratio or the size of the group; give it a target, or scale it"
        }
        Condition::TargetConflict => "another policy scales the same object; neither acts",
        Condition::Suspended => "spec.paused: nothing is written, and pods still pass their gate",
        Condition::NoLeaderElection => {
            "nobody is elected to act, and there may be several replicas; nothing is written"
        }
        Condition::Unobserved => "pods or the target of a role can't be seen",
        Condition::WriteFailed => {
            "the API server did not take a write; an event of the target and the log have its response"
        }
        Condition::OtherScaler => {
            "an autoscaler or an owner is there for what a role scales, or may not be looked for; nothing is written"
        }
        Condition::OwnerUnknown => {
            "the target of a role may not be read as a whole, so that an owner that sets its replicas is known by what it writes"
        }
        Condition::EvictionRefused => {
            "a pod that is to be given back may not be evicted now, as for a PodDisruptionBudget; it is tried again"
        }
        Condition::LowerOrdinalsUnready => {
            "a role is to be smaller and would lose ready pods, the highest ordinals, while lower ones are not ready; it waits for those"
        }
        Condition::NotDrained => {
            "pods may not be patched, so that those which a smaller role loses are not known before, and go with the requests that they have; allow the verb patch for pods"
        }
        Condition::LeaseNotRenewed => {
            "the lease was not renewed in time since the last tick, and nothing was written until it was"
        }
    };
    text.to_owned()
}

/// Conditions as they come to be: one that holds as before keeps its time.
pub(super) struct Conditions<'a> {
    pub(super) before: &'a [StatusCondition],
    pub(super) generation: Option<i64>,
    pub(super) now: &'a str,
    pub(super) all: Vec<StatusCondition>,
}

impl Conditions<'_> {
    pub(super) fn say(&mut self, of: &str, holds: bool, reason: &str, message: &str) {
        self.put(of, if holds { "True" } else { "False" }, reason, message);
    }

    pub(super) fn put(&mut self, of: &str, status: &str, reason: &str, message: &str) {
        let before = self.before.iter().find(|condition| condition.of == of && condition.status == status);
        let since = before.map(|condition| condition.last_transition_time.as_str());
        self.all.push(StatusCondition {
            of: of.to_owned(),
            status: status.to_owned(),
            observed_generation: self.generation,
            last_transition_time: since.filter(|time| !time.is_empty()).unwrap_or(self.now).to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
        });
    }

    /// Keeps those from before that were not set anew.
    fn keep(&mut self) {
        for condition in self.before {
            if self.all.iter().all(|known| known.of != condition.of) {
                self.all.push(condition.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Reason, RolePlan, RuleOutcome, RuleStage, Shortfalls, Stages};
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
        let ticked = Ticked { policy: &policy(), plan, fired, writes: &[], let_through: &let_through };
        status(
            StatusInput { generation: Some(3), verdict: &FINE, ticked: Some(ticked), held: None },
            before,
            now,
        )
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
        assert_eq!(
            (progressing.status.as_str(), progressing.reason.as_str()),
            ("False", "TopologyUnsatisfied")
        );
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
            "what never was is not told"
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
        let tell = |writes: &[LastWrite], before: &PolicyStatus| {
            let mut plan = plan();
            plan.roles.push(RolePlan { name: "b".to_owned(), ..RolePlan::default() });
            let ticked = Ticked { policy: &policy(), plan: &plan, fired: &[], writes, let_through: &[] };
            let input = StatusInput { generation: None, verdict: &FINE, ticked: Some(ticked), held: None };
            status(input, before, "t1")
        };
        let first = tell(&[write("a", "t1"), write("b", "t2")], &PolicyStatus::default());
        assert_eq!(first.last_writes, [write("b", "t2"), write("a", "t1")]);
        // That of the one that led before stays until there is a newer one, or the role is gone.
        let next = tell(&[write("a", "t3")], &first);
        assert_eq!(next.last_writes, [write("a", "t3"), write("b", "t2")]);
        assert_eq!(of(&plan(), &[], &next, "t4").last_writes, [write("a", "t3")]);
    }
}
