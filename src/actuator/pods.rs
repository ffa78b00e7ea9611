//! Pods of a role as a rollout sees them, in the pool or not.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::affinity::without;
use super::condition::ObjectCondition;
use super::node::Needs;
use super::{GATE, SENT};
use crate::capacity::PodState;
use crate::cluster::{Metadata, OwnerReference, Watched};

/// Labels with the revision of a pod's template, of Deployments, StatefulSets and LeaderWorkerSets.
const REVISIONS: [&str; 3] =
    ["leaderworkerset.sigs.k8s.io/template-revision-hash", "controller-revision-hash", "pod-template-hash"];

/// Labels with a pod's ordinal, of LeaderWorkerSets and StatefulSets.
const ORDINALS: [&str; 2] = ["leaderworkerset.sigs.k8s.io/group-index", "apps.kubernetes.io/pod-index"];

/// Pod, as read from the API server.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodObject {
    pub(super) metadata: Metadata,
    pub(super) spec: PodSpec,
    pub(super) status: PodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodSpec {
    pub(super) node_name: String,
    pub(super) scheduling_gates: Vec<Gate>,
    volumes: Vec<Volume>,
    #[serde(flatten)]
    pub(super) needs: Needs,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Gate {
    pub(super) name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Volume {
    persistent_volume_claim: Option<Claim>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Claim {
    claim_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PodStatus {
    pub(super) phase: String,
    pub(super) conditions: Vec<ObjectCondition>,
}

impl Watched for PodObject {
    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl PodObject {
    fn has(&self, condition: &str) -> Option<&ObjectCondition> {
        self.status.conditions.iter().find(|known| known.kind == condition)
    }

    fn is(&self, condition: &str) -> bool {
        self.has(condition).is_some_and(|known| known.status == "True")
    }

    /// Name of the pod.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    /// Returns `true` if it has these labels.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        labels.iter().all(|(key, value)| self.metadata.labels.get(key) == Some(value))
    }

    /// Controller of the pod.
    pub(super) fn controller(&self) -> Option<&OwnerReference> {
        self.metadata.owner_references.iter().find(|owner| owner.controller)
    }

    /// Returns `true` if it is neither terminating nor finished.
    pub fn is_alive(&self) -> bool {
        self.metadata.deletion_timestamp.is_none()
            && !matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Returns `true` if its `Ready` condition is true.
    pub fn is_ready(&self) -> bool {
        self.is("Ready")
    }

    /// Returns `true` if it is at our gate.
    pub fn is_gated(&self) -> bool {
        self.spec.scheduling_gates.iter().any(|gate| gate.name == GATE)
    }

    /// Returns `true` if the scheduler found no node for it.
    pub(super) fn is_unschedulable(&self) -> bool {
        let is_refused =
            |condition: &ObjectCondition| condition.status == "False" && condition.reason == "Unschedulable";
        self.spec.node_name.is_empty() && self.has("PodScheduled").is_some_and(is_refused)
    }

    /// Returns `true` if it has a volume of its own, such as by the `volumeClaimTemplates` of a StatefulSet,
    /// which may exist in one domain only.
    pub(super) fn has_own_volume(&self) -> bool {
        let claims = self.spec.volumes.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref());
        let is_own = |claim: &Claim| {
            claim
                .claim_name
                .strip_suffix(self.name())
                .is_some_and(|rest| !self.name().is_empty() && rest.ends_with('-'))
        };
        claims.into_iter().any(is_own)
    }

    /// Returns `true` if it waits for a node.
    pub(super) fn wants_node(&self) -> bool {
        self.is_alive() && !self.is_gated() && self.spec.node_name.is_empty()
    }

    /// Requirements without the domain that it was sent to.
    pub(super) fn own_needs(&self) -> Needs {
        let mut needs = self.spec.needs.clone();
        if let (Some(affinity), Some(sent)) = (&mut needs.affinity, self.metadata.annotations.get(SENT)) {
            *affinity = without(affinity, sent);
        }
        needs
    }

    /// Node and requirements, under its namespace and name; `None` without a node, and once it has
    /// finished.
    pub(super) fn on_node(self) -> (String, Option<(String, Needs)>) {
        let name = format!("{}/{}", self.metadata.namespace, self.metadata.name);
        let takes =
            !self.spec.node_name.is_empty() && !matches!(self.status.phase.as_str(), "Succeeded" | "Failed");
        (name, takes.then(|| (self.spec.node_name, self.spec.needs.without_wishes())))
    }

    /// Revision of its template, if known.
    pub fn revision(&self) -> Option<&str> {
        REVISIONS.iter().find_map(|label| self.metadata.labels.get(*label)).map(String::as_str)
    }

    /// Ordinal, if its controller numbers pods.
    pub(super) fn ordinal(&self) -> Option<u32> {
        let labels = &self.metadata.labels;
        let said = ORDINALS.iter().find_map(|label| labels.get(*label)).map(String::as_str);
        said.or_else(|| Some(self.name().rsplit_once('-')?.1))?.parse().ok()
    }

    /// Creation time as the server writes it, which sorts as text.
    pub fn created(&self) -> &str {
        self.metadata.creation_timestamp.as_deref().unwrap_or_default()
    }

    /// Startup progress; `newest` is the revision that pods are to have.
    pub fn state(&self, newest: Option<&str>) -> PodState {
        let has_node = !self.spec.node_name.is_empty();
        PodState {
            is_gated: self.is_gated(),
            is_scheduled: has_node || self.is("PodScheduled"),
            is_running: self.status.phase == "Running",
            is_serving: false,
            is_unschedulable: self.is_unschedulable(),
            is_outdated: newest.is_some() && self.revision().is_some() && self.revision() != newest,
            // Set by the caller, not read from the pod.
            is_leaving: false,
        }
    }
}

/// Revision of the youngest pod, if there are several revisions.
pub fn newest<'a>(pods: impl Iterator<Item = &'a PodObject>) -> Option<&'a str> {
    pods.filter_map(|pod| Some((pod.created(), pod.name(), pod.revision()?)))
        .max_by_key(|(created, name, _)| (*created, *name))
        .map(|(_, _, revision)| revision)
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    pub(crate) fn pod(value: Value) -> PodObject {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_pods_state_is_read_from_its_object() {
        let scheduled = |status: &str, reason: &str| json!([{"type": "PodScheduled", "status": status, "reason": reason}]);
        let state = |spec: Value, status: Value| pod(json!({"spec": spec, "status": status})).state(None);
        let none = PodState::default();
        assert_eq!(state(json!({}), json!({"phase": "Pending"})), none);
        let gated = state(
            json!({"schedulingGates": [{"name": "other"}, {"name": GATE}]}),
            json!({"phase": "Pending", "conditions": scheduled("False", "SchedulingGated")}),
        );
        assert_eq!(gated, PodState { is_gated: true, ..none });
        let other = state(json!({"schedulingGates": [{"name": "other"}]}), json!({}));
        assert_eq!(other, none, "another's gate is another's");
        let refused = state(json!({}), json!({"conditions": scheduled("False", "Unschedulable")}));
        assert_eq!(refused, PodState { is_unschedulable: true, ..none });
        let runs =
            state(json!({"nodeName": "n"}), json!({"phase": "Running", "conditions": scheduled("True", "")}));
        assert_eq!(runs, PodState { is_scheduled: true, is_running: true, ..none });
    }

    #[test]
    fn ephemeral_volumes_are_named_after_the_pod() {
        let of = |claim: &str| {
            let volumes = json!([{"name": "x", "emptyDir": {}}, {"name": "v", "persistentVolumeClaim": {"claimName": claim}}]);
            pod(json!({"metadata": {"name": "set-0"}, "spec": {"volumes": volumes}})).has_own_volume()
        };
        assert_eq!(["data-set-0", "models", "data-set-10", "set-0"].map(of), [true, false, false, false]);
        assert!(!pod(json!({"metadata": {"name": "set-0"}})).has_own_volume());
    }

    #[test]
    fn terminating_pods_do_not_count() {
        assert!(pod(json!({"status": {"phase": "Running"}})).is_alive());
        assert!(!pod(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})).is_alive());
        assert!(!pod(json!({"status": {"phase": "Failed"}})).is_alive());
    }

    #[test]
    fn pods_are_numbered_by_label_or_name() {
        let ordinal =
            |name: &str, labels: Value| pod(json!({"metadata": {"name": name, "labels": labels}})).ordinal();
        assert_eq!(ordinal("w-12", json!({})), Some(12));
        assert_eq!(ordinal("w-1-2", json!({"leaderworkerset.sigs.k8s.io/group-index": "1"})), Some(1));
        assert_eq!(ordinal("w-x", json!({"apps.kubernetes.io/pod-index": "3"})), Some(3));
        assert_eq!((ordinal("w-5d4f", json!({})), ordinal("w", json!({}))), (None, None));
    }

    #[test]
    fn the_youngest_pod_has_the_newest_revision() {
        let of = |name: &str, created: &str, hash: &str| {
            let labels = json!({"pod-template-hash": hash});
            pod(json!({"metadata": {"name": name, "creationTimestamp": created, "labels": labels}}))
        };
        let pods = [
            of("a", "2026-01-01T00:00:02Z", "old"),
            of("b", "2026-01-01T00:00:03Z", "new"),
            of("c", "2026-01-01T00:00:01Z", "old"),
        ];
        assert_eq!(newest(pods.iter()), Some("new"));
        assert!(pods[0].state(Some("new")).is_outdated && !pods[1].state(Some("new")).is_outdated);
        assert!(!pods[0].state(None).is_outdated);
        assert_eq!(newest([pod(json!({}))].iter()), None);
    }
}
