//! Owners of pods and targets: any user of the namespace can set labels.

use std::collections::BTreeMap;

use super::pods::PodObject;
use crate::capacity::policy::TargetRef;
use crate::capacity::policy::spec::group;

/// Label by which Deployments name the ReplicaSets of their pods.
const HASH: &str = "pod-template-hash";

/// Label with the name of a pod's LeaderWorkerSet.
const SET: &str = "leaderworkerset.sigs.k8s.io/name";

/// Paths of the pod template's labels.
pub(super) const LABELS: [&str; 3] = [
    "/spec/template/metadata/labels",
    "/spec/leaderWorkerTemplate/leaderTemplate/metadata/labels",
    "/spec/leaderWorkerTemplate/workerTemplate/metadata/labels",
];

/// Returns `true` if a target owns a pod; `None` if unknown: the pod has no controller, or one whose owner
/// only the target's controller knows.
pub(super) fn is_of(pod: &PodObject, target: &TargetRef) -> Option<bool> {
    let owner = pod.controller()?;
    let of = (group(&target.api_version), target.kind.as_str());
    if (group(&owner.api_version), owner.kind.as_str()) == of {
        return Some(owner.name == target.name);
    }
    let label = |name: &str| pod.metadata.labels.get(name);
    match of {
        ("apps", "Deployment") => Some(label(HASH).is_some_and(|hash| {
            owner.kind == "ReplicaSet" && owner.name == format!("{}-{hash}", target.name)
        })),
        ("apps", "StatefulSet" | "ReplicaSet") => Some(false),
        ("leaderworkerset.x-k8s.io", "LeaderWorkerSet") => Some(label(SET) == Some(&target.name)),
        _ => None,
    }
}

/// Returns `true` if a pod belongs to a role: it has the labels, and no other target owns it.
pub(super) fn is_of_role(
    pod: &PodObject,
    labels: &BTreeMap<String, String>,
    target: Option<&TargetRef>,
) -> bool {
    pod.matches(labels) && target.is_none_or(|target| is_of(pod, target) != Some(false))
}

/// Key and value of an equality term of a selector.
fn equality(term: &str) -> Option<(&str, &str)> {
    let (key, value) = term.split_once('=')?;
    let (key, value) = (key.trim(), value.trim_start_matches('=').trim());
    let is_plain = !key.is_empty() && !key.contains(['!', ' ', '(', ')']) && !value.contains(['(', ')', ' ']);
    is_plain.then_some((key, value))
}

/// Labels of a selector with equality terms only.
pub(super) fn equalities(selector: &str) -> Option<BTreeMap<&str, &str>> {
    selector.split(',').map(equality).collect()
}

/// Returns `true` if pods with (at least) these labels belong to a pool; `None` if the labels don't decide
/// it.
pub(super) fn within<'a>(pool: &str, label: impl Fn(&str) -> Option<&'a str>, are_all: bool) -> Option<bool> {
    let mut is_within = Some(true);
    for (key, value) in equalities(pool)? {
        match label(key) {
            Some(there) if there == value => {}
            Some(_) => return Some(false),
            None if are_all => return Some(false),
            None => is_within = None,
        }
    }
    is_within
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::actuator::pods::tests::pod;

    fn target(api_version: &str, kind: &str, name: &str) -> TargetRef {
        TargetRef {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            name: name.to_owned(),
            replicas_path: None,
        }
    }

    fn owned(labels: &Value, owners: &Value) -> PodObject {
        pod(json!({"metadata": {"name": "x", "labels": labels, "ownerReferences": owners}}))
    }

    #[test]
    fn pod_belongs_to_the_target_of_its_controller() {
        let by = |api: &str, kind: &str, name: &str| json!([{"apiVersion": api, "kind": kind, "name": name, "controller": true}]);
        let hash = json!({"pod-template-hash": "5d4f"});
        let deployment = target("apps/v1", "Deployment", "decode");
        let set = target("apps/v1", "StatefulSet", "decode");
        let group = target("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "decode");
        let custom = target("example.com/v1", "Engine", "decode");
        for (labels, owners, target, expected) in [
            (&hash, by("apps/v1", "ReplicaSet", "decode-5d4f"), &deployment, Some(true)),
            (&hash, by("apps/v1", "ReplicaSet", "decode-b-5d4f"), &deployment, Some(false)),
            (&json!({}), by("apps/v1", "ReplicaSet", "decode-5d4f"), &deployment, Some(false)),
            (&hash, by("apps/v1", "StatefulSet", "decode-5d4f"), &deployment, Some(false)),
            (&json!({}), by("apps/v1", "StatefulSet", "decode"), &set, Some(true)),
            (&json!({}), by("apps/v1", "StatefulSet", "other"), &set, Some(false)),
            (&json!({}), by("example.com/v1", "StatefulSet", "decode"), &set, Some(false)),
            (&json!({SET: "decode"}), by("apps/v1", "StatefulSet", "decode-1"), &group, Some(true)),
            (&json!({SET: "other"}), by("apps/v1", "StatefulSet", "other"), &group, Some(false)),
            (&hash, by("example.com/v2", "Engine", "decode"), &custom, Some(true)),
            (&hash, by("example.com/v2", "Engine", "other"), &custom, Some(false)),
            (&hash, by("apps/v1", "ReplicaSet", "decode-5d4f"), &custom, None),
            (&hash, json!([]), &deployment, None),
            (&hash, json!([{"apiVersion": "v1", "kind": "Node", "name": "n"}]), &deployment, None),
        ] {
            assert_eq!(is_of(&owned(labels, &owners), target), expected, "{owners} {target:?}");
        }
    }

    #[test]
    fn pool_membership_follows_labels() {
        let labels = BTreeMap::from([("app", "m"), ("role", "decode")]);
        let label = |key: &str| labels.get(key).copied();
        for (pool, are_all, expected) in [
            ("app=m", false, Some(true)),
            ("app==m", false, Some(true)),
            ("app=n", false, Some(false)),
            ("app=m,model=x", false, None),
            ("app=m,model=x", true, Some(false)),
            ("model=x,app=n", false, Some(false)),
            ("app in (m,n)", true, None),
            ("app!=n", true, None),
        ] {
            assert_eq!(within(pool, label, are_all), expected, "{pool} {are_all}");
        }
    }
}
