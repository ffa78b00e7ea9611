//! Validation of rollout settings.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::policy::limits::{LONGEST_LAYER, MOST_LAYERS, MOST_PODS};
use crate::policy::problem::ProblemList;
use crate::policy::rollout::{DeploySpec, LONGEST_STEP, TopologySpec};
use crate::policy::span::GoDuration;
use crate::policy::spec::{Document, Spec};
use crate::policy::{Policy, Role};
use crate::ratio::repair;
use crate::rollout::Pace;
use crate::share::Bounds;

/// Validates rollout settings.
pub(super) fn check(spec: &Spec, found: &mut ProblemList) {
    if let Some(deploy) = &spec.deploy {
        check_deploy(spec, deploy, found);
    }
    if let Some(scaling) = &spec.scaling {
        found.whole("spec.scaling.maxSkewPercent".to_owned(), scaling.max_skew_percent, 0, 100);
        if spec.deploy.as_ref().is_some_and(|deploy| !deploy.steps.is_empty()) {
            found.error("spec.scaling", "excludes deploy.steps; keep one of them");
        }
    }
    if let Some(update) = &spec.update {
        found.whole("spec.update.maxSkewPercent".to_owned(), update.max_skew_percent, 0, 100);
        found.whole("spec.update.maxUnavailablePercent".to_owned(), update.max_unavailable_percent, 0, 100);
    }
}

fn check_deploy(spec: &Spec, deploy: &DeploySpec, found: &mut ProblemList) {
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
        if GoDuration::or(time, Duration::ZERO) > LONGEST_STEP {
            found.error(format!("spec.deploy.{key}"), "is longer than 24h");
        }
    }
    if deploy.batch_timeout.is_some_and(|time| time.0.is_zero()) {
        found.error("spec.deploy.batchTimeout", "has to be above 0");
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

/// Checks that steps keep a hard ratio: until roles reach their goals, they are at the ratio of their steps.
pub(super) fn check_ratio(document: &Document, found: &mut ProblemList) {
    /// Largest step that is tried for a suggestion.
    const MOST: u32 = 1_000;
    let policy = Policy::of(document);
    let pace = policy.rollout.as_ref().and_then(|rollout| rollout.pace.as_ref());
    let (Some(ratio), Some(Pace::Steps(steps))) = (policy.ratio, pace) else { return };
    let of = |place: usize| Some((steps.get(place).copied()?, policy.roles.get(place)?));
    let (Some((x, above)), Some((y, below))) = (of(ratio.numerator), of(ratio.denominator)) else { return };
    // A role without steps is independent, and one with a single step is at its goal after it.
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

fn check_topology(topology: &TopologySpec, found: &mut ProblemList) {
    let path = |key: &str| format!("spec.deploy.topology.{key}");
    check_layers(&path("layers"), &topology.layers, found);
    if topology.cluster_topology.is_some() {
        if !topology.layers.is_empty() {
            found.error(path("layers"), "are those of the ClusterTopology; keep one of the two");
        }
        return;
    }
    let layers = topology.layers();
    if let Some(layer) = topology.layer.as_ref().filter(|layer| !layers.contains(layer)) {
        let known = layers.join(", ");
        found.error(path("layer"), format!("'{layer}' is not one of the layers; they are {known}"));
    }
}

/// Validates the layers at a path.
pub(super) fn check_layers(path: &str, layers: &[String], found: &mut ProblemList) {
    if layers.len() > MOST_LAYERS {
        found.error(path, format!("are more than {MOST_LAYERS}"));
    }
    let mut seen = BTreeSet::new();
    for (index, layer) in layers.iter().enumerate() {
        let path = format!("{path}.{index}");
        if layer.is_empty() {
            found.error(path, "is empty; write the key of a node label");
        } else if layer.len() > LONGEST_LAYER {
            found.error(
                path,
                format!("has more than {LONGEST_LAYER} characters; write the key of a node label"),
            );
        } else if !seen.insert(layer) {
            found.error(path, format!("'{layer}' is a duplicate"));
        }
    }
}

/// Checks that minimum and maximum sizes are multiples of the steps.
fn whole_steps(spec: &Spec, deploy: &DeploySpec, bound: &str, is_min: bool, found: &mut ProblemList) {
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
