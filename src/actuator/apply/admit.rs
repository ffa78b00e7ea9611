//! Opens scheduling gates for pods of a step.

use std::sync::Arc;

use crate::actuator::cached_pods::Displaced;
use crate::actuator::drain::Choice;
use crate::actuator::event::Kind;
use crate::actuator::observe::Observed;
use crate::actuator::ordinals::split;
use crate::actuator::pods::PodObject;
use crate::actuator::state::Actuator;
use crate::actuator::target::Target;
use crate::capacity::plan::{Reason, RolePlan, State};
use crate::capacity::{Condition, Plan, Policy};

/// Pods whose gate may be open, and their number if pods with lower ordinals wait at the gate while higher
/// ones are to be removed: those with higher ordinals are removed first.
fn kept<'p>(pods: Vec<&'p PodObject>, role: &RolePlan, target: &Target) -> (Vec<&'p PodObject>, u32) {
    let is_held = Choice::of(&target.reference) == Some(Choice::Ordinal)
        && role.write < target.replicas
        && !role.reasons.contains(&Reason::Trimmed);
    if !is_held {
        return (pods, 0);
    }
    let (mut stays, mut goes) = split(&pods, target.replicas, role.write);
    goes.retain(|pod| !pod.is_gated());
    let past = stays.iter().filter(|pod| !pod.is_gated()).count();
    if past == stays.len() || goes.is_empty() {
        return (pods, 0);
    }
    let kept = goes.len() + stays.len().min(past.max(role.admitted as usize));
    stays.extend(goes);
    (stays, kept as u32)
}

impl Actuator {
    /// Opens the scheduling gates of a step's pods.
    pub(super) async fn gates(
        &mut self,
        policy: &Policy,
        plan: &Plan,
        role: &RolePlan,
        place: usize,
        seen: &Observed,
    ) {
        let pods: Vec<&PodObject> = seen.objects.get(place).into_iter().flatten().map(Arc::as_ref).collect();
        let Some(Some(target)) = seen.targets.get(place) else { return };
        // Uncoordinated roles were not counted for the placement.
        let is_placed = policy.rollout.as_ref().is_some_and(|rollout| rollout.is_coordinated(place));
        let placement = plan.placement.as_ref().filter(|_| is_placed);
        // A domain chosen with unknown requirements doesn't count.
        let is_short =
            |place: &usize| plan.roles.get(*place).is_some_and(|role: &RolePlan| role.admitted > 0);
        let is_known = !(is_placed && seen.unknown.iter().any(is_short));
        let key = (policy.name.clone(), role.name.clone());
        let before = self.let_through.get(&key).copied().unwrap_or(0);
        let (pods, kept) = kept(pods, role, target);
        // Replacements belong to no step, and don't wait.
        let replaced = before.min(role.desired);
        let admitted = match plan.state {
            _ if !is_known => replaced,
            // An abandoned step admits no more pods.
            State::Failed => role.admitted.max(replaced),
            _ => role.admitted.max(kept),
        };
        if is_known {
            self.let_through.insert(key.clone(), admitted);
        }
        let none = Displaced::default();
        let displaced = seen.displaced.get(place).filter(|of| plan.moves && of.pods > 0).unwrap_or(&none);
        // Pods to be evicted count as missing already.
        let is_called = |pod: &&PodObject| displaced.stranded.iter().any(|of| of.name() == pod.name());
        let staying: Vec<&PodObject> = pods.iter().copied().filter(|pod| !is_called(pod)).collect();
        let step = (before.min(admitted), admitted);
        let late =
            self.closed_domains.get(&(policy.name.clone(), role.name.clone())).cloned().unwrap_or_default();
        let domains = (&displaced.closed, &late);
        let placements = self.next_placements(policy, &role.name, &staying, step, placement, domains);
        // Pods of unknown domain wait for a placement, like the step.
        let waits = plan.conditions.contains(&Condition::TopologyUnsatisfied)
            && seen.displaced.get(place).is_some_and(|of| of.pods > 0);
        let there = pods.iter().filter(|pod| pod.is_alive() && !pod.is_gated()).count() as u32;
        let known = placements.iter().take_while(|placement| placement.is_some()).count() as u32;
        let may_open = if waits { admitted.min(there + known) } else { admitted };
        let opened = self.open(policy, &pods, may_open, &placements).await;
        let opened = self.passed(policy, &role.name, &staying, &opened, &displaced.closed);
        let past = there + opened;
        // A pod about to be replaced counts as missing.
        let passing = self.passing.entry(key).or_insert(before);
        *passing = past.max(*passing).min(may_open);
        if opened > 0 {
            let to = placement.map(|to| format!(" to {}={}", to.layer, to.domain));
            let message = format!(
                "policy {}, role {}: opened the gates of {opened} pods{}, {admitted} admitted",
                policy.name,
                role.name,
                to.unwrap_or_default()
            );
            tracing::info!(
                policy = policy.name,
                role = role.name,
                opened,
                admitted,
                "scheduling gates opened"
            );
            self.record_event(&policy.name, target, Kind::Normal, "StepAdmitted", &message);
        }
    }
}
