//! What holds an update back: a partition where the kind has one, a pause where it has that.

use serde_json::{Value, json};

/// Marks a Deployment that was paused by us, so that one that somebody else paused stays so.
const PAUSED: &str = "usher.dev/paused";

/// What holds back the updates of a kind of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Knob {
    /// Pods from an ordinal on are updated; the number is at this path.
    Partition(&'static [&'static str]),
    /// All pods are updated, or none.
    Pause,
}

/// The knob of a kind, if it has one.
pub(super) fn of(api_version: &str, kind: &str) -> Option<Knob> {
    match (api_version.split('/').next()?, kind) {
        ("apps", "StatefulSet") => {
            Some(Knob::Partition(&["spec", "updateStrategy", "rollingUpdate", "partition"]))
        }
        ("leaderworkerset.x-k8s.io", "LeaderWorkerSet") => {
            Some(Knob::Partition(&["spec", "rolloutStrategy", "rollingUpdateConfiguration", "partition"]))
        }
        ("apps", "Deployment") => Some(Knob::Pause),
        _ => None,
    }
}

/// How far an update may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// Pods from this ordinal on may be updated.
    pub(super) partition: u32,
    /// How many pods are of an older revision.
    pub(super) outdated: u32,
}

/// The merge patch that makes it so, if it isn't. `None` for `held`: nothing is to be held back.
pub(super) fn patch(object: &Value, knob: Knob, held: Option<Held>) -> Option<Value> {
    match knob {
        Knob::Partition(path) => {
            let partition = held?.partition;
            let there = path.iter().try_fold(object, |value, key| value.get(key));
            if there.and_then(Value::as_u64).unwrap_or(0) == u64::from(partition) {
                return None;
            }
            Some(path.iter().rev().fold(json!(partition), |value, key| json!({*key: value})))
        }
        Knob::Pause => {
            let is_ours =
                object.pointer("/metadata/annotations").is_some_and(|all| all.get(PAUSED).is_some());
            let is_paused = object.pointer("/spec/paused").and_then(Value::as_bool).unwrap_or(false);
            // As many are outdated as have to be by now.
            let holds = held.is_some_and(|held| held.outdated > 0 && held.outdated <= held.partition);
            match (holds, is_paused, is_ours) {
                (true, false, _) => {
                    Some(json!({"metadata": {"annotations": {PAUSED: "true"}}, "spec": {"paused": true}}))
                }
                (false, true, true) => {
                    Some(json!({"metadata": {"annotations": {PAUSED: null}}, "spec": {"paused": false}}))
                }
                _ => None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_written_where_the_kind_has_them() {
        let knob = of("apps/v1", "StatefulSet").unwrap();
        let held = |partition| Some(Held { partition, outdated: 5 });
        let there = json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 3}}}});
        assert_eq!(patch(&there, knob, held(3)), None);
        let expected = json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 2}}}});
        assert_eq!(patch(&there, knob, held(2)), Some(expected));
        assert_eq!(patch(&json!({}), knob, held(0)), None);
        assert_eq!(patch(&there, knob, None), None, "who doesn't hold anything back leaves it");
        let knob = of("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet").unwrap();
        let found = patch(&json!({}), knob, held(1)).unwrap();
        assert_eq!(found["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]["partition"], 1);
        assert_eq!(of("example.com/v1", "StatefulSet"), None);
    }

    #[test]
    fn only_what_we_paused_goes_on() {
        let knob = of("apps/v1", "Deployment").unwrap();
        let deployment = |paused: bool, ours: bool| {
            let annotations = if ours { json!({PAUSED: "true"}) } else { json!({}) };
            json!({"metadata": {"annotations": annotations}, "spec": {"paused": paused}})
        };
        let held = |partition, outdated| Some(Held { partition, outdated });
        for (paused, ours, held, expected) in [
            (false, false, held(4, 4), Some(true)),
            (false, false, held(3, 4), None),
            (true, true, held(4, 4), None),
            (true, true, held(3, 4), Some(false)),
            (true, false, held(3, 4), None),
            (true, true, None, Some(false)),
            (true, false, None, None),
            (false, false, held(0, 0), None),
        ] {
            let found = patch(&deployment(paused, ours), knob, held);
            let paused_by = found.as_ref().and_then(|found| found["spec"]["paused"].as_bool());
            assert_eq!(paused_by, expected, "{paused} {ours} {held:?}");
        }
    }
}
