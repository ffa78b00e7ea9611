//! Evicts pods of a step that was trimmed. Ready ones drain first.

use std::sync::Arc;
use std::time::Duration;

use super::event::Kind;
use super::gates;
use super::leaving::Leaving;
use super::observe::Observed;
use super::pods::PodObject;
use super::shrink::Drained;
use super::state::Actuator;
use crate::capacity::Policy;
use crate::capacity::plan::{Reason, RolePlan};
use crate::cluster::{Eviction, Problem};

/// Subject of problems with these evictions.
const SUBJECT: &str = "evictions of pods beyond complete groups";

impl Actuator {
    /// Cancels the evictions of a policy.
    pub(super) fn keep_leaving(&mut self, policy: &Policy, now: Duration) {
        self.leaving.retain(|(name, _), leaving| {
            if *name == policy.name {
                leaving.stay(now);
            }
            !leaving.is_empty()
        });
    }

    /// Evicts pods of a trimmed step, as far as possible. Returns whether ready ones still drain.
    pub(super) async fn trim(
        &mut self,
        policy: &Policy,
        role: &RolePlan,
        place: usize,
        seen: &Observed,
        now: Duration,
    ) -> Drained {
        let key = (policy.name.clone(), role.name.clone());
        let mut leaving = self.leaving.remove(&key).unwrap_or_default();
        let pods: Vec<&PodObject> = seen.objects.get(place).into_iter().flatten().map(Arc::as_ref).collect();
        let target = seen.targets.get(place).and_then(Option::as_ref);
        let has_gates = pods.iter().any(|pod| pod.is_gated()) || role.write > role.admitted;
        let Some(target) = target.filter(|_| has_gates && role.reasons.contains(&Reason::Trimmed)) else {
            leaving.stay(now);
            if !leaving.is_empty() {
                self.leaving.insert(key, leaving);
            }
            return Drained::Yes;
        };
        let given = gates::to_delete(&pods, role.admitted, |pod| leaving.has(pod));
        // The load of a serving pod without an endpoint is unknown.
        let load = |name: &str| seen.loads.as_ref()?.get(name).copied();
        let is_new = given.iter().any(|pod| pod.is_ready() && !leaving.has(pod));
        leaving.begin_again(now, policy.interval);
        let mut next =
            leaving.next(&given, now, policy.behavior.drain, |name| load(name).unwrap_or_default());
        if next.iter().any(|pod| pod.is_ready()) && !self.pods_unchanged(policy, seen).await {
            next.retain(|pod| !pod.is_ready());
            leaving.waits = true;
        }
        if is_new && leaving.waits {
            let names: Vec<&str> = given.iter().map(|pod| pod.name()).collect();
            tracing::info!(
                policy = policy.name,
                role = role.name,
                pods = names.join(", "),
                "draining pods before eviction"
            );
        }
        let evicted = self.evict(&next, &mut leaving, now).await;
        for pod in leaving.trials(&given, now, policy.behavior.drain) {
            match self.evicts(pod, None, true).await {
                Ok(()) => {
                    leaving.again(pod, now);
                    break;
                }
                Err(problem) if problem.is_of_a_budget() => leaving.kept(pod, &problem, now),
                Err(Problem::NotFound(_) | Problem::Conflict(_)) => {}
                Err(problem) => {
                    self.report_failure(SUBJECT, &problem);
                    break;
                }
            }
        }
        self.refused.extend(leaving.why_kept(&given));
        let drained = if leaving.waits { Drained::NotYet } else { Drained::Yes };
        if !leaving.is_empty() {
            self.leaving.insert(key, leaving);
        }
        if evicted > 0 {
            let message = format!(
                "policy {} evicted {evicted} pods of role {} from a step that timed out",
                policy.name, role.name
            );
            tracing::info!(policy = policy.name, role = role.name, evicted, "pods of a step evicted");
            self.record_event(&policy.name, target, Kind::Normal, "StepTrimmed", &message);
        }
        drained
    }

    /// Evicts pods as far as PodDisruptionBudgets allow. Returns the number of evicted ones.
    async fn evict(&mut self, pods: &[&PodObject], leaving: &mut Leaving, now: Duration) -> usize {
        let mut evicted = 0;
        for pod in pods {
            // A pod that has never served may do so by now.
            let version = (!leaving.serves(pod)).then_some(pod.metadata.resource_version.as_str());
            match self.evicts(pod, version, false).await {
                Ok(()) => {
                    leaving.evicted(pod, now);
                    evicted += 1;
                }
                Err(Problem::NotFound(_) | Problem::Conflict(_)) => {}
                // Other pods may have another budget.
                Err(problem) if problem.is_of_a_budget() => {
                    self.report_problem(SUBJECT, &problem);
                    leaving.kept(pod, &problem, now);
                }
                Err(problem) if problem.is_of_the_server() => {
                    self.report_problem(SUBJECT, &problem);
                    self.refused.push(format!("pod {}: {problem}", pod.name()));
                    leaving.wait_until(now + problem.retry_after());
                    break;
                }
                Err(problem) => {
                    self.report_failure(SUBJECT, &problem);
                    return evicted;
                }
            }
        }
        if evicted > 0 {
            self.clear_problem(SUBJECT);
        }
        evicted
    }

    /// Evicts a pod of this version; with `is_trial` only checks whether it could be.
    pub(super) async fn evicts(
        &self,
        pod: &PodObject,
        version: Option<&str>,
        is_trial: bool,
    ) -> Result<(), Problem> {
        let path = format!("/api/v1/namespaces/{}/pods/{}", self.namespace, pod.name());
        let eviction = Eviction { name: pod.name(), uid: &pod.metadata.uid, version, is_trial };
        self.term.write(self.cluster.evict(&path, eviction)).await
    }
}
