//! Drains pods before scale-down deletes them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::drain::{Choice, Drain, is_marked, marking};
use super::observe::Observed;
use super::pods::PodObject;
use super::state::Actuator;
use crate::capacity::Policy;
use crate::capacity::plan::RolePlan;
use crate::capacity::policy::Role;
use crate::cluster::{PatchType, Problem};

/// State of pods to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drained {
    /// Their requests have ended, the drain timeout is over, or the pods are unknown.
    Yes,
    /// Requests are in flight there.
    NotYet,
}

/// Outcome of setting deletion costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marked {
    Yes,
    /// RBAC forbids it: the controller may delete other pods.
    Denied,
    /// The request failed, or the lease is lost: it is retried.
    NotYet,
}

impl Actuator {
    /// Uids of draining pods, which get no new requests. Pods that outlast the timeout are excluded.
    pub fn draining(&self) -> BTreeSet<String> {
        let now = self.clock.elapsed();
        let known = |policy: &str| self.policies.iter().find(|known| known.name == policy);
        let timeout = |policy: &str| known(policy).map_or(Duration::ZERO, |policy| policy.behavior.drain);
        let interval = |policy: &str| known(policy).map_or(Duration::ZERO, |policy| policy.interval);
        let holding = self.drains.iter().filter(|((policy, _), drain)| drain.holds(now, timeout(policy)));
        let shrinking = holding.flat_map(|(_, drain)| drain.pods.keys());
        let trimmed = self.leaving.iter().flat_map(|((policy, _), pods)| pods.uids(now, interval(policy)));
        shrinking.chain(trimmed).cloned().collect()
    }

    /// Names of a policy's pods that drain before a scale-down.
    pub(super) fn leaving_of(
        &self,
        policy: &Policy,
        objects: &[Vec<Arc<PodObject>>],
        now: Duration,
    ) -> BTreeSet<String> {
        let is_own = |drain: &Drain| drain.written.is_none() && drain.holds(now, policy.behavior.drain);
        let of = |(role, pods): (&Role, &Vec<Arc<PodObject>>)| {
            let key = (policy.name.clone(), role.name.clone());
            let drain = self.drains.get(&key).filter(|drain| is_own(drain))?;
            let goes = |pod: &&Arc<PodObject>| pod.is_alive() && drain.pods.contains_key(&pod.metadata.uid);
            Some(pods.iter().filter(goes).map(|pod| pod.name().to_owned()).collect::<Vec<_>>())
        };
        policy.roles.iter().zip(objects).filter_map(of).flatten().collect()
    }

    /// Returns `true` while pods of a policy drain.
    pub fn is_draining(&self, policy: &str) -> bool {
        self.drains.iter().any(|((name, _), drain)| name == policy && drain.written.is_none())
            || self.leaving.iter().any(|((name, _), pods)| name == policy && pods.waits)
    }

    /// Chooses and drains the pods that a role loses, and returns whether they may be deleted.
    pub(super) async fn drain(
        &mut self,
        policy: &Policy,
        place: usize,
        role: &RolePlan,
        seen: &Observed,
        now: Duration,
    ) -> Drained {
        let timeout = policy.behavior.drain;
        let key = (policy.name.clone(), role.name.clone());
        let target = seen.targets.get(place).and_then(Option::as_ref);
        let choice = target.and_then(|target| Choice::of(&target.reference));
        let (Some(choice), Some(loads)) = (choice, &seen.loads) else { return Drained::Yes };
        let pods = seen.objects.get(place).into_iter().flatten().map(Arc::as_ref);
        let pods: Vec<&PodObject> = pods.filter(|pod| pod.is_alive()).collect();
        // With a pod missing, ordinals still decide, counted from 0.
        let is_short = target.is_some_and(|target| pods.len() < target.replicas as usize);
        let is_above = |pod: &&&PodObject| pod.ordinal().is_some_and(|ordinal| ordinal >= role.write);
        let count = match choice {
            Choice::Ordinal if is_short => pods.iter().filter(is_above).count(),
            _ => pods.len().saturating_sub(role.write as usize),
        };
        if timeout.is_zero() || count == 0 {
            return Drained::Yes;
        }
        // The load of a serving pod without an endpoint is unknown.
        let load = |name: &str| loads.get(name).copied().unwrap_or_default();
        // Pods removed by a recent scale-down may still exist: they stay chosen.
        let drain = self.drains.remove(&key);
        // If the drain lapsed, so that pods got requests again, it restarts.
        let mut drain = drain.filter(|drain| drain.holds(now, timeout)).unwrap_or_default();
        drain.begin_again(now);
        drain.choose(&pods, count, choice, now, load);
        let marked = match choice {
            Choice::Cost => self.mark(&pods, |pod| drain.pods.contains_key(&pod.metadata.uid)).await,
            Choice::Ordinal => Marked::Yes,
        };
        if marked == Marked::Denied {
            self.undrained.push(format!(
                "role {}: RBAC forbids patching pods; its controller chooses which to delete, and they may have requests",
                role.name
            ));
            return Drained::Yes;
        }
        let is_done = match marked {
            // Whichever pods are deleted then, their requests had the full timeout.
            Marked::NotYet => drain.is_late(now, timeout),
            _ => drain.is_done(&pods, now, timeout, load),
        };
        if drain.pods.values().any(|pod| pod.chosen == now) {
            let names: Vec<&str> = drain.pods.values().map(|pod| pod.name.as_str()).collect();
            tracing::info!(
                policy = policy.name,
                role = role.name,
                pods = names.join(", "),
                "draining pods before deletion"
            );
        }
        self.drains.insert(key, drain);
        if is_done { Drained::Yes } else { Drained::NotYet }
    }

    /// Records that drained pods of a role wait for another role.
    pub(super) fn wait(&mut self, policy: &str, role: &str, now: Duration) {
        if let Some(drain) = self.drains.get_mut(&(policy.to_owned(), role.to_owned())) {
            drain.waited = Some(now);
        }
    }

    /// Records a written scale-down: chosen pods are deleted soon.
    pub(super) fn drained(&mut self, policy: &str, role: &str, now: Duration) {
        if let Some(drain) = self.drains.get_mut(&(policy.to_owned(), role.to_owned())) {
            drain.written = Some(now);
        }
    }

    /// Cancels the drain of a role.
    pub(super) async fn undrain(
        &mut self,
        policy: &Policy,
        role: &str,
        pods: &[Arc<PodObject>],
        now: Duration,
    ) {
        let key = (policy.name.clone(), role.to_owned());
        let is_there = |uid: &String| pods.iter().any(|pod| pod.is_alive() && pod.metadata.uid == *uid);
        // Their deletion is in progress.
        let goes = |drain: &Drain| {
            drain.written.is_some() && drain.holds(now, Duration::ZERO) && drain.pods.keys().any(is_there)
        };
        if self.drains.get(&key).is_some_and(goes) {
            return;
        }
        self.drains.remove(&key);
        self.unmark(pods).await;
    }

    /// Removes our deletion costs.
    pub(super) async fn unmark(&mut self, pods: &[Arc<PodObject>]) {
        let marked = pods.iter().map(Arc::as_ref).filter(|pod| pod.is_alive() && is_marked(pod));
        let marked: Vec<&PodObject> = marked.collect();
        self.mark(&marked, |_| false).await;
    }

    /// Sets our deletion cost on chosen pods, and removes it from others.
    async fn mark(&mut self, pods: &[&PodObject], goes: impl Fn(&PodObject) -> bool) -> Marked {
        let subject = "deletion costs of pods";
        for pod in pods {
            let Some(patch) = marking(pod, goes(pod)) else { continue };
            if !self.term.lasts() {
                return Marked::NotYet;
            }
            let path = format!("/api/v1/namespaces/{}/pods/{}", self.namespace, pod.name());
            let patched: Result<Value, Problem> =
                self.term.write(self.cluster.patch(&path, PatchType::Merge, &patch)).await;
            match patched {
                Ok(_) => self.clear_problem(subject),
                Err(Problem::NotFound(_) | Problem::Conflict(_)) => {}
                Err(problem @ Problem::Denied(_)) => {
                    self.report_problem(subject, &problem);
                    return Marked::Denied;
                }
                Err(problem) => {
                    self.report_failure(subject, &problem);
                    return Marked::NotYet;
                }
            }
        }
        Marked::Yes
    }
}
