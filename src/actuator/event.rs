//! Kubernetes events about writes and blocked policies, for `kubectl describe`.

use std::collections::VecDeque;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

/// Pending events of a policy, oldest first.
pub(super) type Waiting = VecDeque<Vec<u8>>;

/// Object of an event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About<'a> {
    pub(crate) api_version: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) name: &'a str,
    pub(crate) uid: &'a str,
}

/// Path of a namespace's events.
pub(crate) fn path(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/events")
}

/// Severity of an event: normal or warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    Warning,
}

/// Builds an event about an object.
pub(crate) fn event(namespace: &str, about: About<'_>, kind: Kind, reason: &str, message: &str) -> Value {
    let now = Timestamp::now();
    let now = format!("{}", now.round(k8s_openapi::jiff::Unit::Second).unwrap_or(now));
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": format!("{}.", about.name), "namespace": namespace},
        "involvedObject": {
            "apiVersion": about.api_version,
            "kind": about.kind,
            "name": about.name,
            "namespace": namespace,
            "uid": about.uid,
        },
        "reason": reason,
        "message": message,
        "type": match kind {
            Kind::Normal => "Normal",
            Kind::Warning => "Warning",
        },
        "source": {"component": "usher"},
        "reportingComponent": "usher.dev/capacity",
        "reportingInstance": "usher",
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    })
}
