//! Gives back the pods of a step that was trimmed. Those that are ready get no new requests, and are evicted
//! after their last response.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::drain::{GONE, PodLoad};
use super::event::Kind;
use super::gates;
use super::hands::Hands;
use super::observe::Observed;
use super::pods::PodObject;
use super::shrink::Drained;
use crate::capacity::Policy;
use crate::capacity::plan::{Reason, RolePlan};
use crate::cluster::Problem;

/// Pods of a role that are given back and were ready when they were chosen, by uid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Leaving {
    pods: BTreeMap<String, Times>,
    /// When they were last looked at.
    seen: Duration,
    /// Whether any of them is waited for.
    pub(super) waits: bool,
}

/// When a pod was chosen, and when it was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    chosen: Duration,
    evicted: Option<Duration>,
}

impl Times {
    /// Whether it was evicted a moment ago: it ends, and may still be listed.
    fn is_going(&self, now: Duration) -> bool {
        self.evicted.is_some_and(|at| now.saturating_sub(at) < GONE)
    }
}

impl Leaving {
    /// Uids of pods that get no new requests. Where nobody looks at them for so long, they get some again.
    pub(super) fn uids(&self, now: Duration, interval: Duration) -> impl Iterator<Item = &String> {
        let is_seen = now.saturating_sub(self.seen) < GONE.max(interval * 2);
        let goes = move |times: &Times| times.is_going(now) || (is_seen && times.evicted.is_none());
        self.pods.iter().filter(move |(_, times)| goes(times)).map(|(uid, _)| uid)
    }

    /// Lets pods stay that were to be given back.
    pub(super) fn stay(&mut self, now: Duration) {
        self.pods.retain(|_, times| times.is_going(now));
        self.waits = false;
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    fn has(&self, pod: &PodObject) -> bool {
        self.pods.contains_key(&pod.metadata.uid)
    }

    fn evicted(&mut self, pod: &PodObject, now: Duration) {
        if let Some(times) = self.pods.get_mut(&pod.metadata.uid) {
            times.evicted = Some(now);
        }
    }

    /// Notes which of the pods that are given back serve, and returns those that may be evicted: they never
    /// came up, have answered all that they had, or take too long. Requests that were on their way when they
    /// were chosen count from the next look on.
    fn next<'p>(
        &mut self,
        given: &[&'p PodObject],
        now: Duration,
        timeout: Duration,
        load: impl Fn(&str) -> PodLoad,
    ) -> Vec<&'p PodObject> {
        let mut before = std::mem::take(&mut self.pods);
        self.seen = now;
        for pod in given {
            let uid = &pod.metadata.uid;
            let new = || pod.is_ready().then_some(Times { chosen: now, evicted: None });
            // One that is no longer ready may still answer.
            if let Some(times) = before.remove(uid).or_else(new) {
                self.pods.insert(uid.clone(), times);
            }
        }
        self.pods.extend(before.into_iter().filter(|(_, times)| times.is_going(now)));
        let may_go = |pod: &&&PodObject| {
            let Some(times) = self.pods.get(&pod.metadata.uid) else { return true };
            let waited = now.saturating_sub(times.chosen);
            waited >= timeout || (!waited.is_zero() && load(pod.name()).is_idle)
        };
        let next: Vec<&PodObject> = given.iter().filter(may_go).copied().collect();
        self.waits = next.len() < given.len();
        next
    }
}

impl Hands {
    /// Lets pods of a policy stay that were to be given back.
    pub(super) fn keep_leaving(&mut self, policy: &Policy, now: Duration) {
        self.leaving.retain(|(name, _), leaving| {
            if *name == policy.name {
                leaving.stay(now);
            }
            !leaving.is_empty()
        });
    }

    /// Gives back the pods of a step that was trimmed, as far as they may go. Says whether any has requests
    /// that are waited for.
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
        // Of a pod that serves and isn't known here nothing is known.
        let load = |name: &str| seen.loads.as_ref()?.get(name).copied();
        let is_new = given.iter().any(|pod| pod.is_ready() && !leaving.has(pod));
        let next = leaving.next(&given, now, policy.behavior.drain, |name| load(name).unwrap_or_default());
        let drained = if leaving.waits { Drained::NotYet } else { Drained::Yes };
        if is_new && leaving.waits {
            let names: Vec<&str> = given.iter().map(|pod| pod.name()).collect();
            tracing::info!(policy = policy.name, role = role.name, pods = ?names, "pods get no new requests before they are given back");
        }
        let evicted = self.evict(&next).await;
        evicted.iter().for_each(|pod| leaving.evicted(pod, now));
        if !leaving.is_empty() {
            self.leaving.insert(key, leaving);
        }
        if !evicted.is_empty() {
            let given = evicted.len();
            let message = format!("{given} pods of {} are given back by policy {}", role.name, policy.name);
            tracing::info!(policy = policy.name, role = role.name, given, "pods given back");
            self.tell(&policy.name, target, Kind::Normal, "StepTrimmed", &message);
        }
        drained
    }

    /// Evicts pods as far as budgets allow. Returns those that go.
    async fn evict<'p>(&mut self, pods: &[&'p PodObject]) -> Vec<&'p PodObject> {
        let (mut evicted, about) = (Vec::new(), "pods that are given back");
        for pod in pods.iter().copied() {
            if !self.term.lasts() {
                break;
            }
            let path = format!("/api/v1/namespaces/{}/pods/{}", self.namespace, pod.name());
            match self.term.write(self.cluster.evict(&path, pod.name(), &pod.metadata.uid)).await {
                Ok(()) => evicted.push(pod),
                Err(Problem::NotFound(_) | Problem::Conflict(_)) => {}
                // A PodDisruptionBudget: it is asked again.
                Err(problem) if problem.is_of_the_server() => {
                    self.complain(about, &problem);
                    self.refused.push(format!("pod {}: {problem}", pod.name()));
                    break;
                }
                Err(problem) => {
                    self.fails(about, &problem);
                    return evicted;
                }
            }
        }
        if !evicted.is_empty() {
            self.works(about);
        }
        evicted
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::actuator::pods::tests::pod;

    const S: fn(u64) -> Duration = Duration::from_secs;

    fn of(name: &str, is_ready: bool) -> PodObject {
        let ready = if is_ready { "True" } else { "False" };
        pod(json!({
            "metadata": {"name": name, "uid": format!("u-{name}")},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
    }

    /// Names of the pods that may be evicted then, with these idle.
    fn next(leaving: &mut Leaving, given: &[PodObject], at: u64, idle: &[&str]) -> Vec<String> {
        let given: Vec<&PodObject> = given.iter().collect();
        let load = |name: &str| PodLoad { is_idle: idle.contains(&name), ..PodLoad::default() };
        leaving.next(&given, S(at), S(60), load).iter().map(|pod| pod.name().to_owned()).collect()
    }

    fn uids(leaving: &Leaving, at: u64) -> Vec<&str> {
        leaving.uids(S(at), S(15)).map(String::as_str).collect()
    }

    #[test]
    fn trimmed_pods_are_evicted_as_they_become_idle() {
        let mut leaving = Leaving::default();
        let [a, b, down] = [of("a", true), of("b", true), of("down", false)];
        let all = [a.clone(), b, down];
        assert_eq!(next(&mut leaving, &all, 10, &["a"]), ["down"], "a request may be on its way to a");
        assert_eq!((uids(&leaving, 10), leaving.waits), (vec!["u-a", "u-b"], true));
        assert_eq!(next(&mut leaving, &all[..2], 12, &["a"]), ["a"]);
        leaving.evicted(&a, S(12));
        // It is no longer ready, and still answers.
        let b_down = [of("b", false)];
        assert!(next(&mut leaving, &b_down, 69, &[]).is_empty() && leaving.waits);
        assert_eq!(uids(&leaving, 69), ["u-a", "u-b"], "one that was evicted may still be listed");
        assert_eq!(next(&mut leaving, &b_down, 70, &[]), ["b"], "it took too long");
        assert!(!leaving.waits);
        // A budget keeps it: it gets no requests while its eviction is asked for again.
        assert_eq!(next(&mut leaving, &b_down, 300, &[]), ["b"]);
        assert_eq!(
            (uids(&leaving, 359), uids(&leaving, 360)),
            (vec!["u-b"], vec![]),
            "nobody looks any more"
        );
    }

    #[test]
    fn pods_that_stay_get_requests_again() {
        let mut leaving = Leaving::default();
        let all = [of("a", true), of("b", true)];
        next(&mut leaving, &all, 10, &[]);
        next(&mut leaving, &all, 12, &["a"]);
        leaving.evicted(&all[0], S(12));
        leaving.stay(S(13));
        assert_eq!((uids(&leaving, 71), uids(&leaving, 72), leaving.waits), (vec!["u-a"], vec![], false));
        leaving.stay(S(72));
        assert!(leaving.is_empty());
    }

    #[test]
    fn without_time_to_drain_ready_pods_go_at_once() {
        let (mut leaving, a) = (Leaving::default(), of("a", true));
        assert_eq!(leaving.next(&[&a], S(5), Duration::ZERO, |_| PodLoad::default()).len(), 1);
    }
}
