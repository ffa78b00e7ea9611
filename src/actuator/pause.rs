//! Mechanisms that hold a rolling update back: a partition or a pause, by kind.

use serde_json::{Value, json};

/// Annotation of a Deployment that Usher paused, so that others stay paused.
const PAUSED: &str = "usher.dev/paused";

/// Annotation with the partition before an update was held back, to restore it.
const PARTITION: &str = "usher.dev/partition";

/// Mechanism that holds back the updates of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PauseMechanism {
    /// Pods from an ordinal on are updated; its path.
    Partition(&'static [&'static str]),
    /// All pods are updated, or none.
    Pause,
}

/// Mechanism of a kind, if any.
pub(super) fn of(api_version: &str, kind: &str) -> Option<PauseMechanism> {
    match (api_version.split('/').next()?, kind) {
        ("apps", "StatefulSet") => {
            Some(PauseMechanism::Partition(&["spec", "updateStrategy", "rollingUpdate", "partition"]))
        }
        ("leaderworkerset.x-k8s.io", "LeaderWorkerSet") => Some(PauseMechanism::Partition(&[
            "spec",
            "rolloutStrategy",
            "rollingUpdateConfiguration",
            "partition",
        ])),
        ("apps", "Deployment") => Some(PauseMechanism::Pause),
        _ => None,
    }
}

/// Limit of a rolling update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// First ordinal that may be updated.
    pub(super) partition: u32,
    /// Pods of an older revision.
    pub(super) outdated: u32,
}

fn annotation<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object.pointer("/metadata/annotations")?.get(name)?.as_str()
}

fn number_at(object: &Value, path: &[&str]) -> u32 {
    let there = path.iter().try_fold(object, |value, key| value.get(key)).and_then(Value::as_u64);
    there.and_then(|there| u32::try_from(there).ok()).unwrap_or(0)
}

/// First ordinal that the object's owner allows to be updated.
pub(super) fn kept(object: &Value, mechanism: PauseMechanism) -> u32 {
    let PauseMechanism::Partition(path) = mechanism else { return 0 };
    let own = annotation(object, PARTITION).and_then(|own| own.parse().ok());
    own.unwrap_or_else(|| number_at(object, path))
}

/// Revision that a StatefulSet's pods are to have, reported before the first has it.
pub(super) fn revision<'a>(api_version: &str, kind: &str, object: &'a Value) -> Option<&'a str> {
    let is_own = (api_version.split('/').next()?, kind) == ("apps", "StatefulSet");
    let said = object.pointer("/status/updateRevision").filter(|_| is_own)?.as_str()?;
    Some(said).filter(|said| !said.is_empty())
}

/// Merge patch that sets this limit; `None` if already set. `held` of `None` removes the limit.
pub(super) fn patch(object: &Value, mechanism: PauseMechanism, held: Option<Held>) -> Option<Value> {
    match mechanism {
        PauseMechanism::Partition(path) => {
            let there = number_at(object, path);
            let own = annotation(object, PARTITION);
            let (to, own) = match (held, own) {
                (Some(held), _) if held.partition == there => return None,
                (Some(held), Some(own)) => (held.partition, json!(own)),
                (Some(held), None) => (held.partition, json!(there.to_string())),
                (None, Some(_)) => (kept(object, mechanism), Value::Null),
                (None, None) => return None,
            };
            let mut patch = path.iter().rev().fold(json!(to), |value, key| json!({*key: value}));
            patch["metadata"] = json!({"annotations": {PARTITION: own}});
            Some(patch)
        }
        PauseMechanism::Pause => {
            let is_ours = annotation(object, PAUSED).is_some();
            let is_paused = object.pointer("/spec/paused").and_then(Value::as_bool).unwrap_or(false);
            // Exactly the held-back pods are outdated.
            let holds = held.is_some_and(|held| held.outdated > 0 && held.outdated <= held.partition);
            match (holds, is_paused, is_ours) {
                (true, false, _) => {
                    Some(json!({"metadata": {"annotations": {PAUSED: "true"}}, "spec": {"paused": true}}))
                }
                // Somebody else resumed it, and may pause it again.
                (false, false, true) => Some(json!({"metadata": {"annotations": {PAUSED: null}}})),
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
        let mechanism = of("apps/v1", "StatefulSet").unwrap();
        let held = |partition| Some(Held { partition, outdated: 5 });
        let set = |partition: u32, own: Option<&str>| {
            let annotations = own.map_or(json!({}), |own| json!({PARTITION: own}));
            let spec = json!({"updateStrategy": {"rollingUpdate": {"partition": partition}}});
            json!({"metadata": {"annotations": annotations}, "spec": spec})
        };
        assert_eq!(patch(&set(3, None), mechanism, held(3)), None);
        assert_eq!(
            patch(&set(3, None), mechanism, held(2)),
            Some(set(2, Some("3"))),
            "what was there is kept"
        );
        assert_eq!(patch(&set(2, Some("3")), mechanism, held(1)), Some(set(1, Some("3"))));
        assert_eq!(patch(&json!({}), mechanism, held(0)), None);
        assert_eq!(patch(&set(3, None), mechanism, None), None, "who doesn't hold anything back leaves it");
        let mut back = set(3, None);
        back["metadata"]["annotations"][PARTITION] = Value::Null;
        assert_eq!(patch(&set(1, Some("3")), mechanism, None), Some(back), "and gives back what there was");
        assert_eq!([set(3, None), set(1, Some("4")), json!({})].map(|set| kept(&set, mechanism)), [3, 4, 0]);
        let mechanism = of("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet").unwrap();
        let found = patch(&json!({}), mechanism, held(1)).unwrap();
        assert_eq!(found["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]["partition"], 1);
        assert_eq!(of("example.com/v1", "StatefulSet"), None);
    }

    #[test]
    fn stateful_set_status_names_the_newest_revision() {
        let set = json!({"status": {"updateRevision": "w-2"}});
        assert_eq!(revision("apps/v1", "StatefulSet", &set), Some("w-2"));
        assert_eq!(revision("apps/v1", "Deployment", &set), None);
        assert_eq!(revision("apps/v1", "StatefulSet", &json!({"status": {"updateRevision": ""}})), None);
    }

    #[test]
    fn only_deployments_paused_by_usher_are_resumed() {
        let mechanism = of("apps/v1", "Deployment").unwrap();
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
            (false, true, held(3, 4), None),
            (false, true, None, None),
        ] {
            let found = patch(&deployment(paused, ours), mechanism, held);
            let paused_by = found.as_ref().and_then(|found| found["spec"]["paused"].as_bool());
            assert_eq!(paused_by, expected, "{paused} {ours} {held:?}");
            // The annotation is removed once it no longer applies.
            let is_unmarked = found.is_some_and(|found| found["metadata"]["annotations"][PAUSED].is_null());
            let holds = held.is_some_and(|held| held.outdated > 0 && held.outdated <= held.partition);
            assert_eq!(is_unmarked, ours && !holds, "{paused} {ours} {held:?}");
        }
    }
}
