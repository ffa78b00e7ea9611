//! Chooses the pods that scale-down removes, and when. They get no new requests, and are deleted once their
//! requests have ended or the drain timeout is over.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::pods::PodObject;
use crate::capacity::policy::TargetRef;
use crate::capacity::policy::spec::group;

/// Annotation by which the controller of a Deployment chooses among equally ready pods:
/// <https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#pod-deletion-cost>.
const COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Annotation of pods whose deletion cost Usher set.
pub(super) const DRAINING: &str = "usher.dev/draining";

/// Deletion cost of pods to be removed. Others have 0, unless set by somebody else.
const LOW: &str = "-1000";

/// Time after which pods that were to be deleted and still exist get requests again.
pub(super) const GONE: Duration = Duration::from_secs(60);

/// Load of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodLoad {
    /// `true` if it is known to have no requests.
    pub is_idle: bool,
    /// Known requests in flight.
    pub under_way: u64,
    /// Estimated blocks in its prefix cache; 0 if unknown.
    pub cached: u64,
    /// Requests sent to it in total: an estimate of how many may return to its cache.
    pub sent: u64,
}

/// Rule by which a controller chooses pods to delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// Unready pods first, then by deletion cost.
    Cost,
    /// Highest ordinals.
    Ordinal,
}

impl Choice {
    /// Rule of a target's controller; `None` if unknown.
    pub(super) fn of(target: &TargetRef) -> Option<Self> {
        match (group(&target.api_version), target.kind.as_str()) {
            ("apps", "Deployment" | "ReplicaSet") => Some(Self::Cost),
            ("apps", "StatefulSet") | ("leaderworkerset.x-k8s.io", "LeaderWorkerSet") => Some(Self::Ordinal),
            _ => None,
        }
    }
}

/// Draining pods of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Drain {
    /// Pods by uid.
    pub(super) pods: BTreeMap<String, Going>,
    /// Time at which the smaller replicas were written.
    pub(super) written: Option<Duration>,
    /// Last time at which all were drained but waited for pods of another role.
    pub(super) waited: Option<Duration>,
}

/// A draining pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Going {
    pub(super) name: String,
    pub(super) chosen: Duration,
}

impl Drain {
    /// Returns `true` if the pods still get no requests.
    pub(super) fn holds(&self, now: Duration, timeout: Duration) -> bool {
        let last = self.pods.values().map(|pod| pod.chosen + timeout).max();
        self.written.or(last.max(self.waited)).is_some_and(|at| now < at + GONE)
    }

    /// Restarts the drain if a smaller number was written since the pods were chosen: remaining pods stay
    /// chosen.
    pub(super) fn begin_again(&mut self, now: Duration) {
        if self.written.take().is_some() {
            self.pods.values_mut().for_each(|pod| pod.chosen = now);
        }
    }

    /// Returns `true` if the last pod was chosen longer than `timeout` ago.
    pub(super) fn is_late(&self, now: Duration, timeout: Duration) -> bool {
        self.pods.values().all(|pod| now.saturating_sub(pod.chosen) >= timeout)
    }

    /// Chooses `count` pods of a role, preferring those chosen before.
    pub(super) fn choose(
        &mut self,
        pods: &[&PodObject],
        count: usize,
        choice: Choice,
        now: Duration,
        load: impl Fn(&str) -> PodLoad,
    ) {
        let mut alive: Vec<&PodObject> = pods.iter().copied().filter(|pod| pod.is_alive()).collect();
        match choice {
            Choice::Ordinal => alive.sort_by_key(|pod| (Reverse(pod.ordinal()), pod.name())),
            Choice::Cost => alive.sort_by_key(|pod| {
                let PodLoad { is_idle, under_way, cached, sent } = load(pod.name());
                let is_new = !self.pods.contains_key(&pod.metadata.uid);
                // Deletion costs of other writers are respected.
                (pod.is_ready(), cost(pod), is_new, !is_idle, under_way, cached, sent, pod.name().to_owned())
            }),
        }
        alive.truncate(count);
        let of = |pod: &&PodObject| {
            let chosen = self.pods.get(&pod.metadata.uid).map_or(now, |known| known.chosen);
            (pod.metadata.uid.clone(), Going { name: pod.name().to_owned(), chosen })
        };
        self.pods = alive.iter().map(of).collect();
    }

    /// Returns `true` if all are drained: their requests have ended, or the timeout is over. Requests that
    /// were on their way when a pod was chosen count from the next observation on.
    pub(super) fn is_done(
        &self,
        pods: &[&PodObject],
        now: Duration,
        timeout: Duration,
        load: impl Fn(&str) -> PodLoad,
    ) -> bool {
        let may_go = |pod: &&PodObject| {
            let Some(going) = self.pods.get(&pod.metadata.uid) else { return true };
            let waited = now.saturating_sub(going.chosen);
            let PodLoad { is_idle, under_way, .. } = load(pod.name());
            // An unready pod may still respond to earlier requests.
            let is_over = is_idle || (!pod.is_ready() && under_way == 0);
            waited >= timeout || (!waited.is_zero() && is_over)
        };
        pods.iter().all(may_go)
    }
}

/// Deletion cost that another writer set.
fn cost(pod: &PodObject) -> i64 {
    let known = pod.metadata.annotations.get(COST).filter(|_| !is_marked(pod));
    known.and_then(|cost| cost.parse().ok()).unwrap_or(0)
}

/// Returns `true` if Usher set a pod's deletion cost.
pub fn is_marked(pod: &PodObject) -> bool {
    pod.metadata.annotations.contains_key(DRAINING)
}

/// Merge patch that sets or removes a pod's low deletion cost; `None` if nothing changes, or another writer
/// set a cost.
pub fn marking(pod: &PodObject, goes: bool) -> Option<Value> {
    let has_other = pod.metadata.annotations.contains_key(COST) && !is_marked(pod);
    if has_other || goes == is_marked(pod) {
        return None;
    }
    let annotations =
        if goes { json!({COST: LOW, DRAINING: "true"}) } else { json!({COST: null, DRAINING: null}) };
    Some(json!({"metadata": {"uid": pod.metadata.uid, "annotations": annotations}}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actuator::pods::tests::pod;

    const S: fn(u64) -> Duration = Duration::from_secs;

    fn of(name: &str, is_ready: bool, annotations: &Value) -> PodObject {
        let ready = if is_ready { "True" } else { "False" };
        pod(json!({
            "metadata": {"name": name, "uid": format!("u-{name}"), "annotations": annotations},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
    }

    /// Requests in flight and sent, by the pod's last letter.
    fn load(name: &str) -> PodLoad {
        let (under_way, sent) = match name.as_bytes().last() {
            Some(b'0') => (0, 90),
            Some(b'1') => (3, 5),
            Some(b'2') => (0, 7),
            _ => (1, 1),
        };
        PodLoad { is_idle: under_way == 0, under_way, sent, ..PodLoad::default() }
    }

    fn chosen(drain: &Drain) -> Vec<&str> {
        drain.pods.values().map(|pod| pod.name.as_str()).collect()
    }

    #[test]
    fn idle_pods_with_cold_caches_go_first() {
        let pods: Vec<PodObject> = (0..4).map(|n| of(&format!("p-{n}"), true, &json!({}))).collect();
        let all: Vec<&PodObject> = pods.iter().collect();
        let mut drain = Drain::default();
        for (count, expected) in
            [(1, &["p-2"][..]), (2, &["p-0", "p-2"]), (3, &["p-0", "p-2", "p-3"]), (1, &["p-2"])]
        {
            drain.choose(&all, count, Choice::Cost, S(10), load);
            assert_eq!(chosen(&drain), expected);
        }
        // Chosen pods stay chosen, whatever else is idle by now.
        drain.choose(&all, 1, Choice::Cost, S(10), |name| PodLoad { is_idle: name == "p-1", ..load(name) });
        assert_eq!(chosen(&drain), ["p-2"]);
        drain.choose(&all, 2, Choice::Ordinal, S(10), load);
        assert_eq!(chosen(&drain), ["p-2", "p-3"]);
    }

    #[test]
    fn cached_tokens_outweigh_sent_requests_for_removal() {
        let pods: Vec<PodObject> = (0..3).map(|n| of(&format!("p-{n}"), true, &json!({}))).collect();
        let all: Vec<&PodObject> = pods.iter().collect();
        let load = |name: &str| {
            let (cached, sent) = match name {
                "p-0" => (70, 1),
                "p-1" => (8, 900),
                _ => (70, 2),
            };
            PodLoad { is_idle: true, cached, sent, ..PodLoad::default() }
        };
        let mut drain = Drain::default();
        for (count, expected) in [(1, &["p-1"][..]), (2, &["p-0", "p-1"])] {
            drain.choose(&all, count, Choice::Cost, S(10), load);
            assert_eq!(chosen(&drain), expected);
        }
    }

    #[test]
    fn unready_pods_and_foreign_deletion_costs_go_first() {
        let given = json!({"controller.kubernetes.io/pod-deletion-cost": "-5"});
        let pods = [of("p-0", true, &json!({})), of("p-1", true, &given), of("p-3", false, &json!({}))];
        let all: Vec<&PodObject> = pods.iter().collect();
        let mut drain = Drain::default();
        for (count, expected) in [(1, &["p-3"][..]), (2, &["p-1", "p-3"])] {
            drain.choose(&all, count, Choice::Cost, S(10), load);
            assert_eq!(chosen(&drain), expected);
        }
        assert_eq!(marking(all[1], true), None, "it is somebody else's");
    }

    #[test]
    fn draining_ends_with_the_last_response_or_the_timeout() {
        let pods = [of("p-1", true, &json!({})), of("p-0", true, &json!({}))];
        let all: Vec<&PodObject> = pods.iter().collect();
        let mut drain = Drain::default();
        drain.choose(&all, 1, Choice::Ordinal, S(10), load);
        assert_eq!(chosen(&drain), ["p-1"]);
        let idle = |_: &str| PodLoad { is_idle: true, ..PodLoad::default() };
        assert!(!drain.is_done(&all, S(10), S(60), idle), "requests may be on their way");
        assert!(!drain.is_done(&all, S(69), S(60), load));
        assert!(drain.is_done(&all, S(70), S(60), load));
        assert!(drain.is_done(&all, S(12), S(60), idle));
        assert!(drain.holds(S(129), S(60)) && !drain.holds(S(130), S(60)));
        drain.waited = Some(S(95));
        assert!(drain.holds(S(154), S(60)) && !drain.holds(S(155), S(60)), "they wait for another role's");
        drain.written = Some(S(20));
        assert!(drain.holds(S(79), S(60)) && !drain.holds(S(80), S(60)));
    }

    #[test]
    fn unready_draining_pod_goes_after_its_last_response() {
        let pods = [of("p-0", false, &json!({}))];
        let all: Vec<&PodObject> = pods.iter().collect();
        let mut drain = Drain::default();
        drain.choose(&all, 1, Choice::Ordinal, S(10), load);
        let responds = |_: &str| PodLoad { under_way: 1, ..PodLoad::default() };
        assert!(!drain.is_done(&all, S(69), S(60), responds));
        assert!(drain.is_done(&all, S(70), S(60), responds), "or after the timeout");
        assert!(drain.is_done(&all, S(12), S(60), |_| PodLoad::default()), "nothing was sent there");
    }

    #[test]
    fn later_chosen_pods_get_the_full_drain_timeout() {
        let pods: Vec<PodObject> = (0..3).map(|n| of(&format!("p-{n}"), true, &json!({}))).collect();
        let all: Vec<&PodObject> = pods.iter().collect();
        let busy = |_: &str| PodLoad { under_way: 1, sent: 1, ..PodLoad::default() };
        let mut drain = Drain::default();
        drain.choose(&all, 1, Choice::Ordinal, S(10), busy);
        drain.choose(&all, 2, Choice::Ordinal, S(60), busy);
        assert_eq!(chosen(&drain), ["p-1", "p-2"]);
        assert!(!drain.is_done(&all, S(70), S(60), busy), "one has had its minute, the other ten seconds");
        assert!(!drain.is_late(S(119), S(60)) && drain.is_late(S(120), S(60)));
        assert!(!drain.is_done(&all, S(119), S(60), busy) && drain.is_done(&all, S(120), S(60), busy));
        assert!(drain.holds(S(179), S(60)) && !drain.holds(S(180), S(60)));
        // A smaller number was written, and they are still there.
        drain.written = Some(S(120));
        drain.begin_again(S(130));
        assert!(!drain.is_done(&all, S(189), S(60), busy) && drain.is_done(&all, S(190), S(60), busy));
    }

    #[test]
    fn drain_annotations_are_set_and_removed_once() {
        let (bare, marked) =
            (of("a", true, &json!({})), of("a", true, &json!({COST: LOW, DRAINING: "true"})));
        assert_eq!(marking(&bare, true).unwrap()["metadata"]["annotations"][COST], LOW);
        assert_eq!(
            marking(&marked, false).unwrap()["metadata"]["annotations"],
            json!({COST: null, DRAINING: null})
        );
        assert_eq!((marking(&bare, false), marking(&marked, true)), (None, None));
    }
}
