//! Conditions of a policy's status: their messages, and the times of their transitions.

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

/// Adds the condition that a group is on its way.
pub(super) fn progress(plan: &Plan, conditions: &mut Conditions<'_>) {
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
            None => conditions.say(name, false, "Blocked", "a step has no room, or takes too long"),
        },
    }
}

/// Meaning of a condition of a plan, in a sentence.
pub(super) fn sentence(condition: Condition, plan: &Plan) -> String {
    let text = match condition {
        Condition::BandUnsatisfied => "the roles' bands can't be kept by a group of this size",
        Condition::RatioConstraintViolated => "no numbers of pods keep the ratio; the roles stay as they are",
        Condition::StaleData => "a metric that sets a size is not known; sizes that it could change are kept",
        Condition::Panic => "far more pods are needed than there are; nothing shrinks",
        Condition::BatchTimeout => "a step takes longer than batchTimeout without a pod coming up",
        Condition::Unschedulable => "no node takes a pod of the step",
        Condition::TopologyUnsatisfied => {
            return plan.shortfall().unwrap_or_else(|| "no domain of the required layer has room".to_owned());
        }
        Condition::Deadlock => "groups wait for each other's nodes",
        Condition::ForeignWriter => {
            "another writer changes replicas again and again; find it in metadata.managedFields, and keep one of the two"
        }
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
            "no leader is elected, and there may be several replicas; nothing is written"
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

    /// Keeps those from before that were not set anew.
    pub(super) fn keep(&mut self) {
        for condition in self.before {
            if self.all.iter().all(|known| known.of != condition.of) {
                self.all.push(condition.clone());
            }
        }
    }
}
