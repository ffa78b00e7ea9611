//! Conditions of a policy's status: messages and transition times.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan::{Condition, Plan, State};

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
    /// Generation of the object that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Time of the last change of the status.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    /// Reason in one word.
    pub reason: String,
    /// Message in one sentence.
    pub message: String,
}

/// Sets the condition `Progressing`.
pub(super) fn progress(plan: &Plan, conditions: &mut Conditions<'_>) {
    let name = "Progressing";
    let stuck = [Condition::BatchTimeout, Condition::TopologyUnsatisfied, Condition::Deadlock];
    let stuck = stuck.into_iter().find(|condition| plan.conditions.contains(condition));
    match plan.state {
        State::Idle => conditions.say(name, false, "Idle", "all roles have their desired pods"),
        State::Deploy => conditions.say(name, true, "Deploy", "first rollout of the group, in steps"),
        State::Scale => conditions.say(name, true, "Scale", "at least one role is scaling"),
        State::Update => conditions.say(name, true, "Update", "rolling update; sizes stay"),
        State::Failed => conditions.say(name, false, "Failed", "a step timed out and was abandoned"),
        State::Blocked => match stuck {
            Some(why) => conditions.say(name, false, &format!("{why:?}"), &sentence(why, plan)),
            None => conditions.say(name, false, "Blocked", "a step has no room, or timed out"),
        },
    }
}

/// Message of a plan's condition.
pub(super) fn sentence(condition: Condition, plan: &Plan) -> String {
    let text = match condition {
        Condition::BandUnsatisfied => "preferredRatio can't be satisfied at this group size",
        Condition::RatioConstraintViolated => {
            "no replica counts satisfy the ratio; the roles keep their replicas"
        }
        Condition::StaleData => "a sizing metric is unknown; the sizes it would change are kept",
        Condition::Panic => "far more pods are needed than exist; nothing is scaled down",
        Condition::BatchTimeout => "no further pod of the step came up within batchTimeout",
        Condition::Unschedulable => "no node fits a pod of the step",
        Condition::TopologyUnsatisfied => {
            return plan.shortfall().unwrap_or_else(|| "no domain of the required layer has room".to_owned());
        }
        Condition::Deadlock => "groups wait for each other's nodes",
        Condition::ForeignWriter => {
            "another writer keeps changing the replicas; find it in metadata.managedFields, and keep one of the two"
        }
        Condition::Paused => "scaling is paused during a rolling update",
        Condition::TopologyUnknown => {
            "RBAC forbids listing nodes or pods of all namespaces; the scheduler places pods"
        }
        Condition::NoTarget => {
            "a role without scaleTargetRef doesn't have its desired pods, and others are held back for the ratio or the group size; set scaleTargetRef, or scale it"
        }
        Condition::TargetConflict => "another policy scales the same object; neither acts",
        Condition::Suspended => {
            "spec.paused is true: nothing is written, but pods still pass their scheduling gate"
        }
        Condition::NoLeaderElection => {
            "no leader is elected, and several replicas may run; nothing is written"
        }
        Condition::Unobserved => "pods or the target of a role can't be read",
        Condition::WriteFailed => {
            "the API server rejected a write, or did not respond; see the target's events and the log"
        }
        Condition::OtherScaler => {
            "another autoscaler or an owner controls the target, or can't be ruled out (RBAC or an API error); no replicas are written"
        }
        Condition::OwnerUnknown => {
            "RBAC forbids get on a role's target; another owner is detected only when it changes the replicas"
        }
        Condition::EvictionRefused => {
            "an eviction was refused, for example by a PodDisruptionBudget; retrying"
        }
        Condition::LowerOrdinalsUnready => {
            "scale-down would delete ready pods with the highest ordinals while lower ones are not ready; waiting for those"
        }
        Condition::NotDrained => {
            "RBAC forbids patching pods, so scale-down can't choose or drain them; allow the verb patch for pods"
        }
        Condition::LeaseNotRenewed => {
            "the lease was not renewed in time since the last tick; nothing was written meanwhile"
        }
    };
    text.to_owned()
}

/// Conditions under construction: unchanged ones keep their transition time.
pub(in crate::resource) struct Conditions<'a> {
    pub(in crate::resource) before: &'a [StatusCondition],
    pub(in crate::resource) generation: Option<i64>,
    pub(in crate::resource) now: &'a str,
    pub(in crate::resource) all: Vec<StatusCondition>,
}

impl Conditions<'_> {
    pub(in crate::resource) fn say(&mut self, of: &str, holds: bool, reason: &str, message: &str) {
        self.put(of, if holds { "True" } else { "False" }, reason, message);
    }

    pub(in crate::resource) fn put(&mut self, of: &str, status: &str, reason: &str, message: &str) {
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

    /// Keeps earlier conditions that were not set anew.
    pub(super) fn keep(&mut self) {
        for condition in self.before {
            if self.all.iter().all(|known| known.of != condition.of) {
                self.all.push(condition.clone());
            }
        }
    }
}
