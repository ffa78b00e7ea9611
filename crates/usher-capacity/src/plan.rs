//! Result of a tick: desired pods of each role, and the reasons.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use super::rollout::{Placement, Shortfall};

/// Desired pods of a group, and the computation behind them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Roles, in the policy's order.
    pub roles: Vec<RolePlan>,
    /// Sum of the desired pods. More than `size` while a role waits for others to grow.
    pub total: u32,
    /// State of the group.
    pub state: State,
    /// Conditions that are true.
    pub conditions: Vec<Condition>,
    /// Names of the rules that fired.
    pub fired: Vec<String>,
    /// Results of the steps.
    pub stages: Stages,
    /// Domain for the pods of the current step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// `true` if pods that need another domain move there as well.
    #[serde(skip)]
    pub moves: bool,
    /// Missing room in each domain, if the next step fits into none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shortfalls: Option<Shortfalls>,
    /// Step without progress, and the room it lacks.
    #[serde(skip)]
    pub stuck: Option<StuckStep>,
}

/// Room that a step lacks in every domain of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shortfalls {
    /// Key of the layer.
    pub layer: String,
    /// Pods of the step, by role.
    pub need: Vec<u32>,
    /// Shortfall of each domain.
    pub domains: Vec<Shortfall>,
}

/// Step without progress, and the room it lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckStep {
    /// Required domain of its pods; `None`: any.
    pub placement: Option<Placement>,
    /// Unschedulable pods.
    pub asks: u32,
    /// Pods beyond complete groups.
    pub spare: u32,
}

/// A role's part of a stuck step that is not up yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenRole {
    /// Pods of the role once the step is complete; in an update, those of the newest revision.
    pub pods: u32,
    /// Number of them that are up.
    pub up: u32,
    /// `true` for a step of an update.
    pub is_update: bool,
}

/// Desired pods of a role.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolePlan {
    /// Name of the role.
    pub name: String,
    /// Existing pods.
    pub current: u32,
    /// Ready pods.
    pub ready: u32,
    /// Share of the group by cost.
    pub base: u32,
    /// Pressure: largest value ÷ target of its signals. `None` if unknown.
    pub pressure: Option<f64>,
    /// Pods once the change is complete.
    pub goal: u32,
    /// Desired pods now.
    pub desired: u32,
    /// Pods that may exist past the scheduling gate.
    pub admitted: u32,
    /// Replicas to write: the desired ones if pods wait at gates, otherwise the admitted ones.
    pub write: u32,
    /// First ordinal that may be updated, during a rolling update.
    pub partition: Option<u32>,
    /// Layer of the single domain that holds the pods of the last step.
    pub layer: Option<String>,
    /// Reasons for these numbers, in the order of the steps.
    pub reasons: Vec<Reason>,
    /// The role's part of a stuck step; `None` if it has none, or all of it is up.
    #[serde(skip)]
    pub open: Option<OpenRole>,
    /// Pods that it counts for in the group's size: the final ones while it waits for others to grow. `None`:
    /// the desired ones.
    #[serde(skip)]
    pub counts_as: Option<u32>,
    /// `true` if no known metric could change it.
    #[serde(skip)]
    pub is_blind: bool,
}

/// State of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum State {
    /// All roles have their desired pods.
    #[default]
    Idle,
    /// At least one role is scaling.
    Scale,
    /// First rollout of the group, in steps.
    Deploy,
    /// Rolling update; sizes stay.
    Update,
    /// A step has no room, or timed out.
    Blocked,
    /// A step timed out and was abandoned.
    Failed,
}

/// Results of the steps, in pods of the whole group.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stages {
    /// Existing pods.
    pub current: u32,
    /// Pods that each metric asks for.
    pub metrics: Vec<MetricStage>,
    /// Most pods that a metric asks for, within bounds.
    pub recommended: u32,
    /// Size after stabilization windows and limits per period.
    pub limited: u32,
    /// Size that the roles share.
    pub size: u32,
    /// All rules, in the order of evaluation.
    pub rules: Vec<RuleStage>,
}

/// Value of a metric, and the pods that it asks for.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MetricStage {
    /// Name of the metric.
    pub name: String,
    /// Value: the mean over pods, or the result of a query. `None` if unknown.
    pub value: Option<f64>,
    /// Pods that it asks for.
    pub asks: Option<u32>,
}

/// Outcome of a rule, with its value.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleStage {
    /// Name of the rule.
    pub name: String,
    /// Value, if known.
    pub value: Option<f64>,
    /// Outcome.
    pub outcome: RuleOutcome,
}

/// Outcome of a rule in a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum RuleOutcome {
    /// The rule changed its role.
    Fired,
    /// The value doesn't meet the threshold.
    Quiet,
    /// The value is unknown.
    NoData,
    /// Too few ready pods report the metric.
    Coverage,
    /// The rule fired within its cooldown.
    Cooldown,
    /// The step would leave the bounds, or the role is at its bound.
    Bound,
    /// Another rule changed the role in this tick.
    Lost,
}

/// Reason for the size of a role, in the order of the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize)]
pub enum Reason {
    /// Raised to the minimum of the role or the group.
    Min,
    /// Lowered to the maximum of the role or the group.
    Max,
    /// A metric asks for another size of the group.
    Metric,
    /// All metrics are within their tolerance.
    Tolerance,
    /// Metrics are missing or stale, so the role is not scaled down.
    StaleData,
    /// Scale-up waits for its stabilization window.
    UpWindow,
    /// Scale-up capped by its limit per period.
    UpLimit,
    /// Scale-down waits for its stabilization window.
    DownWindow,
    /// Scale-down capped by its limit per period.
    DownLimit,
    /// Panic: far too few pods, so none are removed.
    Panic,
    /// Panic scale-up capped by its limit per period.
    PanicLimit,
    /// A rule fired.
    Rule,
    /// Requests are waiting, so the role gets a pod.
    Waiting,
    /// The last pod has requests, or had some within the window, so it stays.
    Serving,
    /// The role's share follows from cost.
    Cost,
    /// The role's share follows from the pressure metrics.
    Pressure,
    /// Pressure is unknown, so the shares stay.
    LastShares,
    /// No pressure metric is known, or no pods exist; shares follow cost.
    NoPressure,
    /// The preferred ratio limits the share.
    Band,
    /// The preferred ratio can't be satisfied at this group size.
    BandUnsatisfied,
    /// Changes by at most one pod are skipped while the group's size stays.
    DeadBand,
    /// The ratio between two roles asks for more or fewer pods.
    Ratio,
    /// No replica counts satisfy the ratio; the role keeps its replicas.
    RatioUnsatisfied,
    /// Scale-down waits until the other roles' new pods are ready.
    GrowFirst,
    /// The role changes in steps.
    Step,
    /// No domain of the layer has room for the step, nor of wider layers if the layer is only preferred.
    NoDomain,
    /// The step goes to a domain of a wider layer.
    WiderDomain,
    /// Room in domains is unknown; the scheduler places pods.
    TopologyUnknown,
    /// The step timed out and stays as it is.
    Held,
    /// The step timed out; pods beyond complete groups are removed.
    Trimmed,
    /// The step timed out and was abandoned.
    Failed,
    /// Pods are being updated to another revision.
    Updating,
    /// Pods to be removed finish their requests, wait for the ratio's other role, or changed since they were
    /// observed.
    Draining,
    /// Writes ran out of time in this tick, and continue at the next one.
    Unfinished,
}

/// Condition of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize)]
pub enum Condition {
    /// The preferred ratio can't be satisfied at this group size.
    BandUnsatisfied,
    /// No replica counts satisfy the ratio.
    RatioConstraintViolated,
    /// A sizing metric is unknown; the sizes it would change are kept.
    StaleData,
    /// Far more pods are needed than exist.
    Panic,
    /// A step timed out.
    BatchTimeout,
    /// No node fits a pod of the step.
    Unschedulable,
    /// No domain of the required layer has room for the step.
    TopologyUnsatisfied,
    /// Groups wait for each other's nodes.
    Deadlock,
    /// Another controller or user keeps changing the replicas.
    ForeignWriter,
    /// Scaling is paused during a rolling update.
    Paused,
    /// RBAC forbids reading the room in domains; the scheduler places pods.
    TopologyUnknown,
    /// A role without a target keeps others from their desired pods.
    NoTarget,
    /// Several policies scale the same object; none of them acts.
    TargetConflict,
    /// The policy is paused.
    Suspended,
    /// No replica is elected to act, and several may run.
    NoLeaderElection,
    /// Another autoscaler or an owner controls a target, or can't be ruled out.
    OtherScaler,
    /// RBAC forbids reading a target; another owner is detected only by its writes.
    OwnerUnknown,
    /// Pods or the target of a role can't be read; the last plan stays, and nothing is written.
    Unobserved,
    /// The API server rejected a write, or did not respond.
    WriteFailed,
    /// An eviction was refused, for example by a PodDisruptionBudget.
    EvictionRefused,
    /// Scale-down would delete ready pods with the highest ordinals while lower ones are not ready; the role
    /// keeps its replicas.
    LowerOrdinalsUnready,
    /// RBAC forbids patching pods of a shrinking role; its controller chooses which to delete, and they may
    /// have requests.
    NotDrained,
    /// The lease was not renewed in time; nothing is written, as another replica may lead.
    LeaseNotRenewed,
}

impl Condition {
    /// All conditions.
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

    /// Returns `true` if the condition keeps a policy from acting, in part or in full.
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
    /// Describes the missing room of the next step, if it fits into no domain.
    pub fn shortfall(&self) -> Option<String> {
        let found = self.shortfalls.as_ref()?;
        let pods = |counts: &[u32]| {
            let each = self.roles.iter().zip(counts).filter(|(_, count)| **count > 0);
            each.map(|(role, count)| format!("{count} {}", role.name)).collect::<Vec<_>>().join(" and ")
        };
        let lacks = |domain: &Shortfall| format!("{} lacks {}", domain.domain, pods(&domain.missing));
        let (layer, need) = (&found.layer, pods(&found.need));
        if found.domains.is_empty() {
            return Some(format!("no node has the label {layer}: no room for {need}"));
        }
        let domains = found.domains.iter().map(lacks).collect::<Vec<_>>().join(", ");
        Some(format!("no domain of {layer} has room for {need}: {domains}"))
    }
}

impl State {
    /// All states.
    pub const ALL: [Self; 6] =
        [Self::Idle, Self::Deploy, Self::Scale, Self::Update, Self::Blocked, Self::Failed];

    /// Returns `true` if a step makes no progress by itself.
    pub fn is_stuck(self) -> bool {
        matches!(self, Self::Blocked | Self::Failed)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
