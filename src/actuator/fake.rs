//! Fake API server for tests with paused time: pods change, other objects are static.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::GATE;
use crate::cluster::Cluster;

/// Objects, and watchers of pods.
#[derive(Debug, Default)]
struct State {
    pods: BTreeMap<String, Value>,
    /// Responses to GET, by path.
    objects: BTreeMap<String, Value>,
    /// Status codes to respond with, by method and part of the path.
    refusals: Vec<(Method, &'static str, u16)>,
    /// `Retry-After` of refusals in seconds; 0: none.
    retry_after: u32,
    /// Paths of refused requests.
    refused: Vec<String>,
    /// Pods protected by a PodDisruptionBudget.
    kept: BTreeSet<String>,
    /// Delay of each response to a write.
    takes: Duration,
    watches: Vec<mpsc::UnboundedSender<Value>>,
    /// Methods, paths and bodies of writes.
    written: Vec<(Method, String, Value)>,
    version: u64,
}

/// The server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fake(Arc<Mutex<State>>);

/// Status of a running pod.
fn ready(status: &str) -> Value {
    json!({"phase": "Running", "conditions": [{"type": "Ready", "status": status}]})
}

/// Applies a JSON patch of a gate, or a merge patch of annotations.
fn patch(pod: &mut Value, body: &Value) {
    if let Some(operations) = body.as_array() {
        pod["spec"]["schedulingGates"] = json!([]);
        for operation in operations {
            match operation["path"].as_str().and_then(|path| path.strip_prefix("/metadata/annotations")) {
                Some("") => pod["metadata"]["annotations"] = operation["value"].clone(),
                Some(key) => {
                    let key = key.trim_start_matches('/').replace("~1", "/");
                    pod["metadata"]["annotations"][key] = operation["value"].clone();
                }
                None => {}
            }
        }
        return;
    }
    for (key, value) in body["metadata"]["annotations"].as_object().into_iter().flatten() {
        pod["metadata"]["annotations"][key] = value.clone();
        if value.is_null() {
            pod["metadata"]["annotations"].as_object_mut().unwrap().remove(key);
        }
    }
}

impl State {
    fn put(&mut self, mut pod: Value) -> Value {
        self.version += 1;
        pod["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        self.pods.insert(name, pod.clone());
        self.say("MODIFIED", &pod);
        pod
    }

    fn say(&mut self, kind: &str, pod: &Value) {
        self.watches.retain(|watch| watch.send(json!({"type": kind, "object": pod})).is_ok());
    }

    fn delete(&mut self, name: &str) {
        if let Some(pod) = self.pods.remove(name) {
            self.say("DELETED", &pod);
        }
    }

    /// The response to an eviction.
    fn evict(&mut self, name: &str, options: &Value) -> (u16, Value) {
        let refused = |code: u16, reason: &str, message: &str| {
            (
                code,
                json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}),
            )
        };
        let version = self.pods.get(name).map(|pod| &pod["metadata"]["resourceVersion"]);
        if options.pointer("/preconditions/resourceVersion").is_some_and(|of| Some(of) != version) {
            return refused(409, "Conflict", "it has changed");
        }
        if self.kept.contains(name) {
            let message = "Cannot evict pod as it would violate the pod's disruption budget.";
            return refused(429, "TooManyRequests", message);
        }
        if options.get("dryRun").is_none() {
            self.delete(name);
        }
        (201, json!({"kind": "Status", "status": "Success"}))
    }

    /// Status code that such a request is refused with.
    fn refusal(&self, method: &Method, path: &str) -> Option<u16> {
        let mut all = self.refusals.iter();
        all.find(|(of, part, _)| of == method && path.contains(part)).map(|(_, _, code)| *code)
    }

    /// Status code and body of a response.
    fn respond(&mut self, method: &Method, path: &str, body: &Value) -> (u16, Value) {
        if let Some(code) = self.refusal(method, path) {
            self.refused.push(path.to_owned());
            let details = json!({"retryAfterSeconds": self.retry_after});
            return (
                code,
                json!({"kind": "Status", "status": "Failure", "code": code, "message": "no", "details": details}),
            );
        }
        let missing =
            || (404, json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"}));
        if method != Method::GET {
            self.written.push((method.clone(), path.to_owned(), body.clone()));
            let evicted = path.strip_prefix("/api/v1/namespaces/ns/pods/");
            if let Some(name) = evicted.and_then(|name| name.strip_suffix("/eviction")) {
                return self.evict(name, &body["deleteOptions"]);
            }
            let pod = path
                .strip_prefix("/api/v1/namespaces/ns/pods/")
                .and_then(|name| self.pods.get(name).cloned());
            return match pod {
                Some(mut pod) => {
                    patch(&mut pod, body);
                    (200, self.put(pod))
                }
                None => (200, json!({})),
            };
        }
        match path {
            "/api/v1/namespaces/ns/pods" => {
                let pods: Vec<&Value> = self.pods.values().collect();
                (200, json!({"metadata": {"resourceVersion": self.version.to_string()}, "items": pods}))
            }
            "/apis/apps/v1" => (
                200,
                json!({"resources": [
                {"name": "deployments", "kind": "Deployment"}, {"name": "deployments/scale", "kind": "Scale"},
                {"name": "statefulsets", "kind": "StatefulSet"}, {"name": "statefulsets/scale", "kind": "Scale"}]}),
            ),
            _ => match self.objects.get(path) {
                Some(object) => (200, object.clone()),
                None if path.ends_with("horizontalpodautoscalers") => (200, json!({"items": []})),
                None => missing(),
            },
        }
    }
}

impl Fake {
    /// Connects to it.
    pub(crate) fn cluster(&self) -> Cluster {
        let fake = self.clone();
        let respond = move |request: Request<kube::client::Body>| {
            let fake = fake.clone();
            async move { Ok::<_, Infallible>(fake.serve(request).await) }
        };
        Cluster::from(kube::Client::new(tower::service_fn(respond), "ns"))
    }

    async fn serve(
        &self,
        request: Request<kube::client::Body>,
    ) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let path = parts.uri.path().to_owned();
        let is_refused = self.state().refusal(&parts.method, &path).is_some();
        if parts.uri.query().unwrap_or_default().contains("watch=true") && !is_refused {
            let (say, lines) = mpsc::unbounded_channel();
            if path == "/api/v1/namespaces/ns/pods" {
                self.state().watches.push(say);
            }
            let lines = UnboundedReceiverStream::new(lines)
                .map(|event: Value| Ok::<_, Infallible>(Frame::data(format!("{event}\n").into())));
            return Response::new(StreamBody::new(lines).boxed_unsync());
        }
        let body = serde_json::from_slice(&body).unwrap_or_default();
        let takes = self.state().takes;
        if parts.method != Method::GET && !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        let (code, said) = self.state().respond(&parts.method, &path, &body);
        let response = Response::builder().status(code);
        response.body(Full::new(said.to_string().into()).boxed_unsync()).unwrap()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Adds a Deployment with these replicas.
    pub(crate) fn deployment(&self, name: &str, replicas: u32, metadata: &Value) {
        self.workload("deployments", name, replicas, metadata);
    }

    /// Adds a workload of that resource with these replicas.
    pub(crate) fn workload(&self, plural: &str, name: &str, replicas: u32, metadata: &Value) {
        let path = format!("/apis/apps/v1/namespaces/ns/{plural}/{name}");
        let scale = json!({"metadata": {"name": name, "uid": "u", "resourceVersion": "1"}, "spec": {"replicas": replicas}});
        let mut state = self.state();
        state.objects.insert(format!("{path}/scale"), scale);
        state.objects.insert(path, json!({"metadata": metadata, "spec": {"replicas": replicas}}));
    }

    /// Adds a pod of a role of pool `m`, ready or at its gate.
    pub(crate) fn pod(&self, name: &str, role: &str, is_gated: bool) {
        let status = if is_gated { json!({"phase": "Pending", "conditions": []}) } else { ready("True") };
        self.put(name, role, is_gated, &status);
    }

    /// Adds the same, of a ReplicaSet of a Deployment.
    pub(crate) fn owned_pod(&self, name: &str, role: &str, is_gated: bool, deployment: &str) {
        self.pod(name, role, is_gated);
        let mut state = self.state();
        let mut pod = state.pods[name].clone();
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{deployment}-5f"), "controller": true});
        pod["metadata"]["ownerReferences"] = json!([owner]);
        pod["metadata"]["labels"]["pod-template-hash"] = json!("5f");
        state.put(pod);
    }

    /// Sets annotations of a pod.
    pub(crate) fn annotate(&self, name: &str, annotations: &Value) {
        let mut state = self.state();
        let mut pod = state.pods[name].clone();
        pod["metadata"]["annotations"] = annotations.clone();
        state.put(pod);
    }

    /// Adds a pod of a role of pool `m` that runs and isn't ready.
    pub(crate) fn unready_pod(&self, name: &str, role: &str) {
        self.put(name, role, false, &ready("False"));
    }

    fn put(&self, name: &str, role: &str, is_gated: bool, status: &Value) {
        let gates = if is_gated { json!([{"name": GATE}]) } else { json!([]) };
        let pod = json!({
            "metadata": {"name": name, "uid": format!("uid-{name}"), "labels": {"app": "m", "llm-d.ai/role": role},
                         "annotations": {}},
            "spec": {"schedulingGates": gates},
            "status": status,
        });
        self.state().put(pod);
    }

    /// Deletes a pod.
    pub(crate) fn delete(&self, name: &str) {
        self.state().delete(name);
    }

    /// Responds with this code to such requests from now on.
    pub(crate) fn refuse(&self, method: Method, part: &'static str, code: u16) {
        self.state().refusals.push((method, part, code));
    }

    /// Sets the `Retry-After` of refusals, in seconds.
    pub(crate) fn retry_after(&self, seconds: u32) {
        self.state().retry_after = seconds;
    }

    /// Number of refused requests whose path ends so.
    pub(crate) fn refused(&self, end: &str) -> usize {
        self.state().refused.iter().filter(|path| path.ends_with(end)).count()
    }

    /// Protects a pod from eviction, or not.
    pub(crate) fn keep(&self, pod: &str, keeps: bool) {
        let mut state = self.state();
        if keeps {
            state.kept.insert(pod.to_owned());
        } else {
            state.kept.remove(pod);
        }
    }

    /// Delays each response to a write from now on.
    pub(crate) fn takes(&self, time: Duration) {
        self.state().takes = time;
    }

    /// Accepts all requests again.
    pub(crate) fn accept(&self) {
        self.state().refusals.clear();
    }

    /// Adds an object for GET.
    pub(crate) fn has(&self, path: &str, object: Value) {
        self.state().objects.insert(path.to_owned(), object);
    }

    /// Returns `true` if a pod is at its gate.
    pub(crate) fn is_gated(&self, name: &str) -> bool {
        self.state().pods[name]["spec"]["schedulingGates"] != json!([])
    }

    /// Returns `true` if no such pod exists.
    pub(crate) fn is_gone(&self, name: &str) -> bool {
        !self.state().pods.contains_key(name)
    }

    /// Annotation of a pod.
    pub(crate) fn annotation(&self, pod: &str, key: &str) -> Value {
        self.state().pods[pod]["metadata"]["annotations"][key].clone()
    }

    /// Bodies of writes to paths that end so.
    pub(crate) fn written(&self, end: &str) -> Vec<Value> {
        let all = self.state();
        all.written
            .iter()
            .filter(|(_, path, _)| path.ends_with(end))
            .map(|(_, _, body)| body.clone())
            .collect()
    }
}
