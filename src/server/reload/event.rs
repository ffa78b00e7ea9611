//! Events about the picker's own pod: a configuration was reloaded or refused, where `kubectl describe`
//! shows it.

use std::time::Duration;

use http::Method;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::actuator::event::{self, About, Kind};
use crate::cluster::{Cluster, Problem};

/// Least time between two events, so that a file that changes all the time doesn't burden the API server.
/// The newest one waits.
const PAUSE: Duration = Duration::from_secs(30);

/// Time for the response to one request.
const LIMIT: Duration = Duration::from_secs(5);

/// Longest message, in characters: the API server takes 1,024 bytes.
const MOST_TEXT: usize = 250;

/// Sends events about a pod.
#[derive(Debug)]
pub(in crate::server) struct Events {
    /// `None`: there is no cluster, or it is not known which pod this is.
    target: Option<Target>,
    /// The newest one that has not been sent.
    waiting: Option<(Kind, &'static str, String)>,
    sent: Option<Instant>,
    /// `true` if events can't be sent; logged once.
    lacks: bool,
}

#[derive(Debug)]
struct Target {
    cluster: Cluster,
    namespace: String,
    pod: String,
    uid: Option<String>,
}

#[derive(Deserialize)]
struct Pod {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    uid: String,
}

impl Events {
    /// Events about the pod of this namespace and name in a cluster.
    pub(in crate::server) fn about(cluster: Option<Cluster>, pod: Option<(String, String)>) -> Self {
        let target = cluster.zip(pod).map(|(cluster, (namespace, pod))| {
            let cluster = cluster.within(LIMIT);
            Target { cluster, namespace, pod, uid: None }
        });
        Self { target, waiting: None, sent: None, lacks: false }
    }

    pub(super) fn reloaded(&mut self, text: &str) {
        self.push(Kind::Normal, "ConfigReloaded", text);
    }

    pub(super) fn refused(&mut self, text: &str) {
        self.push(Kind::Warning, "ConfigRefused", text);
    }

    fn push(&mut self, kind: Kind, reason: &'static str, text: &str) {
        if self.target.is_some() {
            self.waiting = Some((kind, reason, text.chars().take(MOST_TEXT).collect()));
        }
    }

    /// Sends what waits, if it is time. What is not taken is not sent again: the log and the metrics say
    /// the same.
    pub(super) async fn send(&mut self) {
        let (Some(target), now) = (&mut self.target, Instant::now()) else { return };
        if self.sent.is_some_and(|sent| now.duration_since(sent) < PAUSE) {
            return;
        }
        let Some((kind, reason, text)) = self.waiting.take() else { return };
        self.sent = Some(now);
        match target.send(kind, reason, &text).await {
            Ok(()) => self.lacks = false,
            Err(problem) => {
                if !std::mem::replace(&mut self.lacks, true) {
                    tracing::info!(%problem, "no events about the configuration; /config on the admin port says the same");
                }
            }
        }
    }
}

impl Target {
    async fn send(&mut self, kind: Kind, reason: &str, text: &str) -> Result<(), Problem> {
        let (namespace, name) = (&self.namespace, &self.pod);
        let uid = match &self.uid {
            Some(uid) => uid.clone(),
            None => {
                let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
                let pod: Pod = self.cluster.get(&path).await?;
                self.uid.insert(pod.metadata.uid).clone()
            }
        };
        let about = About { api_version: "v1", kind: "Pod", name, uid: &uid };
        let body = body(namespace, about, (kind, reason, text));
        let (path, body) = (event::path(namespace), body.to_string().into_bytes());
        self.cluster.put::<IgnoredAny>(Method::POST, &path, body, LIMIT).await.map(|_| ())
    }
}

fn body(namespace: &str, about: About<'_>, (kind, reason, text): (Kind, &str, &str)) -> Value {
    let mut body = event::event(namespace, about, kind, reason, text);
    if let Some(component) = body.get_mut("reportingComponent") {
        *component = json!("usher.dev/config");
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_names_the_pod_and_the_reporting_component() {
        let about = About { api_version: "v1", kind: "Pod", name: "epp-0", uid: "u" };
        let body = body("prod", about, (Kind::Warning, "ConfigRefused", "epp.yaml:3:1: no"));
        assert_eq!(body["involvedObject"]["name"], "epp-0");
        assert_eq!(body["reportingComponent"], "usher.dev/config");
        assert_eq!((&body["type"], &body["message"]), (&json!("Warning"), &json!("epp.yaml:3:1: no")));
    }

    #[tokio::test(start_paused = true)]
    async fn event_is_dropped_without_a_cluster() {
        let mut events = Events::about(None, Some(("prod".to_owned(), "epp-0".to_owned())));
        events.refused(&"x".repeat(10_000));
        assert!(events.waiting.is_none());
        events.send().await;
        assert!(events.sent.is_none());
    }
}
