//! Workloads whose rolling updates are held back by a policy, present or deleted.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::pause;
use crate::capacity::policy::TargetRef;
use crate::cluster::{Cluster, Collection, PatchType, Problem, Watched};

/// Kinds whose updates can be held back: group, version, resource, kind.
const KINDS: [(&str, &str, &str, &str); 3] = [
    ("apps", "v1", "deployments", "Deployment"),
    ("apps", "v1", "statefulsets", "StatefulSet"),
    ("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet"),
];

/// Workload whose rolling update is held back.
#[derive(Clone, Debug)]
pub struct HeldBack {
    /// Workload as a target.
    pub target: TargetRef,
    /// Path at the API server.
    pub path: String,
    /// Patch that resumes the update.
    pub patch: (PatchType, Value),
}

/// Target whose update is to be resumed, as no policy holds it back any more.
#[derive(Clone, Debug)]
pub(super) struct ResumedTarget {
    pub(super) target: TargetRef,
    pub(super) since: Duration,
}

#[derive(Clone, Deserialize)]
#[serde(transparent)]
struct Workload(Value);

impl Watched for Workload {
    fn version(&self) -> &str {
        self.0.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default()
    }
}

/// Merge patch that resumes the update of an object held back by a policy.
pub(super) fn going_on(api_version: &str, kind: &str, object: &Value) -> Option<Value> {
    pause::patch(object, pause::of(api_version, kind)?, None)
}

/// Workloads of a namespace, with these labels, whose updates are held back, and errors of kinds that can't
/// be listed. A kind that the cluster doesn't define has no objects.
pub async fn held_back(cluster: &Cluster, namespace: &str, labels: &str) -> (Vec<HeldBack>, Vec<Problem>) {
    let (mut all, mut problems) = (Vec::new(), Vec::new());
    for (group, version, plural, kind) in KINDS {
        let of = Collection::new(group, version, namespace, plural).with_labels(labels);
        let objects = match cluster.list::<Workload>(&of).await {
            Ok((objects, _)) => objects,
            Err(Problem::NotFound(_)) => continue,
            Err(problem) => {
                problems.push(problem);
                continue;
            }
        };
        let api_version = format!("{group}/{version}");
        let held = objects.iter().filter_map(|Workload(object)| {
            let patch = going_on(&api_version, kind, object)?;
            let name = object.pointer("/metadata/name")?.as_str()?.to_owned();
            let path = format!("/apis/{api_version}/namespaces/{namespace}/{plural}/{name}");
            let patch = (PatchType::Merge, patch);
            let target = TargetRef {
                api_version: api_version.clone(),
                kind: kind.to_owned(),
                name,
                replicas_path: None,
            };
            Some(HeldBack { target, path, patch })
        });
        all.extend(held);
    }
    (all, problems)
}
