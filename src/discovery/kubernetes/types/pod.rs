//! Pods, of which there may be thousands: only what an endpoint is made of is kept.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Deserializer};

use crate::cluster::{Metadata, Watched};

/// Annotations that name the ports that serve, the one that is preferred first.
const ACTIVE_PORTS: [&str; 2] = ["llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"];

/// A pod, as far as it may be an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Name of the pod.
    pub name: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Unique identifier: another pod may have had its name.
    pub uid: String,
    /// Resource version of the pod.
    pub version: String,
    /// Labels of the pod.
    pub labels: BTreeMap<String, String>,
    /// The ports that serve, as the annotation says: numbers separated by commas. `None`:
    /// there is no such annotation, all ports serve.
    pub active_ports: Option<String>,
    /// Address, once it has one.
    pub ip: Option<IpAddr>,
    /// The address of its node, once it has one.
    pub node: Option<IpAddr>,
    /// `true` if the condition `Ready` is true, and the pod is not being deleted.
    pub ready: bool,
    /// `true` if it is being deleted or has ended: it won't be ready again.
    pub leaves: bool,
}

impl Watched for Pod {
    fn version(&self) -> &str {
        &self.version
    }
}

impl<'de> Deserialize<'de> for Pod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Written { metadata, status } = Written::deserialize(deserializer)?;
        let is_ready = |condition: &Condition| condition.kind == "Ready" && condition.status == "True";
        let address = |text: String| text.parse().ok();
        let mut annotations = metadata.annotations;
        let is_deleted = metadata.deletion_timestamp.is_some();
        Ok(Self {
            ready: !is_deleted && status.conditions.iter().any(is_ready),
            leaves: is_deleted || status.phase.is_some_and(|phase| phase == "Failed" || phase == "Succeeded"),
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            version: metadata.resource_version,
            labels: metadata.labels,
            active_ports: ACTIVE_PORTS.iter().find_map(|name| annotations.remove(*name)),
            ip: status.pod_ip.and_then(address),
            node: status.host_ip.and_then(address),
        })
    }
}

#[derive(Deserialize)]
struct Written {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Vec<Condition>,
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(rename = "hostIP")]
    host_ip: Option<String>,
}

#[derive(Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_is_ready_by_its_condition_unless_deleted() {
        let read = |metadata: &str, status: &str| -> Pod {
            let text =
                format!(r#"{{"metadata":{{"name":"a"{metadata}}},"spec":{{}},"status":{{{status}}}}}"#);
            serde_json::from_str(&text).unwrap()
        };
        let ready =
            r#""conditions":[{"type":"Initialized","status":"True"},{"type":"Ready","status":"True"}]"#;
        // metadata, status, ready, leaves
        let table = [
            ("", ready, true, false),
            (r#","deletionTimestamp":null"#, ready, true, false),
            (r#","deletionTimestamp":"2026-01-01T00:00:00Z""#, ready, false, true),
            ("", r#""conditions":[{"type":"Ready","status":"False"}]"#, false, false),
            ("", r#""conditions":[{"type":"Ready","status":"Unknown"}]"#, false, false),
            ("", r#""conditions":[{"type":"Initialized","status":"True"}]"#, false, false),
            ("", r#""conditions":[]"#, false, false),
            ("", r#""phase":"Pending""#, false, false),
            ("", r#""phase":"Failed""#, false, true),
            ("", r#""phase":"Succeeded","conditions":[{"type":"Ready","status":"False"}]"#, false, true),
            ("", "", false, false),
        ];
        for (metadata, status, ready, leaves) in table {
            let pod = read(metadata, status);
            assert_eq!((pod.ready, pod.leaves), (ready, leaves), "{metadata} {status}");
        }
    }

    #[test]
    fn addresses_and_annotations_are_read() {
        let text = r#"{"metadata":{"name":"a","namespace":"n","resourceVersion":"3","labels":{"app":"m"},
            "annotations":{"other":"x","inference.networking.k8s.io/active-ports":"1","llm-d.ai/active-ports":"2"}},
            "status":{"podIP":"fd00::1","hostIP":"10.0.0.9","podIPs":[]}}"#;
        let pod: Pod = serde_json::from_str(text).unwrap();
        assert_eq!((pod.ip, pod.node), ("fd00::1".parse().ok(), "10.0.0.9".parse().ok()));
        assert_eq!((pod.active_ports.as_deref(), pod.version.as_str()), (Some("2"), "3"));
        assert_eq!(pod.labels["app"], "m");
        let older: Pod = serde_json::from_str(
            r#"{"metadata":{"name":"a","annotations":{"inference.networking.k8s.io/active-ports":""}}}"#,
        )
        .unwrap();
        assert_eq!(older.active_ports.as_deref(), Some(""));
    }
}
