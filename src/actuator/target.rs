//! Target of a role: reads and writes its replicas.

use serde::Deserialize;
use serde_json::{Value, json};

use super::kinds::Kind;
use super::node::Needs;
use crate::capacity::policy::TargetRef;
use crate::cluster::{Cluster, Metadata, PatchType, Problem};
use crate::leader::Term;

/// Path of the replicas in objects without a `scale` subresource.
const REPLICAS: &str = "/spec/replicas";

/// Paths of the pod template's spec.
const TEMPLATES: [&str; 3] = [
    "/spec/template/spec",
    "/spec/leaderWorkerTemplate/leaderTemplate/spec",
    "/spec/leaderWorkerTemplate/workerTemplate/spec",
];

/// Attempts to write when the object changed meanwhile, but not its replicas.
const TRIES: u32 = 3;

/// A target, as read.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) reference: TargetRef,
    pub(super) kind: Kind,
    /// Path of the object.
    pub(super) path: String,
    pub(super) uid: String,
    pub(super) replicas: u32,
    version: String,
}

#[derive(Deserialize)]
struct Scale {
    metadata: Metadata,
    #[serde(default)]
    spec: ScaleSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ScaleSpec {
    replicas: u32,
}

impl Target {
    /// Reads a target's replicas.
    ///
    /// # Errors
    /// `Problem` of the request; [`Problem::Unreadable`] if the replicas are not a number.
    pub(super) async fn read(
        cluster: &Cluster,
        kind: &Kind,
        namespace: &str,
        reference: &TargetRef,
    ) -> Result<Self, Problem> {
        let path = kind.path(namespace, &reference.name);
        let (metadata, replicas) = if kind.has_scale {
            let scale: Scale = cluster.get(&format!("{path}/scale")).await?;
            (scale.metadata, scale.spec.replicas)
        } else {
            let object: Value = cluster.get(&path).await?;
            let pointer = pointer(reference);
            let number = object.pointer(pointer).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
            let replicas = number.ok_or_else(|| {
                Problem::Unreadable(format!("{path} has no number at {pointer}; say where with replicasPath"))
            })?;
            let metadata = object.get("metadata").cloned().unwrap_or_default();
            (serde_json::from_value(metadata).unwrap_or_default(), replicas)
        };
        let (uid, version) = (metadata.uid, metadata.resource_version);
        Ok(Self { reference: reference.clone(), kind: kind.clone(), path, uid, replicas, version })
    }

    /// Writes its replicas, if they are still those read, in this term only.
    ///
    /// # Errors
    /// [`Problem::Conflict`] if the replicas have changed since they were read; otherwise the server's error.
    pub(super) async fn write(
        &mut self,
        cluster: &Cluster,
        term: &Term,
        namespace: &str,
        to: u32,
    ) -> Result<(), Problem> {
        for _ in 0..TRIES {
            let written = term.write(self.try_write(cluster, to)).await;
            if !matches!(written, Err(Problem::Conflict(_))) {
                return written;
            }
            // A controller writes the status of its objects all the time.
            let there = Self::read(cluster, &self.kind, namespace, &self.reference).await?;
            if there.replicas != self.replicas {
                return written;
            }
            self.version = there.version;
        }
        Err(Problem::Conflict(format!("{} changes all the time", self.path)))
    }

    async fn try_write(&mut self, cluster: &Cluster, to: u32) -> Result<(), Problem> {
        let (path, kind, body) = if self.kind.has_scale {
            let body = json!({"metadata": {"resourceVersion": self.version}, "spec": {"replicas": to}});
            (format!("{}/scale", self.path), PatchType::Merge, body)
        } else {
            let pointer = pointer(&self.reference);
            let body = json!([
                {"op": "test", "path": pointer, "value": self.replicas},
                {"op": "replace", "path": pointer, "value": to},
            ]);
            (self.path.clone(), PatchType::Json, body)
        };
        let written: Result<Value, Problem> = cluster.patch(&path, kind, &body).await;
        match written {
            Ok(_) => {
                self.replicas = to;
                Ok(())
            }
            // Status code of a failed test operation.
            Err(Problem::Refused { code: 422, message }) if !self.kind.has_scale => {
                Err(Problem::Conflict(message))
            }
            Err(problem) => Err(problem),
        }
    }
}

/// Requirements of the pods in an object's template, if it has one.
pub(super) fn template(object: &Value) -> Option<Needs> {
    let spec = TEMPLATES.iter().find_map(|pointer| object.pointer(pointer))?;
    serde_json::from_value(spec.clone()).ok()
}

fn pointer(reference: &TargetRef) -> &str {
    reference.replicas_path.as_deref().unwrap_or(REPLICAS)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::Duration;

    use super::*;
    use crate::actuator::kinds::Kinds;
    use crate::endpoints::Clock;

    #[tokio::test]
    async fn no_write_begins_after_the_term() {
        let (clock, writes) = (Clock::stopped(), Arc::new(AtomicU64::new(0)));
        let term = Term::new(clock.clone());

        let (passes, counts) = (clock.clone(), Arc::clone(&writes));
        // Every response takes two seconds, and every write comes too late.
        let respond = move |request: http::Request<kube::client::Body>| {
            passes.set(passes.elapsed() + Duration::from_secs(2));
            let is_write = request.method() == http::Method::PATCH;
            counts.fetch_add(is_write.into(), Relaxed);
            let body = if is_write {
                json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict", "message": "changed"})
            } else {
                json!({"metadata": {"uid": "u", "resourceVersion": "2"}, "spec": {"replicas": 1}, "resources": [
                    {"name": "deployments", "kind": "Deployment"}, {"name": "deployments/scale", "kind": "Scale"}]})
            };
            let response = http::Response::builder().status(if is_write { 409 } else { 200 });
            std::future::ready(response.body(kube::client::Body::from(body.to_string().into_bytes())))
        };
        let cluster = Cluster::from(kube::Client::new(tower::util::service_fn(respond), "ns"));
        let reference = TargetRef {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment".to_owned(),
            name: "d".to_owned(),
            replicas_path: None,
        };
        let kind = Kinds::default().of(&cluster, &reference).await.unwrap();
        let mut target = Target::read(&cluster, &kind, "ns", &reference).await.unwrap();
        term.set(Some(clock.elapsed() + Duration::from_secs(3)));
        assert!(target.write(&cluster, &term, "ns", 2).await.is_err());
        assert_eq!(
            writes.load(Relaxed),
            1,
            "the first took two of three seconds, and looking again the rest"
        );
    }
}
