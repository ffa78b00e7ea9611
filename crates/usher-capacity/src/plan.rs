//! Result of a tick: how many pods of each role, and why.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use super::rollout::{Placement, Shortfall};

/// Number of pods that a group should have, and what led there.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The roles, in the policy's order.
    pub roles: Vec<RolePlan>,
    /// The sum of what is desired. While a role waits for others to grow, this is more than `size`.
    pub total: u32,
    /// State of the group: whether anything is to change.
    pub state: State,
    /// Conditions that hold: what is not as it should be.
    pub conditions: Vec<Condition>,
    /// The rules that fired, by name.
    pub fired: Vec<String>,
    /// Results of the steps.
    pub stages: Stages,
    /// Domain for the pods of the step that comes up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// `true` if pods that need another domain go there as well.
    #[serde(skip)]
    pub moves: bool,
    /// Missing room in each domain, if the next step fits into none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shortfalls: Option<Shortfalls>,
    /// The step that doesn't come up, and what it waits for.
    #[serde(skip)]
    pub stuck: Option<Stuck>,
}

/// No domain of a layer has room for a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shortfalls {
    /// The layer's key.
    pub layer: String,
    /// Pods of each role that the step has, in the order of the roles.
    pub need: Vec<u32>,
    /// Shortfall of each domain.
    pub domains: Vec<Shortfall>,
}

/// A step that doesn't come up, and what it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Domain that its pods have to go to; `None`: anywhere.
    pub placement: Option<Placement>,
    /// Pods that no node takes.
    pub asks: u32,
    /// Pods that exceed whole usable groups.
    pub spare: u32,
}

/// The part of a stuck step that a role has and that is not up yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Number of pods that it is to have with the step; of an update, how many of the newest revision.
    pub pods: u32,
    /// Number of them that are up.
    pub up: u32,
    /// `true` if the step is one of an update.
    pub is_update: bool,
}

/// Number of pods that a role should have.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolePlan {
    /// The role.
    pub name: String,
    /// Number of pods that there are.
    pub current: u32,
    /// Number of them that are ready.
    pub ready: u32,
    /// Pods that its cost gives it.
    pub base: u32,
    /// Pressure on it: its largest value ÷ target. None where that isn't known.
    pub pressure: Option<f64>,
    /// Number of pods that it is to have in the end.
    pub goal: u32,
    /// Number to ask for now.
    pub desired: u32,
    /// Number that may exist without waiting at a gate.
    pub admitted: u32,
    /// The number of replicas to write: what is desired where pods wait at gates, what is admitted where
    /// they don't.
    pub write: u32,
    /// From which ordinal on pods may be of the newest revision, where some are not.
    pub partition: Option<u32>,
    /// The layer in one domain of which the pods of the step are that came up last.
    pub layer: Option<String>,
    /// Reasons for these numbers, in the order of the steps.
    pub reasons: Vec<Reason>,
    /// The part of a stuck step that it has; `None`: it has none, or all of that is up.
    #[serde(skip)]
    pub open: Option<Open>,
    /// Pods that it counts for in the group: those that it is to have once others have grown. `None`: as many as
    /// are desired.
    #[serde(skip)]
    pub counts_as: Option<u32>,
    /// `true` if no number is known that could change it.
    #[serde(skip)]
    pub is_blind: bool,
}

/// State of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum State {
    /// All roles are as desired.
    #[default]
    Idle,
    /// A role is to grow or to shrink.
    Scale,
    /// The group comes up for the first time, step by step.
    Deploy,
    /// Pods are replaced by those of another revision; sizes stay.
    Update,
    /// A step has nowhere to go, or takes too long.
    Blocked,
    /// A step took too long, and was given up.
    Failed,
}

/// Results of the steps, in pods of the whole group.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stages {
    /// Pods that there are.
    pub current: u32,
    /// Pods that each metric asks for.
    pub metrics: Vec<MetricStage>,
    /// The most that a metric asks for, within bounds.
    pub recommended: u32,
    /// Size that windows and limits leave of it.
    pub limited: u32,
    /// Size that is shared by the roles.
    pub size: u32,
    /// Every rule, in the order in which they were looked at.
    pub rules: Vec<RuleStage>,
}

/// Value of a metric, and the pods that it asks for.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MetricStage {
    /// Its name.
    pub name: String,
    /// Its value: the mean over pods, or what stands outside of them. None when it isn't known.
    pub value: Option<f64>,
    /// The pods that it asks for.
    pub asks: Option<u32>,
}

/// Outcome of a rule, with its value.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleStage {
    /// Its name.
    pub name: String,
    /// Its value, when it is known.
    pub value: Option<f64>,
    /// Its outcome.
    pub outcome: RuleOutcome,
}

/// Outcome of a rule in a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum RuleOutcome {
    /// Changes its role.
    Fired,
    /// Its value is on the other side of its threshold.
    Quiet,
    /// Its value isn't known.
    NoData,
    /// Too few of the ready pods have the number.
    Coverage,
    /// Fired a short while ago.
    Cooldown,
    /// Its step would leave the bounds, or the role is there already.
    Bound,
    /// Another rule changes the role in this tick.
    Lost,
}

/// Reason for the size of a role. The order is that of the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize)]
pub enum Reason {
    /// Raised to the minimum of the role or the group.
    Min,
    /// Lowered to the maximum of the role or the group.
    Max,
    /// A metric asks for another size of the group.
    Metric,
    /// No metric is far enough from its target.
    Tolerance,
    /// No number is known that could change it, or one that may ask for more: it loses no pod.
    StaleData,
    /// The change has not been asked for long enough to grow.
    UpWindow,
    /// More pods than may be added in the period.
    UpLimit,
    /// The change has not been asked for long enough to shrink.
    DownWindow,
    /// More pods than may be removed in the period.
    DownLimit,
    /// Far too few pods: none are removed.
    Panic,
    /// Far too few pods, and more than may be added in the period even so.
    PanicLimit,
    /// A rule fired.
    Rule,
    /// Requests wait, so there has to be a pod.
    Waiting,
    /// Its last pod serves requests, or did until a moment ago.
    Serving,
    /// The share that cost gives it.
    Cost,
    /// The role's share follows from the pressure metrics.
    Pressure,
    /// Pressure isn't known now: the shares stay.
    LastShares,
    /// Pressure is said by no number, or there are no pods: cost decides.
    NoPressure,
    /// Its band cut its share.
    Band,
    /// The bands can't be kept by a group of this size.
    BandUnsatisfied,
    /// Changes by at most one pod are skipped while the group's size stays.
    DeadBand,
    /// The ratio between two roles asks for more pods or fewer.
    Ratio,
    /// No numbers of pods keep the ratio; the role stays as it is.
    RatioUnsatisfied,
    /// Scale-down waits until the other roles' new pods are ready.
    GrowFirst,
    /// Changes step by step.
    Step,
    /// No domain of the layer has room for the step; where one is only preferred, no larger one either.
    NoDomain,
    /// The step goes to a domain of a wider layer.
    WiderDomain,
    /// The room of domains isn't known: the scheduler decides.
    TopologyUnknown,
    /// The step takes too long; it stays as it is.
    Held,
    /// The step took too long, and what exceeds whole usable groups is given back.
    Trimmed,
    /// The step took too long, and was given up.
    Failed,
    /// Pods are being replaced by those of another revision.
    Updating,
    /// Pods that are about to go answer the requests that they have, wait for those of the other role of a ratio, or
    /// have changed since they were looked at.
    Draining,
    /// Writes took up the time of a tick, and the rest of them follows at the next one, soon.
    Unfinished,
}

/// Condition of a plan: something that is not as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize)]
pub enum Condition {
    /// The roles' bands can't be kept by a group of this size.
    BandUnsatisfied,
    /// No numbers of pods keep the ratio.
    RatioConstraintViolated,
    /// A number that sizes isn't known; what it could change is kept.
    StaleData,
    /// Far more is needed than there is.
    Panic,
    /// A step takes too long.
    BatchTimeout,
    /// No node takes a pod of the step.
    Unschedulable,
    /// No domain of the required layer has room for the step.
    TopologyUnsatisfied,
    /// Groups wait for each other's room.
    Deadlock,
    /// Another controller or user changes replicas again and again.
    ForeignWriter,
    /// Sizes stay, as pods are being updated.
    Paused,
    /// The room of domains may not be seen: the scheduler decides where pods go.
    TopologyUnknown,
    /// A role that has no target keeps others from the numbers that they are to have.
    NoTarget,
    /// Several policies scale the same object: none of them acts.
    TargetConflict,
    /// The policy says that nothing is to be written.
    Suspended,
    /// No replica is elected to act, and there may be several.
    NoLeaderElection,
    /// An autoscaler or an owner is there for what a role scales, or that can't be found out.
    OtherScaler,
    /// The owner of a role's target may not be read; a foreign owner is known by its writes.
    OwnerUnknown,
    /// Pods or the target of a role can't be seen: the last plan stands, and nothing is done.
    Unobserved,
    /// The API server refused a write, or could not be reached for it.
    WriteFailed,
    /// A PodDisruptionBudget keeps pods that are to be given back.
    EvictionRefused,
    /// A controller that deletes its highest ordinals would take ready pods while lower ones aren't ready: the
    /// role is not made smaller.
    LowerOrdinalsUnready,
    /// Pods of a role that gets smaller may not be patched: whichever its controller chooses go, and may have
    /// requests.
    NotDrained,
    /// The lease was not renewed in time: nothing is written, as another replica may lead.
    LeaseNotRenewed,
}

impl Condition {
    /// All of them.
    pub const ALL: [Self; 23] = [
        Self::BandUnsatisfied,
        Self::RatioConstraintViolated,
        Self::StaleData,
        Self::Panic,
        Self::BatchTimeout,
        Self::Unschedulable,
        Self::TopologyUnsatisfied,
        Self::Deadlock,
        Self::ForeignWriter,
        Self::Paused,
        Self::TopologyUnknown,
        Self::NoTarget,
        Self::TargetConflict,
        Self::Suspended,
        Self::NoLeaderElection,
        Self::OtherScaler,
        Self::OwnerUnknown,
        Self::Unobserved,
        Self::WriteFailed,
        Self::EvictionRefused,
        Self::LowerOrdinalsUnready,
        Self::NotDrained,
        Self::LeaseNotRenewed,
    ];

    /// Returns `true` if a policy doesn't do all that it would while it holds.
    pub fn freezes(self) -> bool {
        // Nothing shrinks in a panic, as it should; the others leave the number to somebody else or to less.
        !matches!(
            self,
            Self::Panic
                | Self::BandUnsatisfied
                | Self::TopologyUnknown
                | Self::OwnerUnknown
                | Self::NotDrained
        )
    }
}

impl Plan {
    /// Describes in a sentence the missing room of the next step, if it fits into no domain.
    pub fn shortfall(&self) -> Option<String> {
        let found = self.shortfalls.as_ref()?;
        let pods = |counts: &[u32]| {
            let each = self.roles.iter().zip(counts).filter(|(_, count)| **count > 0);
            each.map(|(role, count)| format!("{count} {}", role.name)).collect::<Vec<_>>().join(" and ")
        };
        let lacks = |domain: &Shortfall| format!("{} lacks {}", domain.domain, pods(&domain.missing));
        let (layer, need) = (&found.layer, pods(&found.need));
        if found.domains.is_empty() {
            return Some(format!("no node has the label {layer}, so there is no room for {need}"));
        }
        let domains = found.domains.iter().map(lacks).collect::<Vec<_>>().join(", ");
        Some(format!("no domain of {layer} has room for {need}: {domains}"))
    }
}

impl State {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Idle, Self::Deploy, Self::Scale, Self::Update, Self::Blocked, Self::Failed];

    /// Returns `true` if a step doesn't go on by itself.
    pub fn is_stuck(self) -> bool {
        matches!(self, Self::Blocked | Self::Failed)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
