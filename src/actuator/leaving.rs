//! Pods being evicted: they drain first, and PodDisruptionBudgets may protect them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::drain::{GONE, PodLoad};
use super::pods::PodObject;
use crate::cluster::Problem;

/// Pods of a role being evicted, and protected ones, by uid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Leaving {
    pods: BTreeMap<String, Times>,
    /// Time of the last observation.
    seen: Duration,
    /// `true` while any of them drains.
    pub(super) waits: bool,
    /// End of the wait that the API server asked for.
    until: Duration,
}

/// Times at which a pod was chosen and evicted, and the reason for a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Times {
    chosen: Duration,
    evicted: Option<Duration>,
    /// `true` if it has been ready since it was chosen, so it may have requests.
    serves: bool,
    /// Refusal by a budget: it gets requests meanwhile.
    kept: Option<Kept>,
    /// `true` if it was protected before and drains again.
    is_again: bool,
}

/// Refusal by a PodDisruptionBudget.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    /// Time of the next attempt.
    until: Duration,
    why: String,
}

impl Times {
    fn new(now: Duration, serves: bool) -> Self {
        Self { chosen: now, evicted: None, serves, kept: None, is_again: false }
    }

    /// Returns `true` if it was evicted a moment ago: it terminates, and may still be listed.
    fn is_going(&self, now: Duration) -> bool {
        self.evicted.is_some_and(|at| now.saturating_sub(at) < GONE)
    }

    /// Returns `true` if it exists and gets no new requests.
    fn drains(&self) -> bool {
        self.serves && self.evicted.is_none() && self.kept.is_none()
    }

    /// Returns `true` if it may be evicted, by its load.
    fn may_go(&self, now: Duration, timeout: Duration, is_idle: impl FnOnce() -> bool) -> bool {
        match &self.kept {
            Some(kept) if kept.until > now => false,
            // Without a drain the eviction is only repeated.
            Some(_) => !self.serves || timeout.is_zero(),
            None if !self.serves => true,
            None => {
                let waited = now.saturating_sub(self.chosen);
                waited >= timeout || (!waited.is_zero() && is_idle())
            }
        }
    }
}

impl Leaving {
    /// Uids of draining pods. Those not observed for too long get requests again.
    pub(super) fn uids(&self, now: Duration, interval: Duration) -> impl Iterator<Item = &String> {
        let is_seen = now.saturating_sub(self.seen) < GONE.max(interval * 2);
        let goes = move |times: &Times| times.is_going(now) || (is_seen && times.drains());
        self.pods.iter().filter(move |(_, times)| goes(times)).map(|(uid, _)| uid)
    }

    /// Restarts the drain of pods that got requests again because they were not observed for too long.
    pub(super) fn begin_again(&mut self, now: Duration, interval: Duration) {
        if now.saturating_sub(self.seen) >= GONE.max(interval * 2) {
            self.pods.values_mut().filter(|times| times.drains()).for_each(|times| times.chosen = now);
        }
    }

    /// Cancels the evictions.
    pub(super) fn stay(&mut self, now: Duration) {
        self.pods.retain(|_, times| times.is_going(now));
        self.waits = false;
    }

    /// Suspends evictions until then, as the API server asked.
    pub(super) fn wait_until(&mut self, until: Duration) {
        self.until = until;
    }

    /// Returns `true` if there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Returns `true` if this pod is being evicted.
    pub(super) fn has(&self, pod: &PodObject) -> bool {
        self.pods.contains_key(&pod.metadata.uid)
    }

    /// Returns `true` if a pod may have requests.
    pub(super) fn serves(&self, pod: &PodObject) -> bool {
        self.pods.get(&pod.metadata.uid).is_some_and(|times| times.serves)
    }

    /// Records an eviction.
    pub(super) fn evicted(&mut self, pod: &PodObject, now: Duration) {
        if let Some(times) = self.pods.get_mut(&pod.metadata.uid) {
            (times.evicted, times.kept) = (Some(now), None);
        }
    }

    /// Records a refusal by a budget: the pod gets requests again.
    pub(super) fn kept(&mut self, pod: &PodObject, problem: &Problem, now: Duration) {
        let new = || Times::new(now, pod.is_ready());
        let times = self.pods.entry(pod.metadata.uid.clone()).or_insert_with(new);
        times.kept = Some(Kept { until: now + problem.retry_after(), why: problem.to_string() });
        times.is_again = false;
    }

    /// Drains a pod again that may be evicted by now.
    pub(super) fn again(&mut self, pod: &PodObject, now: Duration) {
        if let Some(times) = self.pods.get_mut(&pod.metadata.uid) {
            (times.chosen, times.kept, times.is_again) = (now, None, true);
        }
        self.waits = true;
    }

    /// Protected pods whose eviction is due for another attempt. One at a time drains again: a budget that
    /// allows one of them may protect the others.
    pub(super) fn trials<'p>(
        &self,
        given: &[&'p PodObject],
        now: Duration,
        timeout: Duration,
    ) -> Vec<&'p PodObject> {
        if timeout.is_zero() || self.pods.values().any(|times| times.is_again && times.drains()) {
            return Vec::new();
        }
        let is_due =
            |times: &Times| times.serves && times.kept.as_ref().is_some_and(|kept| kept.until <= now);
        let is_tried = |pod: &&&PodObject| self.pods.get(&pod.metadata.uid).is_some_and(is_due);
        given.iter().filter(is_tried).copied().collect()
    }

    /// Reasons of refusals, as sentences.
    pub(super) fn why_kept<'a>(&'a self, given: &'a [&PodObject]) -> impl Iterator<Item = String> + 'a {
        given.iter().filter_map(|pod| {
            let kept = self.pods.get(&pod.metadata.uid)?.kept.as_ref()?;
            Some(format!("pod {}: {}", pod.name(), kept.why))
        })
    }

    /// Records which of the pods serve, and returns those to evict now: they never became ready, have no more
    /// requests, or have drained for too long. Requests that were on their way when they were chosen count
    /// from the next observation on.
    pub(super) fn next<'p>(
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
            // A pod that is no longer ready may still respond.
            let known = before.remove(uid).filter(|times| times.serves || !pod.is_ready());
            if let Some(times) = known.or_else(|| pod.is_ready().then(|| Times::new(now, true))) {
                self.pods.insert(uid.clone(), times);
            }
        }
        self.pods.extend(before.into_iter().filter(|(_, times)| times.is_going(now)));
        let may_go = |pod: &&&PodObject| {
            let times = self.pods.get(&pod.metadata.uid);
            times.is_none_or(|times| times.may_go(now, timeout, || load(pod.name()).is_idle))
        };
        let next: Vec<&PodObject> = given.iter().filter(may_go).copied().collect();
        let drains = |pod: &&PodObject| self.pods.get(&pod.metadata.uid).is_some_and(Times::drains);
        let waits = |pod: &&PodObject| drains(pod) && !next.iter().any(|goes| std::ptr::eq(*goes, *pod));
        self.waits = given.iter().any(waits);
        if self.until > now { Vec::new() } else { next }
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
    fn trimmed_pods_are_evicted_once_idle() {
        let mut leaving = Leaving::default();
        let [a, b, down] = [of("a", true), of("b", true), of("down", false)];
        let all = [a.clone(), b, down];
        assert_eq!(next(&mut leaving, &all, 10, &["a"]), ["down"], "a request may be on its way to a");
        assert_eq!((uids(&leaving, 10), leaving.waits), (vec!["u-a", "u-b"], true));
        assert_eq!(next(&mut leaving, &all[..2], 12, &["a"]), ["a"]);
        leaving.evicted(&a, S(12));
        // It is no longer ready, and still responds.
        let b_down = [of("b", false)];
        assert!(next(&mut leaving, &b_down, 69, &[]).is_empty() && leaving.waits);
        assert_eq!(uids(&leaving, 69), ["u-a", "u-b"], "one that was evicted may still be listed");
        assert_eq!(next(&mut leaving, &b_down, 70, &[]), ["b"], "it took too long");
        assert!(!leaving.waits);
        // The API server is overloaded: it gets no requests while its eviction is asked for again.
        assert_eq!(next(&mut leaving, &b_down, 300, &[]), ["b"]);
        assert_eq!(
            (uids(&leaving, 359), uids(&leaving, 360)),
            (vec!["u-b"], vec![]),
            "not observed any more"
        );
    }

    #[test]
    fn pods_with_new_requests_drain_again() {
        let mut leaving = Leaving::default();
        let all = [of("a", true)];
        assert!(next(&mut leaving, &all, 10, &["a"]).is_empty());
        leaving.begin_again(S(69), S(15));
        assert_eq!(next(&mut leaving, &all, 69, &["a"]), ["a"], "it had none for the whole time");
        assert!(uids(&leaving, 129).is_empty());
        leaving.begin_again(S(129), S(15));
        assert!(next(&mut leaving, &all, 129, &["a"]).is_empty(), "it has some again");
        assert_eq!(next(&mut leaving, &all, 131, &["a"]), ["a"]);
    }

    #[test]
    fn pods_kept_by_a_disruption_budget_get_requests() {
        let mut leaving = Leaving::default();
        let all = [of("a", true), of("b", true), of("down", false)];
        let given: Vec<&PodObject> = all.iter().collect();
        next(&mut leaving, &all, 10, &[]);
        assert_eq!(next(&mut leaving, &all, 70, &[]), ["a", "b", "down"]);
        let keeps = |after: Duration| match after {
            Duration::ZERO => Problem::Refused { code: 429, message: "disruption budget".to_owned() },
            after => Problem::Busy { code: 429, message: "disruption budget".to_owned(), after },
        };
        leaving.kept(&all[0], &keeps(S(9)), S(70));
        leaving.kept(&all[1], &keeps(S(0)), S(70));
        leaving.kept(&all[2], &keeps(S(5)), S(70));
        assert!(uids(&leaving, 70).is_empty() && leaving.why_kept(&given).count() == 3);
        let tried = |leaving: &Leaving, at: u64| -> Vec<String> {
            leaving.trials(&given, S(at), S(60)).iter().map(|pod| pod.name().to_owned()).collect()
        };
        assert!(next(&mut leaving, &all, 74, &["a", "b"]).is_empty() && !leaving.waits);
        assert_eq!(tried(&leaving, 74), ["b"], "the others are to be asked of later");
        assert_eq!(next(&mut leaving, &all, 79, &["a", "b"]), ["down"], "it has nothing to answer");
        assert_eq!(tried(&leaving, 79), ["a", "b"]);
        leaving.again(&all[0], S(79));
        assert_eq!((uids(&leaving, 79), tried(&leaving, 79)), (vec!["u-a"], vec![]), "one at a time");
        assert!(next(&mut leaving, &all[..2], 138, &[]).is_empty() && leaving.waits, "it has a minute again");
        assert_eq!(next(&mut leaving, &all[..2], 139, &[]), ["a"]);
        leaving.evicted(&all[0], S(139));
        assert_eq!(tried(&leaving, 139), ["b"]);
    }

    #[test]
    fn kept_pods_get_requests_again() {
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
