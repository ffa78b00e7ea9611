//! Capacity policies: what they come to.

use serde_json::{Value, json};

use super::lines::Lines;
use crate::capacity::policy::file::Read;
use crate::capacity::policy::{Policy, Sizing};
use crate::capacity::rollout::{Pace, Rollout};

/// A policy with its warnings, for machines.
pub(super) fn json(read: &Read) -> Value {
    let warnings: Vec<String> = read.warnings.iter().map(ToString::to_string).collect();
    json!({"name": read.policy.name, "sizing": sizing(&read.policy), "warnings": warnings})
}

fn sizing(policy: &Policy) -> &'static str {
    match policy.sizing {
        Sizing::Total(_) => "total",
        Sizing::Rules(_) => "rules",
        Sizing::Kept => "kept",
    }
}

/// A policy as text for a terminal of so many columns: its name, then what is said of roles, size and rules.
pub(super) fn describe(policy: &Policy, width: Option<usize>) -> String {
    let Policy { name, mode, interval, .. } = policy;
    let mut lines = Lines::new(format!("{name} is valid: {mode:?}, every {interval:?}"), width);
    for role in &policy.roles {
        let selector: Vec<String> =
            role.selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let (min, max, cost) = (role.range.min, role.range.max, role.cost);
        lines.add(&role.name, &format!("{min} to {max} pods, cost {cost}, {}", selector.join(",")));
    }
    match &policy.sizing {
        Sizing::Total(total) => {
            let metrics: Vec<String> = total
                .metrics
                .iter()
                .map(|metric| format!("{} at {}", metric.name, metric.target.as_f64()))
                .collect();
            let (tolerance, expansion) = (total.tolerance, total.cost_expansion);
            let metrics = metrics.join(", ");
            lines.add("size", &format!("{metrics}; tolerance {tolerance} %, cost blocks {expansion} %"));
        }
        Sizing::Rules(rules) => {
            for rule in rules {
                let role = policy.roles.get(rule.role).map_or("", |role| role.name.as_str());
                let (name, min, max, rest) = (&rule.name, rule.range.min, rule.range.max, rule.cooldown);
                lines.add("rule", &format!("{name}: {role} within {min} to {max}, rests {rest:?}"));
            }
        }
        Sizing::Kept => {
            lines.add("size", "stays as it is: there is neither total nor rules");
        }
    }
    if policy.coordination.is_on {
        let alpha = f64::from(policy.coordination.alpha) / 1e9;
        lines.add("shares", &format!("by cost and pressure, alpha {alpha}"));
    }
    if let Some(ratio) = &policy.ratio {
        let name = |place: usize| policy.roles.get(place).map_or("", |role| role.name.as_str());
        lines.add("ratio", &format!("{} : {} always holds", name(ratio.numerator), name(ratio.denominator)));
    }
    if let Some(rollout) = &policy.rollout {
        describe_rollout(policy, rollout, &mut lines);
    }
    lines.into_text()
}

fn describe_rollout(policy: &Policy, rollout: &Rollout, lines: &mut Lines) {
    let pace = match &rollout.pace {
        None => None,
        Some(Pace::Skew(percent)) => Some(format!("no role further along by more than {percent} %")),
        Some(Pace::Steps(steps)) => {
            let each = policy.roles.iter().zip(steps).filter(|(_, step)| **step > 0);
            Some(each.map(|(role, step)| format!("{step} {}", role.name)).collect::<Vec<_>>().join(" and "))
        }
    };
    if let Some(pace) = pace {
        let Rollout { success, batch_timeout, on_timeout, .. } = rollout;
        lines.add(
            "steps",
            &format!("{pace}, until they are {success:?}; {on_timeout:?} after {batch_timeout:?}"),
        );
    }
    if let Some(topology) = &rollout.topology {
        let layer = topology.layers.get(topology.layer).map_or("", String::as_str);
        let how = if topology.is_required { "required" } else { "preferred" };
        lines.add("place", &format!("one domain of {layer} per step, {how}"));
    }
    if let Some(update) = &rollout.update {
        let (skew, away) = (update.max_skew, update.max_unavailable);
        lines.add("update", &format!("roles at most {skew} % apart, {away} % of a role away"));
    }
}
