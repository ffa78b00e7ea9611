//! Model of the API server: objects, watches, failures, and a record of writes.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::cluster::Cluster;

/// Path of the namespace's pods.
pub const PODS: &str = "/api/v1/namespaces/ns/pods";
/// Path of the pods of all namespaces: there is one namespace.
const ALL_PODS: &str = "/api/v1/pods";
/// Path of the nodes.
pub const NODES: &str = "/api/v1/nodes";
/// Path of the CapacityPolicies.
pub const POLICIES: &str = "/apis/usher.dev/v1alpha1/namespaces/ns/capacitypolicies";
/// Path of the HorizontalPodAutoscalers.
pub const SCALERS: &str = "/apis/autoscaling/v2/namespaces/ns/horizontalpodautoscalers";
/// Path of the workloads.
pub const APPS: &str = "/apis/apps/v1/namespaces/ns";

/// Duration of a watch: less than the random timeout that clients ask for.
const WATCH: Duration = Duration::from_secs(15);

/// Failure of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Error status; nothing was done.
    Refused(u16),
    /// No response; nothing was done.
    Ignored,
    /// No response, but the request was carried out.
    Unanswered,
}

/// A write of a client that was carried out.
#[derive(Clone, Debug)]
pub struct Written {
    /// Path of the request.
    pub path: String,
    /// Object before.
    pub before: Value,
    /// Object after; null if deleted.
    pub after: Value,
}

type Payload = UnsyncBoxBody<Bytes, Infallible>;
type JsonResponse = (u16, Value);

/// An open watch.
struct Watching {
    /// Folder of its objects.
    folder: &'static str,
    labels: String,
    /// Version up to which changes were sent.
    seen: u64,
    ends: Instant,
    events: mpsc::UnboundedSender<Bytes>,
}

#[derive(Default)]
struct State {
    version: u64,
    /// Objects by path.
    objects: BTreeMap<String, Arc<Value>>,
    /// Changes of pods and nodes: version, folder, kind of change, object.
    changes: Vec<(u64, &'static str, &'static str, Arc<Value>)>,
    watches: Vec<Watching>,
    /// Upcoming failures: number of requests in between, and the failure.
    faults: Vec<(u8, Fault)>,
    failed: u64,
    denied: u64,
    /// `true` if RBAC refused an event.
    denies_events: bool,
    written: Vec<Written>,
    /// Uids of objects with events, and their reasons.
    events: BTreeSet<(String, String)>,
}

/// API server with one namespace, `ns`. Clones share the state.
#[derive(Clone)]
pub struct Server {
    state: Arc<Mutex<State>>,
    /// `true` while watches send nothing.
    silent: watch::Sender<bool>,
}

/// Watchable folder of a request's path.
fn followed(path: &str) -> Option<&'static str> {
    match path {
        PODS | ALL_PODS => Some(PODS),
        NODES => Some(NODES),
        _ => None,
    }
}

fn refusal(code: u16) -> JsonResponse {
    let reason = if code == 409 { "Conflict" } else { "" };
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                        "reason": reason, "message": format!("refused with {code}")});
    (code, status)
}

fn matches(selector: &str, object: &Value) -> bool {
    selector
        .split(',')
        .filter_map(|term| term.split_once('='))
        .all(|(key, value)| object["metadata"]["labels"].get(key).and_then(Value::as_str) == Some(value))
}

fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else { return *into = patch.clone() };
    if !into.is_object() {
        *into = json!({});
    }
    for (key, value) in fields {
        if value.is_null() {
            into.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut into[key], value);
        }
    }
}

/// Applies a JSON patch of the operations in use; `None`: a test failed.
fn patched(object: &Value, steps: &Value) -> Option<Value> {
    let mut object = object.clone();
    for step in steps.as_array().unwrap() {
        let path = step["path"].as_str().unwrap();
        let (parent, key) = path.rsplit_once('/').unwrap();
        let key = key.replace("~1", "/");
        match step["op"].as_str().unwrap() {
            "test" if object.pointer(path) == Some(&step["value"]) => {}
            "test" => return None,
            "remove" => match object.pointer_mut(parent)? {
                Value::Array(all) => drop(all.remove(key.parse().ok()?)),
                all => drop(all.as_object_mut()?.remove(&key)?),
            },
            _ => object.pointer_mut(parent)?[&key] = step["value"].clone(),
        }
    }
    Some(object)
}

impl State {
    /// Stores an object; null deletes it.
    fn put(&mut self, path: &str, mut object: Value) {
        self.version += 1;
        let is_new = !self.objects.contains_key(path);
        if object.is_null() {
            let Some(last) = self.objects.remove(path) else { return };
            let mut last = Value::clone(&last);
            last["metadata"]["resourceVersion"] = json!(self.version.to_string());
            self.note(path, "DELETED", Arc::new(last));
            return;
        }
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let object = Arc::new(object);
        self.objects.insert(path.to_owned(), Arc::clone(&object));
        self.note(path, if is_new { "ADDED" } else { "MODIFIED" }, object);
    }

    fn note(&mut self, path: &str, kind: &'static str, object: Arc<Value>) {
        if let Some(folder) = [PODS, NODES].into_iter().find(|folder| path.starts_with(folder)) {
            self.changes.push((self.version, folder, kind, object));
        }
    }

    fn get(&self, path: &str) -> Value {
        self.objects.get(path).map(|object| Value::clone(object)).unwrap_or_default()
    }

    /// Carries out a client's write.
    fn write(&mut self, path: &str, of: &str, after: Value) -> JsonResponse {
        let before = self.get(of);
        self.put(of, after);
        let after = self.get(of);
        self.written.push(Written { path: path.to_owned(), before, after: after.clone() });
        (200, if after.is_null() { json!({"kind": "Status", "status": "Success"}) } else { after })
    }

    fn list(&self, folder: &str, labels: &str) -> JsonResponse {
        let prefix = format!("{folder}/");
        let of =
            self.objects.iter().filter(|(path, object)| path.starts_with(&prefix) && matches(labels, object));
        let items: Vec<&Value> = of.map(|(_, object)| object.as_ref()).collect();
        (200, json!({"metadata": {"resourceVersion": self.version.to_string()}, "items": items}))
    }

    fn respond(&mut self, method: &Method, path: &str, labels: &str, body: &Value) -> JsonResponse {
        let (of, part) = match path.rsplit_once('/') {
            Some((of, part @ ("scale" | "status" | "eviction"))) => (of, part),
            _ => (path, ""),
        };
        let there = self.objects.get(of).map(|object| Value::clone(object));
        let uid = body.pointer("/metadata/uid").or_else(|| body.pointer("/deleteOptions/preconditions/uid"));
        let version = body
            .pointer("/metadata/resourceVersion")
            .or_else(|| body.pointer("/deleteOptions/preconditions/resourceVersion"));
        match (method, there) {
            (&Method::GET, _) if path == "/apis/apps/v1" => (
                200,
                json!({"resources": [
                {"name": "deployments", "kind": "Deployment"}, {"name": "deployments/scale", "kind": "Scale"},
                {"name": "statefulsets", "kind": "StatefulSet"}, {"name": "statefulsets/scale", "kind": "Scale"}]}),
            ),
            (&Method::GET, _) if path == SCALERS => self.list(path, labels),
            (&Method::GET, _) if followed(path).is_some() => {
                self.list(followed(path).unwrap_or_default(), labels)
            }
            (_, _) if path.ends_with("/events") => {
                let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
                self.events.extend(text("/involvedObject/uid").zip(text("/reason")));
                (201, json!({"metadata": {}, "items": []}))
            }
            (_, None) => refusal(404),
            (&Method::GET, Some(there)) => (200, there),
            (_, Some(there))
                if uid.is_some_and(|uid| *uid != there["metadata"]["uid"])
                    || version.is_some_and(|of| *of != there["metadata"]["resourceVersion"]) =>
            {
                refusal(409)
            }
            (&Method::POST, Some(_)) if part == "eviction" => self.write(path, of, Value::Null),
            (&Method::PATCH, Some(there)) if body.is_array() => match patched(&there, body) {
                Some(object) => self.write(path, of, object),
                None => refusal(422),
            },
            (&Method::PATCH, Some(mut there)) => {
                merge(&mut there, body);
                self.write(path, of, there)
            }
            _ => refusal(405),
        }
    }

    fn flush(&mut self, now: Instant) {
        let changes = &self.changes;
        self.watches.retain_mut(|watching| {
            let new = changes.iter().skip_while(|(version, ..)| *version <= watching.seen);
            let is_of = |folder: &str, object: &Value| {
                folder == watching.folder && matches(&watching.labels, object)
            };
            for (_, _, kind, object) in new.filter(|(_, folder, _, object)| is_of(folder, object)) {
                let line = format!("{}\n", json!({"type": kind, "object": **object}));
                let _ = watching.events.send(line.into());
            }
            watching.seen = changes.last().map_or(watching.seen, |(version, ..)| *version);
            if now < watching.ends {
                return true;
            }
            let metadata = json!({"resourceVersion": watching.seen.max(1).to_string()});
            let last = json!({"type": "BOOKMARK", "object": {"kind": "Pod", "apiVersion": "v1", "metadata": metadata}});
            let _ = watching.events.send(format!("{last}\n").into());
            false
        });
    }
}

impl Default for Server {
    fn default() -> Self {
        Self { state: Arc::default(), silent: watch::Sender::new(false) }
    }
}

impl Server {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Connects a client.
    pub fn connect(&self) -> Cluster {
        let server = self.clone();
        let service = tower::service_fn(move |request| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.serve(request).await) }
        });
        Cluster::from(kube::Client::new(service, "ns"))
    }

    async fn serve(&self, request: Request<kube::client::Body>) -> Response<Payload> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let query: BTreeMap<&str, &str> = parts
            .uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .collect();
        let labels = query.get("labelSelector").copied().unwrap_or_default();
        let labels = labels.replace("%3D", "=").replace("%2C", ",").replace("%2F", "/");
        let folder = followed(parts.uri.path());
        if let (true, Some(folder)) = (query.contains_key("watch"), folder) {
            return self.watch(folder, labels, query["resourceVersion"].parse().unwrap()).await;
        }
        // Followers that are refused wait for a random time.
        let fault = if folder.is_none() { self.next_fault(parts.uri.path()) } else { None };
        let (code, response) = match fault {
            Some(Fault::Refused(code)) => refusal(code),
            Some(fault) => {
                if fault == Fault::Unanswered {
                    self.lock().respond(&parts.method, parts.uri.path(), &labels, &body);
                }
                std::future::pending().await
            }
            None => self.lock().respond(&parts.method, parts.uri.path(), &labels, &body),
        };
        Response::builder().status(code).body(Full::new(response.to_string().into()).boxed_unsync()).unwrap()
    }

    fn next_fault(&self, path: &str) -> Option<Fault> {
        let mut state = self.lock();
        let (after, fault) = state.faults.first_mut()?;
        if *after > 0 {
            *after -= 1;
            return None;
        }
        let fault = *fault;
        state.faults.remove(0);
        state.failed += 1;
        let is_denied = fault == Fault::Refused(403);
        state.denied += u64::from(is_denied);
        state.denies_events |= is_denied && path.ends_with("/events");
        Some(fault)
    }

    async fn watch(&self, folder: &'static str, labels: String, seen: u64) -> Response<Payload> {
        let _ = self.silent.subscribe().wait_for(|silent| !silent).await;
        let (events, frames) = mpsc::unbounded_channel();
        self.lock().watches.push(Watching { folder, labels, seen, ends: Instant::now() + WATCH, events });
        let frames = stream::unfold(frames, async |mut frames| Some((frames.recv().await?, frames)));
        let body = StreamBody::new(frames.map(|bytes| Ok(Frame::data(bytes))));
        Response::new(BodyExt::boxed_unsync(body))
    }

    /// Sends changes to watches, unless they are silent.
    pub fn flush(&self) {
        if !*self.silent.borrow() {
            self.lock().flush(Instant::now());
        }
    }

    /// Silences watches, or not.
    pub fn set_silent(&self, silent: bool) {
        self.silent.send_replace(silent);
    }

    /// Schedules a failure, so many requests after the previous one.
    pub fn fail(&self, after: u8, fault: Fault) {
        self.lock().faults.push((after, fault));
    }

    /// Cancels all failures.
    pub fn heal(&self) {
        self.lock().faults.clear();
    }

    /// Number of failed requests.
    pub fn failed(&self) -> u64 {
        self.lock().failed
    }

    /// Number of requests refused by RBAC.
    pub fn denied(&self) -> u64 {
        self.lock().denied
    }

    /// Returns `true` if RBAC refused an event.
    pub fn denies_events(&self) -> bool {
        self.lock().denies_events
    }

    /// Returns `true` if there was an event with this reason about an object.
    pub fn has_event(&self, object: &Value, reason: &str) -> bool {
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        self.lock().events.contains(&(uid.to_owned(), reason.to_owned()))
    }

    /// Object at a path; null if absent.
    pub fn get(&self, path: &str) -> Value {
        self.lock().get(path)
    }

    /// Stores an object at a path; null deletes it.
    pub fn put(&self, path: &str, object: Value) {
        self.lock().put(path, object);
    }

    /// All pods.
    pub fn pods(&self) -> Vec<Arc<Value>> {
        let state = self.lock();
        let prefix = format!("{PODS}/");
        state
            .objects
            .iter()
            .filter(|(path, _)| path.starts_with(&prefix))
            .map(|(_, pod)| Arc::clone(pod))
            .collect()
    }

    /// Clients' writes since the last call.
    pub fn take_written(&self) -> Vec<Written> {
        std::mem::take(&mut self.lock().written)
    }
}
