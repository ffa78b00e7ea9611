//! Requests to the API server, each with a time limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request};
use kube::Client;
use kube::core::WatchEvent;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::Problem;

/// Time for the response to one request. The server's own limit is a minute.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Time for a watch to begin. Less, because there is nothing to wait for: the connection
/// that was taken up again may be one that broke without a word.
const OPENING: Duration = Duration::from_secs(8);

/// Least time for the response to a request that is sent when the time for several is nearly over.
const LEAST: Duration = Duration::from_secs(1);

/// Objects of one response to a list. Two thousand pods of 10 KB each would be 20 MB at
/// once; the responses to the other pages come from the same version.
const PAGE: u32 = 500;

/// A way to the API server. Clones share their connections.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    /// Time for several requests; `None`: each has its own limit alone.
    time: Option<Time>,
}

/// Time for several requests together.
#[derive(Clone)]
struct Time {
    until: Instant,
    limit: Duration,
    /// `true` if one of them had no response.
    is_late: Arc<AtomicBool>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

/// Format of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    /// The parts that are to change; `null` removes one (RFC 7386).
    Merge,
    /// A list of steps, which may test before they change (RFC 6902).
    Json,
}

impl PatchType {
    fn content_type(self) -> &'static str {
        match self {
            Self::Merge => "application/merge-patch+json",
            Self::Json => "application/json-patch+json",
        }
    }
}

/// Pod that is to be evicted.
#[derive(Clone, Copy, Debug)]
pub struct Eviction<'a> {
    /// Name of the pod.
    pub name: &'a str,
    /// Uid: another of this name stays.
    pub uid: &'a str,
    /// Version: it stays if it has changed since. `None`: whatever has changed.
    pub version: Option<&'a str>,
    /// `true` if it is only asked if it could be.
    pub is_trial: bool,
}

/// Objects of one kind, as they are listed and watched together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    /// For example `/api/v1/namespaces/default/pods`.
    path: String,
    /// Only objects with these labels; the server's syntax. Empty: all.
    labels: String,
    /// Only objects with these fields. Empty: all.
    fields: String,
}

impl Collection {
    /// All objects of a namespace. `group` is empty for the core of Kubernetes.
    pub fn new(group: &str, version: &str, namespace: &str, plural: &str) -> Self {
        let root = if group.is_empty() { "/api".to_owned() } else { format!("/apis/{group}") };
        let path = format!("{root}/{version}/namespaces/{namespace}/{plural}");
        Self { path, labels: String::new(), fields: String::new() }
    }

    /// All objects of all namespaces, or those of a kind that has none.
    pub fn everywhere(group: &str, version: &str, plural: &str) -> Self {
        let root = if group.is_empty() { "/api".to_owned() } else { format!("/apis/{group}") };
        Self { path: format!("{root}/{version}/{plural}"), labels: String::new(), fields: String::new() }
    }

    /// Only those with these labels, in the syntax of `kubectl -l`.
    #[must_use]
    pub fn with_labels(mut self, selector: &str) -> Self {
        selector.clone_into(&mut self.labels);
        self
    }

    /// Only the one with this name.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        self.with_field("metadata.name", name)
    }

    /// Only those with this value of a field that the kind can be selected by.
    #[must_use]
    pub fn with_field(mut self, field: &str, value: &str) -> Self {
        self.fields = format!("{field}={value}");
        self
    }

    /// Path of the objects, without a host.
    pub fn path(&self) -> &str {
        &self.path
    }

    fn target(&self, parameters: &[(&str, &str)]) -> String {
        let selectors = [("labelSelector", self.labels.as_str()), ("fieldSelector", self.fields.as_str())];
        let all = selectors.iter().chain(parameters).filter(|(_, value)| !value.is_empty());
        let mut target = self.path.clone();
        for (index, (name, value)) in all.enumerate() {
            target.push(if index == 0 { '?' } else { '&' });
            target.push_str(name);
            target.push('=');
            encode(value, &mut target);
        }
        target
    }
}

/// Percent-encodes everything that could mean something in a query.
pub(crate) fn encode(value: &str, into: &mut String) {
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            into.push(char::from(byte));
        } else {
            into.push_str(&format!("%{byte:02X}"));
        }
    }
}

/// A response to a list.
#[derive(Deserialize)]
pub(super) struct Page<T> {
    #[serde(default = "Vec::new")]
    pub(super) items: Vec<T>,
    #[serde(default)]
    pub(super) metadata: PageMetadata,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PageMetadata {
    pub(super) resource_version: String,
    #[serde(rename = "continue")]
    pub(super) more: String,
}

impl From<Client> for Cluster {
    /// The cluster that a client asks. [`connect`](super::connect()) finds one as kubectl does.
    fn from(client: Client) -> Self {
        Self { client, time: None }
    }
}

impl Cluster {
    /// This cluster with a total time limit for requests, from now on; the last one may take a second
    /// more. Later ones are not sent ([`Problem::Unsent`]). Watches are not concerned.
    #[must_use]
    pub fn within(&self, limit: Duration) -> Self {
        let time = Time { until: Instant::now() + limit, limit, is_late: Arc::default() };
        Self { client: self.client.clone(), time: Some(time) }
    }

    /// Returns `true` if one of those requests had no response in time.
    pub fn is_late(&self) -> bool {
        self.time.as_ref().is_some_and(|time| time.is_late.load(Relaxed))
    }

    /// The object at a path.
    ///
    /// # Errors
    /// `Problem` if the server refuses the request or doesn't respond.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Problem> {
        self.send(request(Method::GET, path, Vec::new())?, TIMEOUT).await
    }

    /// Sends an object: POST to a collection creates it, PUT to its own path replaces it.
    ///
    /// # Errors
    /// `Problem` if the server refuses the request or doesn't respond within `limit`.
    pub async fn put<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Vec<u8>,
        limit: Duration,
    ) -> Result<T, Problem> {
        self.send(request(method, path, body)?, limit).await
    }

    /// Changes a part of an object.
    ///
    /// # Errors
    /// `Problem` if the server refuses the request or doesn't respond.
    pub async fn patch<T: DeserializeOwned>(
        &self,
        path: &str,
        kind: PatchType,
        patch: &serde_json::Value,
    ) -> Result<T, Problem> {
        let mut request = request(Method::PATCH, path, patch.to_string().into_bytes())?;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind.content_type()));
        self.send(request, TIMEOUT).await
    }

    /// Evicts the pod at a path, as far as budgets allow.
    ///
    /// # Errors
    /// `Problem` if the server refuses the eviction or doesn't respond; [`Problem::Busy`] or
    /// [`Problem::Refused`] with 429 for a PodDisruptionBudget ([`Problem::is_of_a_budget`]).
    pub async fn evict(&self, path: &str, eviction: Eviction<'_>) -> Result<(), Problem> {
        let Eviction { name, uid, version, is_trial } = eviction;
        let mut options = serde_json::json!({"preconditions": {"uid": uid}});
        if let Some(version) = version {
            options["preconditions"]["resourceVersion"] = version.into();
        }
        let mut path = format!("{path}/eviction");
        if is_trial {
            options["dryRun"] = serde_json::json!(["All"]);
            path.push_str("?dryRun=All");
        }
        let body = serde_json::json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name},
            "deleteOptions": options,
        });
        let body = body.to_string().into_bytes();
        let _: serde::de::IgnoredAny = self.put(Method::POST, &path, body, TIMEOUT).await?;
        Ok(())
    }

    /// All objects of a collection, and the version at which they were so.
    ///
    /// # Errors
    /// `Problem` if the server refuses the request or doesn't respond.
    pub async fn list<T: DeserializeOwned>(
        &self,
        collection: &Collection,
    ) -> Result<(Vec<T>, String), Problem> {
        let limit = PAGE.to_string();
        let mut items: Vec<T> = Vec::new();
        let mut more = String::new();
        loop {
            let target = collection.target(&[("limit", &limit), ("continue", &more)]);
            let page: Page<T> = self.send(request(Method::GET, &target, Vec::new())?, TIMEOUT).await?;
            items.extend(page.items);
            if page.metadata.more.is_empty() {
                return Ok((items, page.metadata.resource_version));
            }
            more = page.metadata.more;
        }
    }

    /// Changes in a collection from a version on, for that many seconds.
    pub(super) async fn watch<T: DeserializeOwned + Clone>(
        &self,
        collection: &Collection,
        version: &str,
        seconds: u64,
    ) -> Result<impl Stream<Item = Result<WatchEvent<T>, Problem>> + use<T>, Problem> {
        let seconds = seconds.to_string();
        let target = collection.target(&[
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", &seconds),
        ]);
        let events = self.client.request_events::<T>(request(Method::GET, &target, Vec::new())?);
        let events =
            tokio::time::timeout(OPENING, events).await.map_err(|_| Problem::TimedOut(OPENING))??;
        Ok(events.map(|event| event.map_err(Problem::from)))
    }

    async fn send<T: DeserializeOwned>(
        &self,
        request: Request<Vec<u8>>,
        limit: Duration,
    ) -> Result<T, Problem> {
        let now = Instant::now();
        let (mut until, mut limit) = (now + limit, limit);
        if let Some(time) = &self.time {
            if now >= time.until {
                return Err(Problem::Unsent);
            }
            (until, limit) = (until.min(time.until.max(now + LEAST)), limit.min(time.limit));
        }
        let response = tokio::time::timeout_at(until, self.client.request::<T>(request)).await;
        if let (Err(_), Some(time)) = (&response, &self.time) {
            time.is_late.store(true, Relaxed);
        }
        Ok(response.map_err(|_| Problem::TimedOut(limit))??)
    }
}

fn request(method: Method, target: &str, body: Vec<u8>) -> Result<Request<Vec<u8>>, Problem> {
    let builder = Request::builder().method(method).uri(target).header("content-type", "application/json");
    builder.body(body).map_err(|error| Problem::Unreadable(format!("{target} is no path: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_target_names_the_collection() {
        let pods = Collection::new("", "v1", "ns", "pods");
        assert_eq!(pods.target(&[("limit", "5"), ("continue", "")]), "/api/v1/namespaces/ns/pods?limit=5");
        let some = pods.with_labels("app in (m,n),tier!=gold");
        assert_eq!(
            some.target(&[("watch", "true")]),
            "/api/v1/namespaces/ns/pods?labelSelector=app%20in%20%28m%2Cn%29%2Ctier%21%3Dgold&watch=true"
        );
        let pool = Collection::new("inference.networking.k8s.io", "v1", "ns", "inferencepools").named("p");
        assert_eq!(
            pool.target(&[]),
            "/apis/inference.networking.k8s.io/v1/namespaces/ns/inferencepools?fieldSelector=metadata.name%3Dp"
        );
    }
}
