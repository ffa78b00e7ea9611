//! Validation of policies, before anything is applied.

mod rollout;

use std::collections::{BTreeMap, BTreeSet};

use super::limits::{INTERVAL, LONGEST, MOST_PODS, MOST_ROLES, MOST_RULES, PRESSURE, SHORTEST_INTERVAL};
use super::problem::ProblemList;
use super::span::GoDuration;
use super::spec::{
    API_VERSION, Aggregation, Comparator, CoordinationMode, CoordinationSpec, Document, KIND, Mode, PaceSpec,
    RatioSpec, RuleSource, RuleSpec, Spec,
};
use super::{Policy, Range, WAITING};
use crate::ratio::{Fraction, repair};
use crate::share::Bounds;

pub use super::problem::Problem;

/// Largest alpha at which shares of groups with a constant load never oscillated.
const MOST_ALPHA: f64 = 0.75;

/// All problems of a policy, in the order of its fields.
pub fn problems(document: &Document) -> Vec<Problem> {
    let mut found = ProblemList::default();
    let spec = &document.spec;
    if document.api_version != API_VERSION {
        found.error("apiVersion", format!("is {:?}; write {API_VERSION}", document.api_version));
    }
    if document.kind != KIND {
        found.error("kind", format!("is {:?}; write {KIND}", document.kind));
    }
    if document.metadata.name.is_empty() {
        found.error("metadata.name", "is missing; name the policy");
    }
    let interval = GoDuration::or(spec.interval, INTERVAL);
    if interval < SHORTEST_INTERVAL || interval > LONGEST {
        found.error("spec.interval", "is out of range; write 1s to 30m");
    }
    roles(spec, &mut found);
    total(spec, &mut found);
    behavior(spec, &mut found);
    if let Some(coordination) = &spec.coordination {
        shared(spec, coordination, &mut found);
    }
    rules(spec, &mut found);
    rollout::check(spec, &mut found);
    if !found.has_errors() {
        ratio_over_pods(document, &mut found);
        rollout::check_ratio(document, &mut found);
    }
    found.0
}

/// Problems of the layers of a topology at a path, in their order.
pub fn layer_problems(path: &str, layers: &[String]) -> Vec<Problem> {
    let mut found = ProblemList::default();
    rollout::check_layers(path, layers, &mut found);
    found.0
}

fn roles(spec: &Spec, found: &mut ProblemList) {
    if spec.roles.is_empty() {
        found.error("spec.roles", "is empty; name at least one role");
    }
    found.few("spec.roles", spec.roles.len(), MOST_ROLES);
    for (name, role) in &spec.roles {
        let path = |key: &str| format!("spec.roles.{name}{key}");
        if name.trim().is_empty() {
            found.error(path(""), "has no name");
        }
        found.whole(path(".min"), role.min, 0, MOST_PODS);
        match role.max {
            None => found.error(path(""), format!("'{name}' has no max; say how many pods it may have")),
            max => found.whole(path(".max"), max, 1, MOST_PODS),
        }
        if role.min.zip(role.max).is_some_and(|(min, max)| min > max) {
            found.error(path(".min"), "is above max");
        }
        if spec.mode == Mode::Apply && role.scale_target_ref.is_none() {
            let why = format!("'{name}' has no scaleTargetRef, so nothing is written for it");
            found.warning(path(""), why);
        }
        if let Some(target) = &role.scale_target_ref
            && target.replicas_path.as_ref().is_some_and(|pointer| !pointer.starts_with('/'))
        {
            found.error(
                path(".scaleTargetRef.replicasPath"),
                "is not a JSON pointer; write for example /spec/replicas",
            );
        }
        if role.cost.is_some_and(|cost| !(cost.is_finite() && cost >= 0.0)) {
            found.error(path(".cost"), "has to be 0 or more");
        }
        if let Some(target) = &role.scale_target_ref {
            for (key, value) in
                [("apiVersion", &target.api_version), ("kind", &target.kind), ("name", &target.name)]
            {
                if value.is_empty() {
                    found.error(path(".scaleTargetRef"), format!("has no {key}"));
                }
            }
        }
    }
}

fn total(spec: &Spec, found: &mut ProblemList) {
    let Some(total) = &spec.total else { return };
    if !spec.rules.is_empty() {
        let why = "excludes rules; keep one of them";
        found.error("spec.total", why);
    }
    if total.metrics.is_empty() {
        found.error("spec.total.metrics", "is empty; name a metric with its target");
    }
    found.few("spec.total.metrics", total.metrics.len(), MOST_RULES);
    let mut names = BTreeSet::new();
    for (index, metric) in total.metrics.iter().enumerate() {
        let path = |key: &str| format!("spec.total.metrics.{index}{key}");
        if metric.name.is_empty() {
            found.error(path(""), "has no name");
        } else if !names.insert(&metric.name) {
            found.error(path(".name"), format!("'{}' is a duplicate", metric.name));
        }
        found.positive(path(".target"), metric.target);
    }
    found.whole("spec.total.tolerancePercent".to_owned(), total.tolerance_percent, 0, 100);
    found.whole("spec.total.costExpansionPercent".to_owned(), total.cost_expansion_percent, 0, MOST_PODS);
}

fn behavior(spec: &Spec, found: &mut ProblemList) {
    let Some(behavior) = &spec.behavior else { return };
    let pace = |name: &str, pace: &PaceSpec, found: &mut ProblemList| {
        let path = |key: &str| format!("spec.behavior.{name}.{key}");
        found.whole(path("instances"), pace.instances, 0, MOST_PODS);
        found.whole(path("percent"), pace.percent, 0, 1000);
        found.time(path("period"), pace.period);
        found.time(path("stabilization"), pace.stabilization);
        found.time(path("drainTimeout"), pace.drain_timeout);
        if name == "scaleUp" && pace.drain_timeout.is_some() {
            found.error(path("drainTimeout"), "is for scale-down only; move it to scaleDown");
        }
        let Some(panic) = &pace.panic else { return };
        if name == "scaleDown" {
            found.error(path("panic"), "is for scale-up only; move it to scaleUp");
        }
        found.whole(path("panic.thresholdPercent"), panic.threshold_percent, 110, 1000);
        found.whole(path("panic.percent"), panic.percent, 0, 1000);
        found.time(path("panic.period"), panic.period);
        found.time(path("panic.hold"), panic.hold);
    };
    if let Some(up) = &behavior.scale_up {
        pace("scaleUp", up, found);
    }
    if let Some(down) = &behavior.scale_down {
        pace("scaleDown", down, found);
    }
    let paces = || [&behavior.scale_up, &behavior.scale_down].into_iter().flatten();
    let drains = |pace: &PaceSpec| {
        pace.drain_timeout.is_some()
            && PaceSpec { drain_timeout: None, ..pace.clone() } == PaceSpec::default()
    };
    if spec.total.is_none() && (paces().next().is_none() || !paces().all(drains)) {
        found.warning("spec.behavior", "has no effect without total: windows and limits are about the group");
    }
}

fn shared(spec: &Spec, coordination: &CoordinationSpec, found: &mut ProblemList) {
    if coordination.alpha.is_some_and(|alpha| !(0.0..=1.0).contains(&alpha)) {
        found.error("spec.coordination.alpha", "is out of range; write 0 to 1");
    } else if coordination.alpha.is_some_and(|alpha| alpha > MOST_ALPHA) {
        let why = "is above 0.75: a role's pressure falls as it grows, so shares may swing back and forth";
        found.warning("spec.coordination.alpha", why);
    }
    bands(spec, coordination, found);
    for (role, signals) in coordination.pressure.iter().flatten() {
        let path = |key: &str| format!("spec.coordination.pressure.{role}{key}");
        found.role(path(""), role, spec);
        for (index, signal) in signals.iter().enumerate() {
            if signal.metric.is_empty() {
                found.error(path(&format!(".{index}")), "has no metric");
            }
            found.positive(path(&format!(".{index}.target")), signal.target);
        }
    }
    if coordination.mode == CoordinationMode::Preferred {
        for role in spec.roles.keys() {
            let has_signals = match &coordination.pressure {
                Some(pressure) => pressure.get(role).is_some_and(|signals| !signals.is_empty()),
                None => PRESSURE.iter().any(|(name, _)| name == role),
            };
            if !has_signals {
                let why = format!("has no metrics of '{role}', so its share follows cost alone; add some");
                found.warning("spec.coordination.pressure", why);
            }
        }
    }
    if let Some(ratio) = &coordination.ratio {
        ratio_written(spec, ratio, found);
    }
}

fn bands(spec: &Spec, coordination: &CoordinationSpec, found: &mut ProblemList) {
    let (mut least, mut most) = (0, 0);
    for (role, band) in &coordination.preferred_ratio {
        let path = |key: &str| format!("spec.coordination.preferredRatio.{role}{key}");
        found.role(path(""), role, spec);
        found.whole(path(".min"), band.min, 0, 100);
        found.whole(path(".max"), band.max, 0, 100);
        let (min, max) = (band.min.unwrap_or(0), band.max.unwrap_or(100));
        if min > max {
            found.error(path(".min"), "is above max");
        }
        least += min;
        most += max;
    }
    let path = "spec.coordination.preferredRatio";
    if least > 100 {
        found.error(path, format!("has minima of {least} percent together; keep them at 100 or less"));
    }
    let all = spec.roles.keys().all(|role| coordination.preferred_ratio.contains_key(role));
    if all && !spec.roles.is_empty() && most < 100 {
        found.error(path, format!("has maxima of {most} percent together; let them be 100 or more"));
    }
}

fn ratio_written(spec: &Spec, ratio: &RatioSpec, found: &mut ProblemList) {
    let path = |key: &str| format!("spec.coordination.ratio.{key}");
    found.role(path("numerator"), &ratio.numerator, spec);
    found.role(path("denominator"), &ratio.denominator, spec);
    if ratio.numerator == ratio.denominator {
        found.error(path("denominator"), "is the numerator's role; name two roles");
    }
    let mut bounds = Vec::new();
    for (key, text) in [("min", &ratio.min), ("max", &ratio.max)] {
        match text.as_ref().map(|text| Fraction::parse(&text.0)) {
            Some(Err(message)) => found.error(path(key), message),
            Some(Ok(fraction)) => bounds.push((key, fraction)),
            None => {}
        }
    }
    match bounds.as_slice() {
        [] if ratio.min.is_none() && ratio.max.is_none() => {
            found.error("spec.coordination.ratio", "has neither min nor max");
        }
        [(_, min), (_, max)] if min > max => found.error(path("min"), "is above max"),
        _ => {}
    }
    if bounds.iter().any(|(key, fraction)| *key == "max" && fraction.is_zero()) {
        found.error(path("max"), "has to be above 0");
    }
}

/// Checks that a ratio has a solution in whole pods, where one in real numbers may exist.
fn ratio_over_pods(document: &Document, found: &mut ProblemList) {
    const MOST: u32 = 10_000;
    let policy = Policy::of(document);
    let Some(ratio) = policy.ratio else { return };
    let range = |place: usize| policy.roles.get(place).map_or(Range { min: 0, max: 0 }, |role| role.range);
    let (above, below) = (range(ratio.numerator), range(ratio.denominator));
    if below.max.saturating_sub(below.min) > MOST {
        found.error(
            "spec.coordination.ratio.denominator",
            format!("may have more than {MOST} different sizes; bring its min and max nearer"),
        );
        return;
    }
    let bounds = |range: Range| Bounds { low: range.min, high: range.max };
    let keeps = |of: (Bounds, Bounds)| repair((above.max, below.max), &ratio.bounds, of);
    let with_a_pod = |range: Range| Bounds { low: range.min.max(1), high: range.max };
    // Zero pods satisfy any ratio; other solutions would be nearer.
    if keeps((bounds(above), bounds(below))).is_none_or(|pair| pair == (0, 0)) {
        found.error("spec.coordination.ratio", "can't be satisfied within the roles' bounds");
    } else if keeps((with_a_pod(above), with_a_pod(below))).is_none() {
        let why = "can't be satisfied while requests wait, as each role has a pod then";
        found.warning("spec.coordination.ratio", why);
    } else if (above.min == 0) != (below.min == 0) && !ratio.bounds.min.is_zero() {
        found.warning(
            "spec.coordination.ratio",
            "lets both roles scale to zero or none; give both a min of 0, or neither",
        );
    }
}

fn rules(spec: &Spec, found: &mut ProblemList) {
    found.few("spec.rules", spec.rules.len(), MOST_RULES);
    let mut names = BTreeSet::new();
    for (index, rule) in spec.rules.iter().enumerate() {
        let path = |key: &str| format!("spec.rules.{index}{key}");
        if rule.name.is_empty() {
            found.error(path(""), "has no name");
        } else if !names.insert(&rule.name) {
            found.error(path(".name"), format!("'{}' is a duplicate", rule.name));
        }
        found.role(path(".role"), &rule.role, spec);
        if rule.metric.is_empty() {
            found.error(path(""), "has no metric");
        }
        thresholds(rule, &path, found);
        found.whole(path(".min"), rule.min, 0, MOST_PODS);
        found.whole(path(".max"), rule.max, 1, MOST_PODS);
        if rule.min.zip(rule.max).is_some_and(|(min, max)| min > max) {
            found.error(path(".min"), "is above max");
        }
        if let Some(role) = spec.roles.get(&rule.role) {
            if rule.min.zip(role.max).is_some_and(|(min, max)| min > max) {
                found.warning(path(".min"), format!("is above the max of '{}', which holds", rule.role));
            }
            if rule.max.is_some_and(|max| max < role.min.unwrap_or(0)) {
                found.warning(path(".max"), format!("is below the min of '{}', which holds", rule.role));
            }
        }
        if rule.min_coverage.is_some_and(|part| !(0.0..=1.0).contains(&part)) {
            found.error(path(".minCoverage"), "is out of range; write 0 to 1");
        }
    }
    check_flapping(spec, found);
}

fn thresholds(rule: &RuleSpec, path: &dyn Fn(&str) -> String, found: &mut ProblemList) {
    let is_pair = rule.min_threshold.is_some() || rule.max_threshold.is_some();
    let is_plain = rule.comparator.is_some() || rule.threshold.is_some();
    for (key, value) in [
        ("threshold", rule.threshold),
        ("minThreshold", rule.min_threshold),
        ("maxThreshold", rule.max_threshold),
    ] {
        if value.is_some_and(|value| !value.is_finite()) {
            found.error(path(&format!(".{key}")), "is not a number");
        }
    }
    match (is_pair, is_plain) {
        (true, true) => found.error(
            path(""),
            "has thresholds of both kinds; keep comparator and threshold, or minThreshold and maxThreshold",
        ),
        (false, false) => found.error(
            path(""),
            "has no threshold; give it comparator and threshold, or minThreshold or maxThreshold",
        ),
        (false, true) if rule.comparator.is_none() => {
            found.error(path(""), "has a threshold and no comparator")
        }
        (false, true) if rule.threshold.is_none() => {
            found.error(path(""), "has a comparator and no threshold")
        }
        _ => {}
    }
    if rule.min_threshold.zip(rule.max_threshold).is_some_and(|(min, max)| min >= max) {
        found.error(path(".minThreshold"), "has to be below maxThreshold, or the role flaps");
    }
    match rule.step {
        None => found.error(path(""), "has no step"),
        Some(0) => found.error(path(".step"), "is 0, which changes nothing"),
        Some(step) if !(-MOST_PODS..=MOST_PODS).contains(&step) => {
            found.error(path(".step"), format!("is out of range; write at most {MOST_PODS}"));
        }
        Some(step) if is_pair && step < 0 => {
            found.error(path(".step"), "has no sign beside minThreshold and maxThreshold; write it above 0");
        }
        Some(step) => {
            if rule.comparator.is_some_and(|comparator| is_against(comparator, step)) {
                let what =
                    if step < 0 { "removes pods when there is more" } else { "adds pods when there is less" };
                found.warning(path(".step"), format!("{what} to do; is its sign meant?"));
            }
        }
    }
}

/// Returns `true` if a comparator and its step point in opposite directions.
fn is_against(comparator: Comparator, step: i64) -> bool {
    match comparator {
        Comparator::GreaterThan | Comparator::GreaterThanOrEqual => step < 0,
        Comparator::LessThan | Comparator::LessThanOrEqual => step > 0,
    }
}

/// Checks for rules that scale a role up and down at the same value.
fn check_flapping(spec: &Spec, found: &mut ProblemList) {
    type Key<'a> = (&'a str, RuleSource, &'a str, Aggregation);
    let mut up: BTreeMap<String, Vec<(usize, f64)>> = BTreeMap::new();
    let mut down: BTreeMap<String, Vec<(usize, f64)>> = BTreeMap::new();
    for (index, rule) in spec.rules.iter().enumerate() {
        // A query has one value, whatever the aggregation.
        let is_one = rule.source == RuleSource::Prometheus
            || (rule.source == RuleSource::Inference && rule.metric == WAITING);
        let aggregation = if is_one { Aggregation::default() } else { rule.aggregation };
        let key: Key<'_> = (&rule.role, rule.source, &rule.metric, aggregation);
        let key = format!("{key:?}");
        // A rule with thresholds of both kinds is refused elsewhere.
        if let (Some(comparator), Some(threshold), Some(step)) = (rule.comparator, rule.threshold, rule.step)
        {
            let is_upper = matches!(comparator, Comparator::GreaterThan | Comparator::GreaterThanOrEqual);
            match (is_upper, step > 0) {
                (true, true) => up.entry(key).or_default().push((index, threshold)),
                (false, false) => down.entry(key).or_default().push((index, threshold)),
                // Warned about already.
                _ => {}
            }
        } else {
            if let Some(max) = rule.max_threshold {
                up.entry(key.clone()).or_default().push((index, max));
            }
            if let Some(min) = rule.min_threshold {
                down.entry(key).or_default().push((index, min));
            }
        }
    }
    for (key, ups) in &up {
        for (place, above) in ups {
            for (other, below) in down.get(key).into_iter().flatten() {
                if place != other && above <= below {
                    let (Some(one), Some(two)) = (spec.rules.get(*place), spec.rules.get(*other)) else {
                        continue;
                    };
                    found.error(
                        format!("spec.rules.{place}"),
                        format!(
                            "'{}' adds pods from {above} on and '{}' removes them up to {below}, so the role flaps; keep the first above the second",
                            one.name, two.name
                        ),
                    );
                }
            }
        }
    }
}
