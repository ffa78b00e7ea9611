//! Status of a policy: a function of its current state, its previous status and the time.
//!
//! Values that change with every tick (metrics, pressure) are left out: they are metrics of the picker, and
//! every status write goes through the cluster's store.

mod conditions;
#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(super) use conditions::Conditions;
pub use conditions::StatusCondition;
use conditions::{progress, sentence};

use crate::plan::{Condition, Plan};
use crate::policy::{Policy, Role, Sizing};

/// Status of a CapacityPolicy. Written by the leader only.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyStatus {
    /// Generation of the policy that this is about.
    pub observed_generation: Option<i64>,
    /// State of the group: Idle, Deploy, Scale, Update, Blocked or Failed.
    pub state: Option<String>,
    /// Existing pods of all roles.
    pub current: Option<u32>,
    /// Desired pods of all roles.
    pub desired: Option<u32>,
    /// Plan of each role.
    pub roles: Vec<RoleStatus>,
    /// Outcome of each rule.
    pub rules: Vec<RuleStatus>,
    /// Last write of each role's replicas, newest first.
    pub last_writes: Vec<LastWrite>,
    /// Conditions of the policy.
    pub conditions: Vec<StatusCondition>,
}

/// Plan of a role.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["name"]))]
pub struct RoleStatus {
    /// Name of the role.
    pub name: String,
    /// Label selector of its pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Target, by kind, group and name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Existing pods.
    pub current: u32,
    /// Ready pods.
    pub ready: u32,
    /// Desired pods.
    pub desired: u32,
    /// Desired pods once other roles have grown. Absent: as many as `desired`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goal: Option<u32>,
    /// Pods that may exist past their scheduling gate.
    pub admitted: u32,
    /// Pods admitted past their scheduling gate, whose replacements are admitted as well. Absent: unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub let_through: Option<u32>,
    /// Topology domains of those pods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<DomainStatus>,
    /// First ordinal that may be updated, during a rolling update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
    /// Layer of the single domain that holds the last step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
    /// Reasons for these numbers, in the order of the steps.
    pub reasons: Vec<String>,
}

/// Pods of a role in a topology domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["layer", "domain", "pods"]))]
pub struct DomainStatus {
    /// Layer of the domain: a label of nodes.
    pub layer: String,
    /// The domain: a value of that label.
    pub domain: String,
    /// Pods admitted for this domain.
    pub pods: u32,
}

/// Admitted pods of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LetThrough {
    /// Name of the role.
    pub role: String,
    /// Existing pods.
    pub pods: u32,
    /// Domains that they belong in.
    pub domains: Vec<DomainStatus>,
}

impl RoleStatus {
    /// Returns `true` if they are pods of this role, in whichever version of the policy.
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
    /// Name of the rule.
    pub name: String,
    /// Time of the last firing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "date-time"))]
    pub last_trigger_time: Option<String>,
    /// Reason not to fire in the last tick: Quiet, NoData, Coverage, Cooldown, Bound or Lost. Absent: it
    /// fired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_skip_reason: Option<String>,
}

/// A write of a role's replicas.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["role"]))]
pub struct LastWrite {
    /// Name of the role.
    pub role: String,
    /// Time of the write.
    #[schemars(extend("format" = "date-time"))]
    pub time: String,
    /// Replicas before.
    pub from: u32,
    /// Replicas written.
    pub to: u32,
    /// Reason for the write.
    pub reason: String,
}

/// Verdict on a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// `true` if it is in force as written.
    pub is_accepted: bool,
    /// Reason in one word.
    pub reason: &'static str,
    /// Message.
    pub message: String,
}

/// Current state of a policy.
#[derive(Clone, Copy, Debug)]
pub struct StatusInput<'a> {
    /// Generation of the validated object.
    pub generation: Option<i64>,
    /// Verdict on it.
    pub verdict: &'a Verdict,
    /// Last tick; `None`: not ticked yet.
    pub ticked: Option<TickStatus<'a>>,
    /// Condition that blocked ticks since, with a message; `None` if ticked.
    pub held: Option<(Condition, &'a str)>,
}

/// A tick of a policy.
#[derive(Clone, Copy, Debug)]
pub struct TickStatus<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// Plan of the tick.
    pub plan: &'a Plan,
    /// Last firing of each rule, by index: RFC 3339.
    pub fired: &'a [Option<String>],
    /// Last write of each role's replicas by this replica.
    pub writes: &'a [LastWrite],
    /// Admitted pods of each role, if known.
    pub let_through: &'a [LetThrough],
}

/// Computes the status. `before` is the previous one, `now` the time in RFC 3339.
pub fn status(input: StatusInput<'_>, before: &PolicyStatus, now: &str) -> PolicyStatus {
    let StatusInput { generation, verdict, ticked, held } = input;
    let mut conditions = Conditions { before: &before.conditions, generation, now, all: Vec::new() };
    conditions.say("Accepted", verdict.is_accepted, verdict.reason, &verdict.message);
    if let Some((condition, why)) = held {
        let name = format!("{condition:?}");
        conditions.say(&name, true, &name, why);
    }
    let Some(TickStatus { policy, plan, fired, writes, let_through }) = ticked else {
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
            conditions.say(&name, false, "Resolved", "the condition no longer holds");
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

/// Last write of each role, by this replica or the previous leader.
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
            // The previous leader may have fired it.
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
