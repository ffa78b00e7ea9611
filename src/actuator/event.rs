//! Events: what was written to an object or stands still, and why, where `kubectl describe` shows it.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::target::Target;

/// The path of a namespace's events.
pub(super) fn path(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/events")
}

/// Whether somebody should look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Warning,
}

/// An event about an object.
pub(super) fn event(namespace: &str, target: &Target, kind: Kind, reason: &str, message: &str) -> Value {
    let now = Timestamp::now();
    let now = format!("{}", now.round(k8s_openapi::jiff::Unit::Second).unwrap_or(now));
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": format!("{}.", target.reference.name), "namespace": namespace},
        "involvedObject": {
            "apiVersion": target.reference.api_version,
            "kind": target.reference.kind,
            "name": target.reference.name,
            "namespace": namespace,
            "uid": target.uid,
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
