//! Specification of a CapacityPolicy, in a file and as a custom resource with the same schema.
//! [`Policy`](super::Policy) is the resolved form.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize};

use super::rollout::{DeploySpec, ScalingSpec, UpdateSpec};
use super::span::{GoDuration, Text};

/// API group and version of policies.
pub const API_VERSION: &str = "usher.dev/v1alpha1";
/// Kind of policies.
pub const KIND: &str = "CapacityPolicy";

/// A policy document.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Document {
    /// [`API_VERSION`].
    pub api_version: String,
    /// [`KIND`].
    pub kind: String,
    /// Metadata of the policy.
    pub metadata: Metadata,
    /// Specification of the policy.
    pub spec: Spec,
}

/// The name of a policy.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default)]
pub struct Metadata {
    /// Name of the policy, not empty.
    pub name: String,
    /// Namespace of a custom resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Labels of the object; ignored.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the object; ignored.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// Specification of a policy.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// The pool whose picker follows the policy, as a custom resource; every picker of its namespace that
    /// follows policies when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool_ref: Option<PoolRef>,
    /// Use of the plans: only published, or also applied.
    pub mode: Mode,
    /// Stops all writes while `true`. Scheduling gates still open, and the status is updated.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Interval of ticks; 15 s when absent.
    pub interval: Option<GoDuration>,
    /// Roles by name; one or more.
    pub roles: BTreeMap<String, RoleSpec>,
    /// Sizing of the whole group by metrics; not with `rules`.
    pub total: Option<TotalSpec>,
    /// Limits on changes of the group's size.
    pub behavior: Option<BehaviorSpec>,
    /// Coordination: how roles share the group's size.
    pub coordination: Option<CoordinationSpec>,
    /// Rules that change roles in steps; not with `total`.
    pub rules: Vec<RuleSpec>,
    /// Rollout steps, and their placement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deploy: Option<DeploySpec>,
    /// Largest difference in progress between roles while the group's size changes; not with `deploy.steps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling: Option<ScalingSpec>,
    /// Largest difference in progress between roles during rolling updates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update: Option<UpdateSpec>,
}

/// A pool.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(default)]
pub struct PoolRef {
    /// Name of the InferencePool, or of a label selector's pool in metrics.
    pub name: String,
}

/// Use of the plans: only published, or also applied.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
pub enum Mode {
    /// Plans are published, and no workload is changed.
    #[default]
    Recommend,
    /// Plans are published, and applied to workloads.
    Apply,
}

/// A role of the group.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RoleSpec {
    /// Fewest pods, 0 when absent.
    pub min: Option<i64>,
    /// Most pods, from 1 to 1,000,000.
    pub max: Option<i64>,
    /// Cost of a pod relative to those of other roles; 1 when absent.
    pub cost: Option<f64>,
    /// Labels of its pods. When absent: the role label, with the role's name.
    pub selector: BTreeMap<String, String>,
    /// Object with the role's replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_target_ref: Option<TargetRef>,
}

/// An object with replicas.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TargetRef {
    /// API group and version.
    pub api_version: String,
    /// Kind of the object.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// JSON pointer to the replicas, for kinds without a `scale` subresource; `/spec/replicas` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas_path: Option<String>,
}

impl TargetRef {
    /// Returns `true` for the same object, whatever the version of its API group.
    pub fn is_same(&self, other: &Self) -> bool {
        (group(&self.api_version), &self.kind, &self.name)
            == (group(&other.api_version), &other.kind, &other.name)
    }
}

/// API group of a group and version.
pub fn group(api_version: &str) -> &str {
    api_version.rsplit_once('/').map_or("", |(group, _)| group)
}

/// Sizing of the whole group by metrics.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TotalSpec {
    /// Metrics with their targets; the one that asks for most pods counts.
    pub metrics: Vec<SignalSpec>,
    /// Tolerance in percent of the target, 0 to 100; 10 when absent.
    pub tolerance_percent: Option<i64>,
    /// Size of each cost block in percent of the previous one; 200 when absent.
    pub cost_expansion_percent: Option<i64>,
}

/// A metric and its target.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(default)]
pub struct SignalSpec {
    /// Name of the metric; the query itself for a Prometheus query.
    pub name: String,
    /// Source of the value.
    #[serde(skip_serializing_if = "RuleSource::is_of_pods")]
    pub source: RuleSource,
    /// Target value per pod; above 0.
    pub target: Option<f64>,
}

/// A pressure metric and its target.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(default)]
pub struct PressureSpec {
    /// Name of the metric.
    pub metric: String,
    /// Value at which the pressure is 1; above 0.
    pub target: Option<f64>,
}

/// Limits on the growth and shrinking of a group.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BehaviorSpec {
    /// Scale-up.
    pub scale_up: Option<PaceSpec>,
    /// Scale-down.
    pub scale_down: Option<PaceSpec>,
}

/// Limit on changes in one direction.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PaceSpec {
    /// Pods per period.
    pub instances: Option<i64>,
    /// Percent per period, 0 to 1,000.
    pub percent: Option<i64>,
    /// Length of the period, at most 30 minutes.
    pub period: Option<GoDuration>,
    /// Choice of the larger (`Or`) or the smaller (`And`) of the two limits.
    pub select: Option<Select>,
    /// Stabilization window, at most 30 minutes.
    pub stabilization: Option<GoDuration>,
    /// Time for pods to finish their requests before they are deleted, at most 30 minutes; 0 deletes them
    /// immediately. Scale-down only; 5 minutes when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_timeout: Option<GoDuration>,
    /// Settings for when far more pods are needed than exist; scale-up only.
    pub panic: Option<PanicSpec>,
}

/// Choice of one of two limits.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
pub enum Select {
    /// The one that allows more.
    #[default]
    Or,
    /// The one that allows less.
    And,
}

/// Detection of a group that is far too small.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PanicSpec {
    /// Threshold in percent of the current size, 110 to 1,000.
    pub threshold_percent: Option<i64>,
    /// Allowed growth per period during panic, in percent, 0 to 1,000.
    pub percent: Option<i64>,
    /// Length of the period.
    pub period: Option<GoDuration>,
    /// Duration of panic after it was last needed; 0 disables panic.
    pub hold: Option<GoDuration>,
}

/// Coordination: how roles share the group's size.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CoordinationSpec {
    /// Use of pressure.
    pub mode: CoordinationMode,
    /// Part of the shares by pressure, 0 to 1; 0.5 when absent.
    pub alpha: Option<f64>,
    /// Preferred share of each role in percent.
    pub preferred_ratio: BTreeMap<String, BandSpec>,
    /// Pressure metrics of each role.
    pub pressure: Option<BTreeMap<String, Vec<PressureSpec>>>,
    /// Hard ratio of two roles.
    pub ratio: Option<RatioSpec>,
}

/// Use of pressure when roles share the group's size.
#[derive(Clone, Copy, Debug, Default, Serialize, PartialEq, Eq, JsonSchema)]
pub enum CoordinationMode {
    /// Shares follow cost alone.
    #[default]
    Off,
    /// Shares follow cost and pressure, within the bands where possible.
    Preferred,
}

/// Accepts an unquoted `Off`, which YAML reads as a boolean.
impl<'de> Deserialize<'de> for CoordinationMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Word;
        impl Visitor<'_> for Word {
            type Value = CoordinationMode;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("Off or Preferred")
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<CoordinationMode, E> {
                if value { Err(E::custom("expected Off or Preferred")) } else { Ok(CoordinationMode::Off) }
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<CoordinationMode, E> {
                match text {
                    "Off" => Ok(CoordinationMode::Off),
                    "Preferred" => Ok(CoordinationMode::Preferred),
                    _ => Err(E::unknown_variant(text, &["Off", "Preferred"])),
                }
            }
        }
        deserializer.deserialize_any(Word)
    }
}

/// Range of shares, in percent of the group.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(default)]
pub struct BandSpec {
    /// Smallest share; 0 when absent.
    pub min: Option<i64>,
    /// Largest share; 100 when absent.
    pub max: Option<i64>,
}

/// A ratio between the pods of two roles.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(default)]
pub struct RatioSpec {
    /// Role of the numerator.
    pub numerator: String,
    /// Role of the denominator.
    pub denominator: String,
    /// Smallest ratio, as `1:4` or a decimal; none when absent.
    pub min: Option<Text>,
    /// Largest ratio; none when absent.
    pub max: Option<Text>,
}

/// A rule that changes a role in steps.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RuleSpec {
    /// Name of the rule.
    pub name: String,
    /// Role that it changes.
    pub role: String,
    /// Source of its metric.
    pub source: RuleSource,
    /// Name of its metric.
    pub metric: String,
    /// Aggregation over the role's pods.
    pub aggregation: Aggregation,
    /// Comparison of the value with `threshold` for which the rule fires.
    pub comparator: Option<Comparator>,
    /// Threshold of the value.
    pub threshold: Option<f64>,
    /// Value below which the role shrinks by `step`; in place of `comparator`.
    pub min_threshold: Option<f64>,
    /// Value above which the role grows by `step`; in place of `comparator`.
    pub max_threshold: Option<f64>,
    /// Pods to add, or to remove when negative.
    pub step: Option<i64>,
    /// Time without another firing; 300 s when absent.
    pub cooldown: Option<GoDuration>,
    /// Fewest pods that it leaves; the role's minimum when absent.
    pub min: Option<i64>,
    /// Most pods that it leaves; the role's maximum when absent.
    pub max: Option<i64>,
    /// Action at a bound.
    pub on_bound: OnBound,
    /// Priority of evaluation, highest first.
    pub priority: i64,
    /// Least fraction of the ready pods with a value, 0 to 1.
    pub min_coverage: Option<f64>,
}

/// Source of a metric.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RuleSource {
    /// A metric that Usher knows of each pod, or any gauge or counter of its model server.
    #[default]
    Inference,
    /// A gauge of a pod's GPU exporter.
    Kernel,
    /// A Prometheus query.
    Prometheus,
}

impl RuleSource {
    /// Returns `true` for the default.
    fn is_of_pods(&self) -> bool {
        *self == Self::default()
    }
}

/// Aggregation over a role's pods.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Aggregation {
    /// Mean of the values.
    #[default]
    Avg,
    /// Sum of the values.
    Sum,
    /// Largest value.
    Max,
    /// 95th percentile: the smallest value that 95 of 100 don't exceed.
    P95,
}

/// Comparison of a value with a threshold.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Comparator {
    /// `<`
    LessThan,
    /// `<=`
    LessThanOrEqual,
    /// `>`
    GreaterThan,
    /// `>=`
    GreaterThanOrEqual,
}

/// Action of a rule whose step would leave the bounds.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnBound {
    /// The step is skipped.
    #[default]
    Skip,
    /// The step is cut to the bound.
    Clamp,
}
