//! Counts of each role's pods.

use super::{Rollout, Success};
use crate::inputs::{Inputs, Pod};
use crate::plan::RolePlan;

/// Counts of a role's pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoleCounts {
    /// Goal.
    pub goal: u32,
    /// Admitted pods: existing ones past their gate.
    pub there: u32,
    /// Observed ones of them.
    pub seen: u32,
    /// Pods that are up.
    pub ok: u32,
    /// Ready pods.
    pub ready: u32,
    /// Gated pods.
    pub gated: u32,
    /// Gated pods of the newest revision.
    pub gated_new: u32,
    /// Pods that an update covers: admitted ones, and gated replacements.
    pub size: u32,
    /// Unschedulable pods.
    pub unschedulable: u32,
    /// Pods of the newest revision.
    pub updated: u32,
    /// Pods of the newest revision that are up.
    pub updated_ok: u32,
    /// Pods of an older revision.
    pub outdated: u32,
}

/// Counts of the roles' pods, in the policy's order. `has_gates`: pods begin at a gate.
pub(super) fn role_counts(
    inputs: &Inputs,
    roles: &[RolePlan],
    rollout: &Rollout,
    has_gates: bool,
) -> Vec<RoleCounts> {
    let mut role_counts: Vec<RoleCounts> =
        roles.iter().map(|role| RoleCounts { goal: role.desired, ..RoleCounts::default() }).collect();
    for pod in &inputs.pods {
        let Some(counts) = role_counts.get_mut(pod.role) else { continue };
        if pod.state.is_gated {
            counts.gated += 1;
            counts.gated_new += u32::from(!pod.state.is_outdated);
            continue;
        }
        let is_ok = u32::from(is_up(pod, rollout.success));
        let is_updated = u32::from(!pod.state.is_outdated);
        counts.seen += 1;
        counts.ok += is_ok;
        counts.ready += u32::from(pod.is_ready);
        counts.unschedulable += u32::from(pod.state.is_unschedulable);
        counts.updated += is_updated;
        counts.updated_ok += is_updated & is_ok;
        counts.outdated += 1 - is_updated;
    }
    for (counts, role) in role_counts.iter_mut().zip(roles) {
        // The list of pods may be a moment ahead of the number of replicas, or behind it. Those that don't
        // exist yet will begin at the gate, where there is one: they are not past it.
        counts.there = if has_gates { counts.seen.min(role.current) } else { role.current };
        counts.size = counts.there;
    }
    role_counts
}

/// Returns `true` if a pod counts as up. Later stages imply earlier ones.
fn is_up(pod: &Pod, success: Success) -> bool {
    let state = &pod.state;
    match success {
        Success::Scheduled => state.is_scheduled || state.is_running || pod.is_ready,
        Success::Running => state.is_running || pod.is_ready,
        Success::Ready => pod.is_ready,
        Success::Serving => state.is_serving,
    }
}
