//! Specification of a CapacityPolicy, in a file and as a custom resource with the same schema.
//! [`Policy`](super::Policy) is the resolved form.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize};

use super::rollout::{DeploySpec, ScalingSpec, UpdateSpec};
use super::span::{Span, Text};

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
    /// Its metadata.
    pub metadata: Metadata,
    /// Its specification.
    pub spec: Spec,
}

/// The name of a policy.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default)]
pub struct Metadata {
    /// Its name, not empty.
    pub name: String,
    /// Namespace of a custom resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Labels of the object; they mean nothing here.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Its annotations; they mean nothing here either.
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
    /// Use of the plans: only shown, or also carried out.
    pub mode: Mode,
    /// Stops all writes while `true`. Pods still pass their gate, and the status is updated.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Time between two ticks; 15 s when absent.
    pub interval: Option<Span>,
    /// The roles, by name; one or more.
    pub roles: BTreeMap<String, RoleSpec>,
    /// Computation of the size of the whole group; not beside `rules`.
    pub total: Option<TotalSpec>,
    /// Limits on the change of the group's size.
    pub behavior: Option<BehaviorSpec>,
    /// Division of the group's size among its roles.
    pub coordination: Option<CoordinationSpec>,
    /// Rules that change roles step by step; not beside `total`.
    pub rules: Vec<RuleSpec>,
    /// Steps in which pods come up, and their placement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deploy: Option<DeploySpec>,
    /// Limit of the distance between roles while the group's size changes; not beside `deploy.steps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling: Option<ScalingSpec>,
    /// Limit of the distance between roles while pods are updated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update: Option<UpdateSpec>,
}

/// A pool.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(default)]
pub struct PoolRef {
    /// Its name: that of the InferencePool, or what the pool of a label selector is called in metrics.
    pub name: String,
}

/// Effect of plans: only shown, or also carried out.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
pub enum Mode {
    /// Plans are published, and no workload is changed.
    #[default]
    Recommend,
    /// Plans are published, and workloads are scaled by them.
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
    /// Labels that its pods have. When absent: the role label, with the role's name.
    pub selector: BTreeMap<String, String>,
    /// Object that has the role's replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_target_ref: Option<TargetRef>,
}

/// An object with replicas.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TargetRef {
    /// Its group and version.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// JSON pointer to its number of replicas, if it has no `scale` subresource; `/spec/replicas` when
    /// absent.
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

/// Source of the size of the whole group.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TotalSpec {
    /// Numbers with their targets; the one that asks for most counts.
    pub metrics: Vec<SignalSpec>,
    /// Distance from the target that changes nothing, 0 to 100; 10 when absent.
    pub tolerance_percent: Option<i64>,
    /// By how much each cost block is larger than the one before; 200 when absent.
    pub cost_expansion_percent: Option<i64>,
}

/// A number and its target.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(default)]
pub struct SignalSpec {
    /// Its name; the query itself when that is its source.
    pub name: String,
    /// Source of its value.
    #[serde(skip_serializing_if = "RuleSource::is_of_pods")]
    pub source: RuleSource,
    /// Value that it should have per pod; above 0.
    pub target: Option<f64>,
}

/// A number that says how pressed a role is, and its target.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(default)]
pub struct PressureSpec {
    /// Its name.
    pub metric: String,
    /// The value that is a pressure of 1; above 0.
    pub target: Option<f64>,
}

/// Limits on the growth and shrinking of a group.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BehaviorSpec {
    /// Growing.
    pub scale_up: Option<PaceSpec>,
    /// Shrinking.
    pub scale_down: Option<PaceSpec>,
}

/// Limits on the change of a group in one direction.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PaceSpec {
    /// Pods per period.
    pub instances: Option<i64>,
    /// Percent per period, 0 to 1,000.
    pub percent: Option<i64>,
    /// The period, at most 30 minutes.
    pub period: Option<Span>,
    /// Choice of the larger (`Or`) or the smaller (`And`) of the two limits.
    pub select: Option<Select>,
    /// Time for which a change has to be asked for, at most 30 minutes.
    pub stabilization: Option<Span>,
    /// Time that pods have to finish their requests before they are deleted, at most 30 minutes; 0
    /// deletes them at once. When shrinking only; 5 minutes when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_timeout: Option<Span>,
    /// Further settings for when far more is needed than there is; when growing only.
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

/// When a group is far too small.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PanicSpec {
    /// From how many percent of the current size on, 110 to 1,000.
    pub threshold_percent: Option<i64>,
    /// Percent per period that the group may grow by then, 0 to 1,000.
    pub percent: Option<i64>,
    /// The period.
    pub period: Option<Span>,
    /// Time that it lasts after it was last needed; 0: never.
    pub hold: Option<Span>,
}

/// Division of a group's size among its roles.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CoordinationSpec {
    /// Use of pressure in the division.
    pub mode: CoordinationMode,
    /// Part of the shares that pressure decides, 0 to 1; 0.5 when absent.
    pub alpha: Option<f64>,
    /// The share of each role in percent.
    pub preferred_ratio: BTreeMap<String, BandSpec>,
    /// The numbers that say how pressed a role is.
    pub pressure: Option<BTreeMap<String, Vec<PressureSpec>>>,
    /// A ratio between two roles that always holds.
    pub ratio: Option<RatioSpec>,
}

/// Part of pressure in the division of a group's size.
#[derive(Clone, Copy, Debug, Default, Serialize, PartialEq, Eq, JsonSchema)]
pub enum CoordinationMode {
    /// Cost decides.
    #[default]
    Off,
    /// Pressure counts, within the bands where that is possible.
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

/// A range of shares, in percent of the group.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(default)]
pub struct BandSpec {
    /// The smallest share; 0 when absent.
    pub min: Option<i64>,
    /// The largest; 100 when absent.
    pub max: Option<i64>,
}

/// A ratio between the pods of two roles.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(default)]
pub struct RatioSpec {
    /// The role above the line.
    pub numerator: String,
    /// The role below it.
    pub denominator: String,
    /// The smallest ratio, as `1:4` or a decimal; none when absent.
    pub min: Option<Text>,
    /// The largest; none when absent.
    pub max: Option<Text>,
}

/// A rule that changes a role step by step.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RuleSpec {
    /// Its name.
    pub name: String,
    /// The role that it changes.
    pub role: String,
    /// Source of its number.
    pub source: RuleSource,
    /// Its number.
    pub metric: String,
    /// Aggregation of the pods' numbers.
    pub aggregation: Aggregation,
    /// Comparison of the number with `threshold` for which the rule fires.
    pub comparator: Option<Comparator>,
    /// Value that the number is compared with.
    pub threshold: Option<f64>,
    /// Below it the role shrinks by `step`; in place of `comparator`.
    pub min_threshold: Option<f64>,
    /// Above it the role grows by `step`; in place of `comparator`.
    pub max_threshold: Option<f64>,
    /// Pods to add, or to remove when negative.
    pub step: Option<i64>,
    /// Time for which it doesn't fire again; 300 s when absent.
    pub cooldown: Option<Span>,
    /// Fewest pods that it leaves; the role's when absent.
    pub min: Option<i64>,
    /// Most pods that it leaves; the role's when absent.
    pub max: Option<i64>,
    /// Action at a bound.
    pub on_bound: OnBound,
    /// Priority of the rule: rules with a higher one are looked at first.
    pub priority: i64,
    /// The least part of the ready pods that has to have the number, 0 to 1.
    pub min_coverage: Option<f64>,
}

/// Source of a number.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RuleSource {
    /// A number that Usher knows of each pod, or any gauge or counter of its model server.
    #[default]
    Inference,
    /// A gauge of what a pod runs on.
    Kernel,
    /// A query.
    Prometheus,
}

impl RuleSource {
    /// Returns `true` if it is what holds when nothing is said.
    fn is_of_pods(&self) -> bool {
        *self == Self::default()
    }
}

/// Aggregation of the numbers of a role's pods.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Aggregation {
    /// Their mean.
    #[default]
    Avg,
    /// Their sum.
    Sum,
    /// The largest.
    Max,
    /// The smallest that 95 of 100 don't exceed.
    P95,
}

/// Comparison of a number with a threshold.
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
