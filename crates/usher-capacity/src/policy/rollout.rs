//! How a policy says in which order pods come up: as it is written, whether it makes sense, and what it
//! means.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::resolve::{MOST_LAYERS, MOST_PODS, Reader};
use super::span::Span;
use super::spec::{Document, Spec};
use super::validate::Found;
use super::{Policy, Role};
use crate::ratio::repair;
use crate::rollout::{
    BATCH_TIMEOUT, OnTimeout, PROVISIONING_TIMEOUT, Pace, Rollout, Success, Topology, Update,
};
use crate::share::Bounds;
use usher_core::config::layers::PLACE_LABELS;

/// Percentages of a policy that doesn't say.
const MAX_SKEW: u32 = 10;
const MAX_UNAVAILABLE: u32 = 5;

/// Longest a step may be waited for.
pub const LONGEST_STEP: Duration = Duration::from_secs(24 * 60 * 60);

/// In which steps pods come up, and where.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploySpec {
    /// Pods of each role that come up together, at least 1. A role that isn't named goes its own way.
    pub steps: BTreeMap<String, i64>,
    /// When a pod counts as up; `Ready` when absent.
    pub success: Option<SuccessSpec>,
    /// How long a step may go without a pod coming up; 10 minutes when absent.
    pub batch_timeout: Option<Span>,
    /// For how long of a step the cluster may add nodes without that counting; 15 minutes when absent.
    pub provisioning_timeout: Option<Span>,
    /// What happens to a step that takes longer.
    pub on_timeout: TimeoutSpec,
    /// Where the pods of a step go; where the scheduler likes when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<TopologySpec>,
}

/// When a pod counts as up.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
pub enum SuccessSpec {
    /// It has a node.
    Scheduled,
    /// Its containers run.
    Running,
    /// It is ready.
    Ready,
    /// It is in the pool, and its metrics are fresh.
    Serving,
}

/// What happens to a step that takes too long.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
pub enum TimeoutSpec {
    /// It stays as it is.
    #[default]
    Hold,
    /// What exceeds whole usable groups is given back, and tried again later.
    Trim,
    /// It ends, until other sizes are asked for.
    Fail,
}

/// Where the pods of a step go.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologySpec {
    /// Keys of node labels, from the smallest domains to the largest; [`PLACE_LABELS`], those of routing, when absent.
    pub layers: Vec<String>,
    /// The ClusterTopology that has the layers, in place of `layers`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_topology: Option<String>,
    /// The layer in one domain of which a step should fit; the first when absent.
    pub layer: Option<String>,
    /// Whether it has to.
    pub constraint: ConstraintSpec,
}

/// Whether a step has to fit into one domain.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
pub enum ConstraintSpec {
    /// Wider layers are tried where none of the layer's domains has room.
    #[default]
    Preferred,
    /// The step waits until one has.
    Required,
}

/// How far apart roles may be while the group's size changes.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScalingSpec {
    /// By how many percent of its goal one role may be further along than another, 0 to 100; 0: a pod at a
    /// time.
    pub max_skew_percent: Option<i64>,
    /// When the next pods may come; `OrderReady` when absent.
    pub progression: Progression,
}

/// When the next pods may come.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, JsonSchema)]
pub enum Progression {
    /// When those before have nodes.
    OrderScheduled,
    /// When those before are ready.
    #[default]
    OrderReady,
}

/// How far apart roles may be while pods are updated.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateSpec {
    /// By how many percent one role may be further along than another, 0 to 100; 10 when absent.
    pub max_skew_percent: Option<i64>,
    /// How many percent of a role may be unavailable, 0 to 100, at least one pod; 5 when absent.
    pub max_unavailable_percent: Option<i64>,
}

/// What a policy says of the order in which pods come up, go and are updated; `None`: nothing.
pub(super) fn read(spec: &Spec, reader: &mut Reader) -> Option<Rollout> {
    if spec.deploy.is_none() && spec.scaling.is_none() && spec.update.is_none() {
        return None;
    }
    let default = DeploySpec::default();
    let deploy = spec.deploy.as_ref().unwrap_or(&default);
    let mut pace = None;
    if let Some(scaling) = &spec.scaling {
        pace = Some(Pace::Skew(reader.whole(scaling.max_skew_percent, MAX_SKEW, 100)));
    }
    if !deploy.steps.is_empty() {
        let step = |role: &String| reader.whole(deploy.steps.get(role).copied(), 0, MOST_PODS);
        pace = Some(Pace::Steps(spec.roles.keys().map(step).collect()));
    }
    let progression = spec.scaling.as_ref().map(|scaling| scaling.progression);
    let success = match (deploy.success, progression) {
        (Some(SuccessSpec::Scheduled), _) | (None, Some(Progression::OrderScheduled)) => Success::Scheduled,
        (Some(SuccessSpec::Running), _) => Success::Running,
        (Some(SuccessSpec::Serving), _) => Success::Serving,
        (Some(SuccessSpec::Ready), _) | (None, _) => Success::Ready,
    };
    let update = spec.update.as_ref().map(|update| Update {
        max_skew: reader.whole(update.max_skew_percent, MAX_SKEW, 100),
        max_unavailable: reader.whole(update.max_unavailable_percent, MAX_UNAVAILABLE, 100),
    });
    let mut time = |written: Option<Span>, default: Duration| {
        let written = Span::or(written, default);
        reader.checked(written, written.min(LONGEST_STEP))
    };
    Some(Rollout {
        pace,
        success,
        batch_timeout: time(deploy.batch_timeout, BATCH_TIMEOUT),
        provisioning_timeout: time(deploy.provisioning_timeout, PROVISIONING_TIMEOUT),
        on_timeout: match deploy.on_timeout {
            TimeoutSpec::Hold => OnTimeout::Hold,
            TimeoutSpec::Trim => OnTimeout::Trim,
            TimeoutSpec::Fail => OnTimeout::Fail,
        },
        topology: deploy.topology.as_ref().map(topology),
        update,
    })
}

fn topology(written: &TopologySpec) -> Topology {
    let layers = layers(written);
    let layer = written.layer.as_ref().and_then(|layer| layers.iter().position(|key| key == layer));
    Topology {
        layer: layer.unwrap_or(0),
        layers,
        is_required: written.constraint == ConstraintSpec::Required,
    }
}

fn layers(written: &TopologySpec) -> Vec<String> {
    if written.layers.is_empty() { PLACE_LABELS.map(str::to_owned).to_vec() } else { written.layers.clone() }
}

/// What is wrong with it.
pub(super) fn check(spec: &Spec, found: &mut Found) {
    if let Some(deploy) = &spec.deploy {
        check_deploy(spec, deploy, found);
    }
    if let Some(scaling) = &spec.scaling {
        found.whole("spec.scaling.maxSkewPercent".to_owned(), scaling.max_skew_percent, 0, 100);
        if spec.deploy.as_ref().is_some_and(|deploy| !deploy.steps.is_empty()) {
            found.error("spec.scaling", "says the same as deploy.steps in another way; keep one of them");
        }
    }
    if let Some(update) = &spec.update {
        found.whole("spec.update.maxSkewPercent".to_owned(), update.max_skew_percent, 0, 100);
        found.whole("spec.update.maxUnavailablePercent".to_owned(), update.max_unavailable_percent, 0, 100);
    }
}

fn check_deploy(spec: &Spec, deploy: &DeploySpec, found: &mut Found) {
    if deploy.steps.is_empty() && spec.scaling.is_none() {
        found.error("spec.deploy", "has no steps; say how many pods of each role come up together");
    }
    for (role, step) in &deploy.steps {
        let path = format!("spec.deploy.steps.{role}");
        found.role(path.clone(), role, spec);
        found.whole(path, Some(*step), 1, MOST_PODS);
    }
    for (key, time) in
        [("batchTimeout", deploy.batch_timeout), ("provisioningTimeout", deploy.provisioning_timeout)]
    {
        if Span::or(time, Duration::ZERO) > LONGEST_STEP {
            found.error(format!("spec.deploy.{key}"), "is longer than 24h");
        }
    }
    if deploy.batch_timeout.is_some_and(|time| time.0.is_zero()) {
        found.error("spec.deploy.batchTimeout", "is 0, which no step can keep");
    }
    if deploy.success.is_some() && spec.scaling.is_some() {
        found.warning("spec.deploy.success", "is what counts; scaling.progression has no effect beside it");
    }
    if let Some(topology) = &deploy.topology {
        check_topology(topology, found);
    }
    for (bound, of) in [("min", true), ("max", false)] {
        whole_steps(spec, deploy, bound, of, found);
    }
}

/// Whether steps keep a hard ratio: roles that have not reached their goals are at the ratio of their steps.
pub(super) fn check_ratio(document: &Document, found: &mut Found) {
    /// Sizes of a step that are tried.
    const MOST: u32 = 1_000;
    let policy = Policy::of(document);
    let pace = policy.rollout.as_ref().and_then(|rollout| rollout.pace.as_ref());
    let (Some(ratio), Some(Pace::Steps(steps))) = (policy.ratio, pace) else { return };
    let of = |place: usize| Some((steps.get(place).copied()?, policy.roles.get(place)?));
    let (Some((x, above)), Some((y, below))) = (of(ratio.numerator), of(ratio.denominator)) else { return };
    // A role without steps goes its own way, and one whose first step is its last has its goal from then on.
    let has_steps = |step: u32, role: &Role| step > 0 && step < role.range.max;
    if !has_steps(x, above) || !has_steps(y, below) || ratio.bounds.hold(x, y) {
        return;
    }
    let (bound, what) = if ratio.bounds.is_below(x, y) { ("min", "below") } else { ("max", "above") };
    let written = document.spec.coordination.as_ref().and_then(|of| of.ratio.as_ref());
    let written =
        written.and_then(|written| if bound == "min" { &written.min } else { &written.max }.as_ref());
    let written = written.map(|written| format!(" {}", written.0)).unwrap_or_default();
    let within = |role: &Role| Bounds { low: 1, high: role.range.max.min(MOST) };
    let instead = match repair((x, y), &ratio.bounds, (within(above), within(below))) {
        Some((x, y)) => format!("write {}: {x} and {}: {y}, or change the ratio", above.name, below.name),
        None => "change them or the ratio".to_owned(),
    };
    found.error(
        "spec.deploy.steps",
        format!(
            "bring up {x} {} with every {y} {}, which is {what} spec.coordination.ratio.{bound}{written}, so that no step keeps the ratio; {instead}",
            above.name, below.name
        ),
    );
}

fn check_topology(topology: &TopologySpec, found: &mut Found) {
    let path = |key: &str| format!("spec.deploy.topology.{key}");
    if topology.layers.len() > MOST_LAYERS {
        found.error(path("layers"), format!("are more than {MOST_LAYERS}"));
    }
    let mut seen = BTreeSet::new();
    for (index, layer) in topology.layers.iter().enumerate() {
        if layer.is_empty() {
            found.error(path(&format!("layers.{index}")), "is empty; write the key of a node label");
        } else if !seen.insert(layer) {
            found.error(path(&format!("layers.{index}")), format!("'{layer}' is there twice"));
        }
    }
    if topology.cluster_topology.is_some() {
        if !topology.layers.is_empty() {
            found.error(path("layers"), "are those of the ClusterTopology; keep one of the two");
        }
        return;
    }
    let layers = layers(topology);
    if let Some(layer) = topology.layer.as_ref().filter(|layer| !layers.contains(layer)) {
        let known = layers.join(", ");
        found.error(path("layer"), format!("'{layer}' is none of the layers; they are {known}"));
    }
}

/// Whether the smallest and the largest sizes are of whole steps.
fn whole_steps(spec: &Spec, deploy: &DeploySpec, bound: &str, is_min: bool, found: &mut Found) {
    let pods = |role: &str| {
        let role = spec.roles.get(role)?;
        if is_min { Some(role.min.unwrap_or(0)) } else { role.max }
    };
    let stepping: Vec<(&String, i64, i64)> = deploy
        .steps
        .iter()
        .filter(|(_, step)| **step > 0)
        .filter_map(|(role, step)| Some((role, *step, pods(role)?)))
        .collect();
    for (role, step, pods) in &stepping {
        if (1..*step).contains(pods) {
            found.warning(
                format!("spec.deploy.steps.{role}"),
                format!("is {step}, and '{role}' has a {bound} of {pods}, which is less than one step"),
            );
        }
    }
    let is_apart = |pair: &[(&String, i64, i64)]| match pair {
        [(_, step, pods), (_, other, of)] => pods * other != of * step,
        _ => false,
    };
    if stepping.iter().all(|(_, _, pods)| *pods > 0) && stepping.windows(2).any(is_apart) {
        let all: Vec<String> =
            stepping.iter().map(|(role, step, pods)| format!("{pods} {role} by {step}")).collect();
        found.warning(
            "spec.deploy.steps",
            format!("don't lead to every {bound} in the same number of steps ({}), so that the last steps are not at the ratio", all.join(", ")),
        );
    }
}
