//! Concurrent application of plans: each policy has its own actuator state meanwhile.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use super::apply::Outcome;
use super::observe::Observed;
use super::problem_subject::ProblemSubject;
use super::scaler::Owned;
use super::state::Actuator;
use crate::capacity::policy::Role;
use crate::capacity::{Condition, Plan, Policy};

/// Actuator state of one policy while its plan is applied; `merge` brings it back.
#[derive(Debug)]
pub struct PolicyActuator {
    policy: Arc<Policy>,
    actuator: Actuator,
    /// Problems reported before the split.
    reported: HashSet<ProblemSubject>,
}

impl Actuator {
    /// Splits off the state of a policy.
    pub fn split(&mut self, policy: &Arc<Policy>) -> PolicyActuator {
        let (cluster, pool, term) = (self.watched.clone(), self.pool.clone(), Arc::clone(&self.term));
        let mut own = Self::new(cluster, self.namespace.clone(), self.clock.clone(), pool, term);
        for role in &policy.roles {
            let key = (policy.name.clone(), role.name.clone());
            copy(&self.writers, &mut own.writers, &key);
            copy(&self.writes, &mut own.writes, &key);
            copy(&self.let_through, &mut own.let_through, &key);
            copy(&self.passing, &mut own.passing, &key);
            copy(&self.closed_domains, &mut own.closed_domains, &key);
            copy(&self.unready_since, &mut own.unready_since, &key);
            copy_ordered(&self.domain_counts, &mut own.domain_counts, &key);
            copy_ordered(&self.drains, &mut own.drains, &key);
            copy_ordered(&self.leaving, &mut own.leaving, &key);
        }
        copy(&self.frozen, &mut own.frozen, &policy.name);
        own.events.extend(self.events.remove_entry(&policy.name));
        own.failing.extend(self.failing.iter().filter(|(name, _)| *name == policy.name).cloned());
        own.policies.clone_from(&self.policies);
        own.scalers = Arc::clone(&self.scalers);
        let is_own = |(of, ..): &&Owned| policy.roles.iter().any(|role| role.target.as_ref() == Some(of));
        own.owned = self.owned.iter().filter(is_own).cloned().collect();
        own.reported.clone_from(&self.reported);
        PolicyActuator { policy: Arc::clone(policy), actuator: own, reported: self.reported.clone() }
    }

    /// Merges the state of a policy back.
    pub fn merge(&mut self, own: PolicyActuator) {
        let PolicyActuator { policy, mut actuator, reported } = own;
        // A role with other pods by now has no admissions to replace.
        let known = self.policies.iter().chain(&self.unusable);
        let next: Vec<&Role> =
            known.filter(|next| next.name == policy.name).flat_map(|next| &next.roles).collect();
        let is_other =
            |role: &&Role| next.iter().any(|next| next.name == role.name && !next.has_pods_of(role));
        for role in policy.roles.iter().filter(is_other) {
            actuator.forget_passed(&(policy.name.clone(), role.name.clone()));
        }
        for role in &policy.roles {
            let key = (policy.name.clone(), role.name.clone());
            // State dropped while the plan was applied is gone.
            self.unready_since.remove(&key);
            self.drains.remove(&key);
            self.leaving.remove(&key);
        }
        self.writers.extend(actuator.writers);
        self.writes.extend(actuator.writes);
        self.let_through.extend(actuator.let_through);
        self.passing.extend(actuator.passing);
        self.unready_since.extend(actuator.unready_since);
        self.domain_counts.extend(actuator.domain_counts);
        self.drains.extend(actuator.drains);
        self.leaving.extend(actuator.leaving);
        self.frozen.remove(&policy.name);
        self.frozen.extend(actuator.frozen);
        self.events.extend(actuator.events);
        self.failing.retain(|(name, _)| *name != policy.name);
        self.failing.extend(actuator.failing);
        self.owned.retain(|(of, ..)| !actuator.owned.iter().any(|(known, ..)| known == of));
        self.owned.extend(actuator.owned);
        self.reported.retain(|subject| !reported.contains(subject) || actuator.reported.contains(subject));
        self.reported.extend(actuator.reported.into_iter().filter(|subject| !reported.contains(subject)));
        self.forget_others();
    }
}

fn copy<K: Clone + Eq + Hash, V: Clone>(from: &HashMap<K, V>, to: &mut HashMap<K, V>, key: &K) {
    to.extend(from.get(key).map(|value| (key.clone(), value.clone())));
}

fn copy_ordered<K: Clone + Ord, V: Clone>(from: &BTreeMap<K, V>, to: &mut BTreeMap<K, V>, key: &K) {
    to.extend(from.get(key).map(|value| (key.clone(), value.clone())));
}

impl PolicyActuator {
    /// Applies a plan, like [`Actuator::apply`].
    pub async fn apply(
        &mut self,
        plan: &Plan,
        observed: Observed,
        now: Duration,
        frozen: Option<Condition>,
    ) -> Outcome {
        self.actuator.begin();
        self.actuator.apply(&self.policy, plan, observed, now, frozen).await
    }

    /// Returns `true` if a request timed out.
    pub fn is_late(&self) -> bool {
        self.actuator.is_late()
    }

    /// Returns `true` if requests are left for the next tick.
    pub fn is_unfinished(&self) -> bool {
        self.actuator.is_unfinished()
    }
}
