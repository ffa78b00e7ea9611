//! Plans for policies whose desired replicas are not read back (Recommend mode, KEDA): they see the existing
//! pods only.

use std::time::Duration;

use super::running::Running;
use crate::capacity::plan::RolePlan;
use crate::capacity::{Condition, Inputs, Plan, Policy, Reason, State, tick};

/// Time for which pods are asked for that never appear.
const COMING_UP: Duration = Duration::from_mins(10);

impl Running {
    /// Plans with these inputs. `is_read`: their replicas are the desired ones of the targets.
    ///
    /// Otherwise a role with unknown metrics counts the pods asked for before: lost pods, which are replaced
    /// in a moment, are no reason to ask for fewer.
    pub(super) fn plan(
        &mut self,
        policy: &Policy,
        inputs: &mut Inputs,
        is_read: bool,
        now: Duration,
    ) -> Plan {
        let history = self.history.get_or_insert_default();
        if is_read {
            self.asked.clear();
            return tick(inputs, policy, history, now);
        }
        let before = history.clone();
        let mut plan = tick(inputs, policy, history, now);
        let there: Vec<u32> = plan.roles.iter().map(|role| role.current).collect();
        if !inputs.pods.is_empty() {
            self.had_pods = now;
        }
        // Pods that never appear are not asked for forever.
        let comes = now.saturating_sub(self.had_pods) < COMING_UP;
        let kept = |(place, role): (usize, &RolePlan)| {
            let most = policy.roles.get(place)?.range.max;
            let asked = self.asked.get(place).copied().flatten()?.min(most);
            let is_unknown = role.is_blind || role.current == 0 || role.reasons.contains(&Reason::StaleData);
            // A plan's scale-down is kept.
            (comes && is_unknown && role.write >= role.current && asked > role.write).then_some(asked)
        };
        let kept: Vec<Option<u32>> = plan.roles.iter().enumerate().map(kept).collect();
        if kept.iter().any(Option::is_some) {
            inputs.replicas.clone_from(&there);
            inputs.starting.resize(there.len(), 0);
            let inputs_of = inputs.replicas.iter_mut().zip(&mut inputs.starting);
            for ((replicas, starting), asked) in inputs_of.zip(&kept) {
                let asked = asked.unwrap_or(*replicas);
                *starting = starting.saturating_add(asked.saturating_sub(*replicas));
                *replicas = asked;
            }
            *history = before;
            plan = tick(inputs, policy, history, now);
            for ((role, there), kept) in plan.roles.iter_mut().zip(&there).zip(&kept) {
                role.current = *there;
                if kept.is_some() && !role.reasons.contains(&Reason::StaleData) {
                    role.reasons.push(Reason::StaleData);
                }
            }
            plan.stages.current = there.iter().fold(0, |sum, pods| sum.saturating_add(*pods));
            if !plan.conditions.contains(&Condition::StaleData) {
                plan.conditions.push(Condition::StaleData);
                plan.conditions.sort_unstable();
            }
            if plan.state == State::Idle && plan.roles.iter().any(|role| role.desired != role.current) {
                plan.state = State::Scale;
            }
        }
        self.asked = plan.roles.iter().map(|role| Some(role.write)).collect();
        plan
    }
}
