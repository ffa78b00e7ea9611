//! Revision of the workload that replicas belong to, and which of two is newer.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Serialize};

/// Labels by which a workload's controller tells the pods of its revisions apart:
/// Deployments, StatefulSets and DaemonSets, Argo Rollouts.
const LABELS: [&str; 3] = ["pod-template-hash", "controller-revision-hash", "rollouts-pod-template-hash"];

/// The revision of its workload that a replica belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revision {
    /// Hash that all pods of the revision have in common, and no pod of another revision.
    #[serde(rename = "revision")]
    pub hash: String,
    /// Time at which the replica's pod was created, by the clock of the API server.
    pub created: Time,
}

impl Revision {
    /// Revision that the metadata of a pod name; `None`: the pod belongs to no revision.
    pub fn of_pod(metadata: &ObjectMeta) -> Option<Self> {
        let labels = metadata.labels.as_ref()?;
        let hash = LABELS.iter().find_map(|name| labels.get(*name))?.clone();
        Some(Self { hash, created: metadata.creation_timestamp.clone()? })
    }

    /// Returns `true` if a replica of this revision should lead in place of one of the
    /// other: it is another revision, and this replica was created later. That is so for a
    /// rollback as well, whose pods are new though their revision is old.
    ///
    /// Times are whole seconds, so the hash decides between pods of the same second: of
    /// any two replicas at most one replaces the other, and no circle can come of it.
    pub fn replaces(&self, other: &Self) -> bool {
        self.hash != other.hash && (&self.created, &self.hash) > (&other.created, &other.hash)
    }
}

/// A replica that leads or would like to, in its own words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// Name of the replica in the election.
    pub identity: String,
    /// The revision that it belongs to.
    #[serde(flatten)]
    pub revision: Revision,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(hash: &str, created: &str) -> Revision {
        Revision { hash: hash.to_owned(), created: Time(created.parse().unwrap()) }
    }

    #[test]
    fn revision_with_a_younger_pod_is_newer() {
        let old = revision("7c9", "2026-03-01T10:00:00Z");
        // The other's hash and time of creation, whether it replaces the first, and whether
        // the first replaces it.
        let table = [
            ("55f", "2026-03-01T10:00:01Z", true, false),
            ("55f", "2026-03-01T09:59:59Z", false, true),
            ("7c9", "2026-03-01T11:00:00Z", false, false),
            ("7c9", "2026-03-01T10:00:00Z", false, false),
            ("55f", "2026-03-01T10:00:00Z", false, true),
            ("9aa", "2026-03-01T10:00:00Z", true, false),
            // A clock of another zone says the same.
            ("55f", "2026-03-01T12:00:01+02:00", true, false),
        ];
        for (hash, created, replaces, replaced) in table {
            let other = revision(hash, created);
            assert_eq!((other.replaces(&old), old.replaces(&other)), (replaces, replaced), "{other:?}");
        }
    }

    #[test]
    fn pod_revision_is_a_controller_label() {
        let created = Some(Time("2026-03-01T10:00:00Z".parse().unwrap()));
        let pod = |labels: &[(&str, &str)]| ObjectMeta {
            labels: Some(labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()),
            creation_timestamp: created.clone(),
            ..ObjectMeta::default()
        };
        let of = |labels: &[(&str, &str)]| Revision::of_pod(&pod(labels)).map(|revision| revision.hash);
        assert_eq!(of(&[("app", "epp"), ("pod-template-hash", "a")]).as_deref(), Some("a"));
        assert_eq!(of(&[("controller-revision-hash", "epp-b")]).as_deref(), Some("epp-b"));
        assert_eq!(of(&[("rollouts-pod-template-hash", "c")]).as_deref(), Some("c"));
        assert_eq!(of(&[("app", "epp")]), None);
        assert_eq!(Revision::of_pod(&ObjectMeta::default()), None);
    }

    #[test]
    fn candidate_is_a_flat_json_object() {
        let candidate =
            Candidate { identity: "epp-1".to_owned(), revision: revision("a", "2026-03-01T10:00:00Z") };
        let text = r#"{"identity":"epp-1","revision":"a","created":"2026-03-01T10:00:00Z"}"#;
        assert_eq!(serde_json::to_string(&candidate).unwrap(), text);
        assert_eq!(serde_json::from_str::<Candidate>(text).unwrap(), candidate);
    }
}
