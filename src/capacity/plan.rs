//! What a tick comes to: how many pods of each role, and why.

use serde::Serialize;

/// How many pods a group should have, and what led there.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The roles, in the policy's order.
    pub roles: Vec<RolePlan>,
    /// The sum of what is desired. While a role waits for others to grow, this is more than `size`.
    pub total: u32,
    /// Whether anything is to change.
    pub state: State,
    /// What is not as it should be.
    pub conditions: Vec<Condition>,
    /// The rules that fired, by name.
    pub fired: Vec<String>,
    /// What each step came to.
    pub stages: Stages,
}

/// How many pods a role should have.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolePlan {
    /// The role.
    pub name: String,
    /// How many there are.
    pub current: u32,
    /// How many of them are ready.
    pub ready: u32,
    /// What its cost comes to.
    pub base: u32,
    /// How pressed it is: its largest value ÷ target. None where that isn't known.
    pub pressure: Option<f64>,
    /// What it is to have in the end.
    pub goal: u32,
    /// How many to ask for now.
    pub desired: u32,
    /// What made it so, in the order of the steps.
    pub reasons: Vec<Reason>,
}

/// Whether anything is to change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum State {
    /// All roles are as desired.
    #[default]
    Idle,
    /// A role is to grow or to shrink.
    Scale,
}

/// What each step came to, in pods of the whole group.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stages {
    /// What there is.
    pub current: u32,
    /// What each metric asks for.
    pub metrics: Vec<MetricStage>,
    /// The most that a metric asks for, within bounds.
    pub recommended: u32,
    /// What windows and limits leave of it.
    pub limited: u32,
    /// What is shared by the roles.
    pub size: u32,
    /// Every rule, in the order in which they were looked at.
    pub rules: Vec<RuleStage>,
}

/// What a metric asks for.
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

/// What became of a rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleStage {
    /// Its name.
    pub name: String,
    /// Its value, when it is known.
    pub value: Option<f64>,
    /// What became of it.
    pub outcome: RuleOutcome,
}

/// What became of a rule in a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum RuleOutcome {
    /// It changes its role.
    Fired,
    /// Its value is on the other side of its threshold.
    Quiet,
    /// Its value isn't known.
    NoData,
    /// Too few of the ready pods have the number.
    Coverage,
    /// It fired a short while ago.
    Cooldown,
    /// Its step would leave the bounds, or the role is there already.
    Bound,
    /// Another rule changes the role in this tick.
    Lost,
}

/// Why a role has the size that it has. The order is that of the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Reason {
    /// It had fewer pods than its minimum, or the group than all minima.
    Min,
    /// It had more than its maximum, or the group than all maxima.
    Max,
    /// A metric asks for another size of the group.
    Metric,
    /// No metric is far enough from its target.
    Tolerance,
    /// No metric is known; the size is kept.
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
    /// The share that cost gives it.
    Cost,
    /// Its share follows from how pressed the roles are.
    Pressure,
    /// How pressed the roles are isn't known now: the last shares hold.
    LastShares,
    /// How pressed the roles are isn't known: cost decides.
    NoPressure,
    /// Its band cut its share.
    Band,
    /// The bands can't be kept by a group of this size.
    BandUnsatisfied,
    /// It moves by one pod at most while the group's size stays: not worth it.
    DeadBand,
    /// The ratio between two roles asks for more pods or fewer.
    Ratio,
    /// No numbers of pods keep the ratio; the role stays as it is.
    RatioUnsatisfied,
    /// It shrinks when what others grow by is ready.
    GrowFirst,
}

/// What is not as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Condition {
    /// The roles' bands can't be kept by a group of this size.
    BandUnsatisfied,
    /// No numbers of pods keep the ratio.
    RatioConstraintViolated,
    /// No metric that sizes is known; the size is kept.
    StaleData,
    /// Far more is needed than there is.
    Panic,
}
