//! Applies a plan: replicas, scheduling gates, evictions and the pace of rolling updates.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::event::Kind;
use super::foreign_growth::limit_growth;
use super::observe::Observed;
use super::ordinals::loses_gated_only;
use super::pair::{has_held_partner, keep_beside_no_target, order, stays_with_partner, wait_for_partners};
use super::pause::{self, Held, PauseMechanism};
use super::pods::PodObject;
use super::problem_subject::ProblemSubject;
use super::shrink::Drained;
use super::state::Actuator;
use super::target::Target;
use super::write::Write;
use crate::capacity::plan::{OpenRole, Reason, RolePlan, State};
use crate::capacity::policy::{Mode, TargetRef};
use crate::capacity::{Condition, Plan, Policy};
use crate::cluster::{PatchType, Problem};

mod admit;

/// Outcome of applying a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Applied plan: replicas that were held back are corrected, and conditions and reasons say why.
    pub plan: Plan,
    /// Roles, by index, whose replicas were not written. Lost responses are reported by the next observation
    /// ([`Observed::lost`]).
    pub unwritten: Vec<usize>,
}

/// Outcome of a write of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    Yes,
    /// The response was lost.
    Perhaps,
    No,
}

/// Limit of a role's admitted pods by its target.
fn replicas_of(target: &Option<Target>) -> u32 {
    target.as_ref().map_or(u32::MAX, |target| target.replicas)
}

/// Restricts scale-down during a rolling update to pods at their gate and pods beyond the desired ones.
fn keep_updated(plan: &mut Plan, observed: &Observed) {
    for (place, role) in plan.roles.iter_mut().enumerate() {
        let Some(Some(target)) = observed.targets.get(place) else { continue };
        let pods: Vec<&PodObject> =
            observed.objects.get(place).into_iter().flatten().map(Arc::as_ref).collect();
        let kept = role.desired.max(role.admitted).min(target.replicas);
        let is_less = role.write < kept && role.reasons.contains(&Reason::Updating);
        if is_less && !loses_gated_only(&pods, target, role.write) {
            role.write = kept;
        }
    }
}

fn reasons(role: &RolePlan) -> String {
    role.reasons.iter().map(|reason| format!("{reason:?}")).collect::<Vec<_>>().join(", ")
}

/// Event message about a role of a stuck step; `None` if the role has all its pods.
fn stuck(policy: &str, plan: &Plan, role: &RolePlan) -> Option<String> {
    // A step has its own counts: all pods of the role may be ready, and more.
    let pods = match role.open {
        Some(OpenRole { pods, up, is_update: true }) => {
            format!("{up} of {pods} pods of the newest revision are up")
        }
        Some(OpenRole { pods, up, is_update: false }) => format!("{up} of {pods} pods are up"),
        None if role.ready < role.desired => format!("{} of {} pods are ready", role.ready, role.desired),
        None => return None,
    };
    let conditions: Vec<String> = plan.conditions.iter().map(|condition| format!("{condition:?}")).collect();
    let (admitted, name) = (role.admitted, &role.name);
    Some(format!("policy {policy}, role {name}: {pods}, {admitted} admitted: {}", conditions.join(", ")))
}

impl Actuator {
    /// Applies a plan as far as possible. `frozen`: condition that forbids writes.
    pub async fn apply(
        &mut self,
        policy: &Policy,
        plan: &Plan,
        mut observed: Observed,
        now: Duration,
        frozen: Option<Condition>,
    ) -> Outcome {
        let mut plan = plan.clone();
        self.failed.clear();
        self.refused.clear();
        self.unready.clear();
        self.undrained.clear();
        let unwritten = self.apply_plan(policy, &mut plan, &mut observed, now, frozen).await;
        self.record_failures(policy, &mut plan, &observed);
        self.send_events(&policy.name).await;
        if self.is_unfinished {
            plan.roles.iter_mut().for_each(|role| role.reasons.push(Reason::Unfinished));
        }
        Outcome { plan, unwritten }
    }

    /// Records failed, refused and waiting writes of a policy as conditions and events; each event once until
    /// it clears.
    fn record_failures(&mut self, policy: &Policy, plan: &mut Plan, observed: &Observed) {
        let failed = [
            (Condition::WriteFailed, std::mem::take(&mut self.failed)),
            (Condition::EvictionRefused, std::mem::take(&mut self.refused)),
            (Condition::LowerOrdinalsUnready, std::mem::take(&mut self.unready)),
            (Condition::NotDrained, std::mem::take(&mut self.undrained)),
        ];
        for (condition, failed) in failed {
            let key = (policy.name.clone(), condition);
            if failed.is_empty() {
                self.failing.remove(&key);
                continue;
            }
            plan.conditions.push(condition);
            if self.failing.insert(key) {
                let message = format!("policy {}: {}", policy.name, failed.join("; "));
                for target in observed.targets.iter().flatten() {
                    self.record_event(
                        &policy.name,
                        target,
                        Kind::Warning,
                        &format!("{condition:?}"),
                        &message,
                    );
                }
            }
        }
    }

    async fn apply_plan(
        &mut self,
        policy: &Policy,
        plan: &mut Plan,
        observed: &mut Observed,
        now: Duration,
        frozen: Option<Condition>,
    ) -> Vec<usize> {
        if !self.is_of_pool(observed) {
            // The next observation has the pods of the current pool.
            return (0..plan.roles.len()).collect();
        }
        let mut unwritten = Vec::new();
        let is_still =
            |condition: Option<Condition>| condition.is_some_and(|known| known != Condition::Suspended);
        if policy.mode != Mode::Apply {
            let objects = self.without_foreign_pods(policy, &observed.objects);
            for (role, pods) in policy.roles.iter().zip(&objects) {
                self.unready_since.remove(&(policy.name.clone(), role.name.clone()));
                self.undrain(policy, &role.name, pods, now).await;
            }
            self.keep_leaving(policy, now);
            // Desired replicas are not read here: missing pods will be replaced.
            self.open_replacement_gates_of(policy, &objects, &[]).await;
            return unwritten;
        }
        let mut frozen = frozen;
        let mut why = String::new();
        let targets: Vec<&Target> = observed.targets.iter().flatten().collect();
        if frozen.is_none()
            && let Some(found) = self.other_scaler(&targets, now).await
        {
            (frozen, why) = (Some(Condition::OtherScaler), format!("{found}; "));
            plan.conditions.extend(frozen);
        }
        if self.has_hidden_owner(&targets) {
            plan.conditions.push(Condition::OwnerUnknown);
        }
        self.record_frozen(policy, frozen, &why, observed);
        let is_limited = limit_growth(policy, plan, &observed.replicas, &observed.may_write);
        let is_too_large = |((target, replicas), role): ((&Option<Target>, &u32), &RolePlan)| {
            target.is_none() && *replicas > role.goal
        };
        let mut each = observed.targets.iter().zip(&observed.replicas).zip(&plan.roles);
        let is_limited = is_limited && each.any(is_too_large);
        let kept_beside = keep_beside_no_target(policy, plan, observed, |role| {
            self.let_through.get(&(policy.name.clone(), role.to_owned())).copied().unwrap_or(u32::MAX)
        });
        if frozen.is_none() && (is_limited || !kept_beside.is_empty()) {
            plan.conditions.push(Condition::NoTarget);
        }
        keep_updated(plan, observed);
        let is_free = frozen.is_none();
        let shrinks = plan.roles.iter().zip(&observed.targets).zip(&observed.may_write);
        let shrinks = shrinks.map(|((role, target), may_write)| {
            is_free && *may_write && target.as_ref().is_some_and(|target| role.write < target.replicas)
        });
        let shrinks: Vec<bool> = shrinks.collect();
        let held_up = self.held_up(policy, &mut *plan, observed, &shrinks, now);
        // Whether each role's replicas may be written, and whether the pods that it loses may go.
        let mut may_write = vec![false; plan.roles.len()];
        let mut drained = vec![None; plan.roles.len()];
        for (place, role) in plan.roles.iter().enumerate() {
            let Some(replicas) = observed.targets.get(place).and_then(Option::as_ref).map(|of| of.replicas)
            else {
                continue;
            };
            let may = is_free
                && observed.may_write.get(place).copied().unwrap_or(false)
                && (role.write >= replicas || !has_held_partner(policy, place, observed))
                && held_up.get(place) != Some(&true);
            let outcome = if may && role.write < replicas {
                Some(self.drain(policy, place, role, observed, now).await)
            } else {
                let pods = observed.objects.get(place).map_or(&[][..], Vec::as_slice);
                self.undrain(policy, &role.name, pods, now).await;
                None
            };
            if let (Some(may_write), Some(drained)) = (may_write.get_mut(place), drained.get_mut(place)) {
                (*may_write, *drained) = (may, outcome);
            }
        }
        let mut waits = wait_for_partners(policy, plan, observed, &drained);
        let goes = |place: usize| {
            may_write.get(place) == Some(&true) && drained.get(place) != Some(&Some(Drained::NotYet))
        };
        let shrinks_now = (0..plan.roles.len())
            .any(|place| shrinks.get(place) == Some(&true) && goes(place) && waits.get(place) != Some(&true));
        if shrinks_now && !self.pods_unchanged(policy, observed).await {
            for (waits, shrinks) in waits.iter_mut().zip(&shrinks) {
                *waits |= shrinks;
            }
        }
        let mut failed = Vec::new();
        for place in order(policy, plan, observed) {
            let stays = stays_with_partner(policy, plan, observed, place, &failed);
            let (Some(role), Some(Some(target))) =
                (plan.roles.get_mut(place), observed.targets.get_mut(place))
            else {
                continue;
            };
            if role.write == target.replicas {
                if held_up.get(place) == Some(&true) || kept_beside.contains(&place) {
                    unwritten.push(place);
                }
                continue;
            }
            let shrinks = role.write < target.replicas;
            let waits = waits.get(place) == Some(&true) || (stays && shrinks);
            if waits {
                self.wait(&policy.name, &role.name, now);
            }
            if waits || drained.get(place) == Some(&Some(Drained::NotYet)) {
                role.reasons.push(Reason::Draining);
                unwritten.push(place);
                continue;
            }
            let written = match may_write.get(place) == Some(&true) && !stays {
                true => self.write(policy, role, target, now).await,
                false => Written::No,
            };
            if written != Written::Yes {
                failed.push(place);
            }
            if written == Written::No {
                unwritten.push(place);
            } else if shrinks {
                self.drained(&policy.name, &role.name, now);
            }
        }
        // Beside a role with a foreign writer, the group doesn't grow.
        let is_foreign =
            observed.may_write.iter().zip(&observed.targets).any(|(may, target)| !may && target.is_some());
        if is_foreign && !plan.conditions.contains(&Condition::ForeignWriter) {
            plan.conditions.push(Condition::ForeignWriter);
        }
        if is_foreign || frozen.is_some() {
            self.keep_leaving(policy, now);
        }
        if is_foreign || is_still(frozen) {
            let replicas: Vec<u32> = observed.targets.iter().map(replicas_of).collect();
            self.open_replacement_gates_of(policy, &observed.objects, &replicas).await;
            return unwritten;
        }
        for place in 0..plan.roles.len() {
            let Some(role) = plan.roles.get(place) else { continue };
            if let Some(own) = policy.roles.get(place).filter(|own| own.target.is_none()) {
                let pods = observed.objects.get(place).map_or(&[][..], Vec::as_slice);
                let is_placed = policy.rollout.as_ref().is_some_and(|rollout| rollout.is_coordinated(place));
                // The domain has room for one step, and not for all of the role's pods at once.
                let is_step = pods.iter().filter(|pod| pod.is_alive()).count() as u32 <= role.admitted;
                let step = plan.placement.as_ref().filter(|_| is_placed && is_step && !plan.moves);
                self.open_role_replacement_gates(policy, own, pods, u32::MAX, step).await;
                continue;
            }
            self.gates(policy, plan, role, place, observed).await;
            if frozen.is_some() {
                continue;
            }
            if plan.moves {
                self.evict_displaced(policy, place, observed).await;
            }
            let drained = self.trim(policy, role, place, observed, now).await;
            if policy.rollout.as_ref().is_some_and(|rollout| rollout.update.is_some()) {
                self.hold(policy, plan, place, observed).await;
            }
            if drained == Drained::NotYet
                && let Some(role) = plan.roles.get_mut(place)
                && !role.reasons.contains(&Reason::Draining)
            {
                role.reasons.push(Reason::Draining);
            }
        }
        unwritten
    }

    /// Logs once that a policy is blocked, with an event per target.
    fn record_frozen(&mut self, policy: &Policy, frozen: Option<Condition>, why: &str, observed: &Observed) {
        let Some(condition) = frozen else {
            self.frozen.remove(&policy.name);
            return;
        };
        if self.frozen.insert(policy.name.clone(), condition) == Some(condition) {
            return;
        }
        let message = format!("policy {}: {why}nothing is written", policy.name);
        let condition = format!("{condition:?}");
        tracing::warn!(policy = policy.name, condition, why, "capacity policy blocked, targets unchanged");
        for target in observed.targets.iter().flatten() {
            self.record_event(&policy.name, target, Kind::Warning, &condition, &message);
        }
    }

    /// Records events for the roles of a stuck step and those that wait for it.
    pub fn record_stuck(&mut self, policy: &Policy, plan: &Plan, observed: &Observed) {
        if policy.mode != Mode::Apply {
            return;
        }
        let what = if plan.state == State::Failed { "StepFailed" } else { "StepBlocked" };
        for (role, target) in plan.roles.iter().zip(&observed.targets) {
            if let (Some(target), Some(message)) = (target, stuck(&policy.name, plan, role)) {
                self.record_event(&policy.name, target, Kind::Warning, what, &message);
            }
        }
    }

    /// Writes a role's replicas.
    async fn write(
        &mut self,
        policy: &Policy,
        role: &RolePlan,
        target: &mut Target,
        now: Duration,
    ) -> Written {
        if self.term.left().is_zero() {
            return Written::No;
        }
        let subject = ProblemSubject::target("replicas of ", &target.reference);
        let (from, to) = (target.replicas, role.write);
        if let Err(problem) = target.write(&self.cluster, &self.term, &self.namespace, to).await {
            self.report_failure(subject, &problem);
            if !problem.is_unsure() {
                return Written::No;
            }
            self.writers.entry((policy.name.clone(), role.name.clone())).or_default().attempted(to);
            return Written::Perhaps;
        }
        self.clear_problem(subject);
        let key = (policy.name.clone(), role.name.clone());
        self.writers.entry(key).or_default().wrote(to, now);
        let reason = reasons(role);
        tracing::info!(policy = policy.name, role = role.name, from, to, reason, "replicas written");
        let (what, message) = (
            if to > from { "ScaledUp" } else { "ScaledDown" },
            format!(
                "policy {}, role {}: scaled from {from} to {to} replicas: {reason}",
                policy.name, role.name
            ),
        );
        self.record_event(&policy.name, target, Kind::Normal, what, &message);
        self.note(&policy.name, &role.name, Write { from, to, at: now, reason });
        Written::Yes
    }

    /// Paces a rolling update by a partition or a pause.
    async fn hold(&mut self, policy: &Policy, plan: &Plan, place: usize, seen: &Observed) {
        let Some(role) = plan.roles.get(place) else { return };
        let Some(Some(target)) = seen.targets.get(place) else { return };
        let Some(mechanism) = pause::of(&target.reference.api_version, &target.reference.kind) else {
            return;
        };
        let subject = ProblemSubject::target("rolling update of ", &target.reference);
        let Some(Some(object)) = seen.bodies.get(place) else { return };
        let is_outdated = |pod: &&super::cached_pods::ObservedPod| pod.role == place && pod.state.is_outdated;
        let outdated = seen.pods.iter().filter(is_outdated).count() as u32;
        let kept = pause::kept(object, mechanism).min(target.replicas);
        let held =
            role.partition.map(|partition| Held { partition: partition.saturating_add(kept), outdated });
        // A paused Deployment gets no new revision, so a broken update could not be fixed.
        let is_stuck = matches!(role.open, Some(OpenRole { is_update: true, .. }));
        let held = held.filter(|_| !(is_stuck && mechanism == PauseMechanism::Pause));
        let Some(patch) = pause::patch(object, mechanism, held).filter(|_| self.term.lasts()) else { return };
        let patched: Result<Value, Problem> =
            self.term.write(self.cluster.patch(&target.path, PatchType::Merge, &patch)).await;
        match patched {
            Ok(_) => {
                self.clear_problem(subject);
                let why = match held {
                    Some(_) => reasons(role),
                    None if is_stuck => "the update is stuck; a new revision may fix it".to_owned(),
                    None => "no update is in progress".to_owned(),
                };
                let spec = patch.get("spec").unwrap_or(&patch);
                let message = format!("policy {}, role {}: patched {spec}: {why}", policy.name, role.name);
                log_update(&role.name, &target.reference, spec, held.map(|held| held.partition));
                self.record_event(&policy.name, target, Kind::Normal, "UpdatePaced", &message);
            }
            Err(problem) => self.report_failure(subject, &problem),
        }
    }
}

/// Logs a patch that paces a rolling update: `spec` is the changed part of the workload's spec, `partition`
/// the first ordinal that may be updated, `None` once the update is resumed.
fn log_update(role: &str, workload: &TargetRef, spec: &Value, partition: Option<u32>) {
    let workload = format!("{} {}", workload.kind, workload.name);
    match spec.get("paused").and_then(Value::as_bool) {
        Some(true) => tracing::info!(role, workload, "rolling update paused"),
        Some(false) => tracing::info!(role, workload, "rolling update resumed"),
        None => tracing::info!(role, workload, partition, "rolling update partition changed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stuck_step_is_reported_for_its_roles_and_waiting_roles() {
        let open = |pods, up, is_update| Some(OpenRole { pods, up, is_update });
        // Ready, desired, and what is open; what is said.
        let table = [
            (4, 4, open(4, 3, false), Some("3 of 4 pods are up")),
            (7, 4, open(1, 0, true), Some("0 of 1 pods of the newest revision are up")),
            (2, 4, open(4, 2, false), Some("2 of 4 pods are up")),
            (2, 4, None, Some("2 of 4 pods are ready")),
            (4, 4, None, None),
            (7, 4, None, None),
        ];
        let plan = Plan {
            conditions: vec![Condition::BatchTimeout, Condition::Paused],
            state: State::Blocked,
            ..Plan::default()
        };
        for (ready, desired, open, expected) in table {
            let role =
                RolePlan { name: "r".to_owned(), ready, desired, admitted: 8, open, ..RolePlan::default() };
            let message = |pods: &str| format!("policy p, role r: {pods}, 8 admitted: BatchTimeout, Paused");
            assert_eq!(stuck("p", &plan, &role), expected.map(message), "{role:?}");
        }
    }
}
