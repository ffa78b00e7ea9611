//! InferencePool: which pods serve, and where.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Object;

/// Model servers that are picked from.
pub type InferencePool = Object<PoolSpec>;

/// Specification of an InferencePool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolSpec {
    /// Pods of its namespace that serve.
    pub selector: LabelSelector,
    /// The ports on which each pod serves, 1 to 8: each is an endpoint.
    pub target_ports: Vec<Port>,
    /// Application protocol of the pods. The API server fills in `http`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<AppProtocol>,
    /// Endpoint picker of the pool, for the gateway; newer definitions don't require it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint_picker_ref: Option<EndpointPickerRef>,
}

/// Labels that a pod must have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelector {
    /// All of these, 1 to 64.
    pub match_labels: BTreeMap<String, String>,
}

impl LabelSelector {
    /// In the syntax of `kubectl -l`.
    pub fn to_query(&self) -> String {
        let pairs = self.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
        pairs.collect::<Vec<_>>().join(",")
    }
}

/// A port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// 1 to 65535.
    pub number: u16,
}

/// Application protocol of the pods of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AppProtocol {
    /// HTTP/1.1.
    #[serde(rename = "http")]
    Http,
    /// HTTP/2 without TLS.
    #[serde(rename = "kubernetes.io/h2c")]
    H2c,
    /// One that this version doesn't know.
    #[serde(untagged)]
    Other(String),
}

impl AppProtocol {
    /// The protocol as the pool's manifest has it.
    pub fn name(&self) -> &str {
        match self {
            Self::Http => "http",
            Self::H2c => "kubernetes.io/h2c",
            Self::Other(name) => name,
        }
    }
}

/// The picker of a pool, for the gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointPickerRef {
    /// API group; empty is the core of Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Kind. Default: Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Name, in the namespace of the pool.
    pub name: String,
    /// The ext_proc port; required of a Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<Port>,
    /// Treatment of requests while there is no picker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_mode: Option<FailureMode>,
}

/// Treatment of requests while there is no picker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureMode {
    /// They go to any pod of the pool.
    FailOpen,
    /// They fail. The default.
    FailClose,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_read_as_the_api_server_writes_it() {
        let text = r#"{"apiVersion":"inference.networking.k8s.io/v1","kind":"InferencePool",
            "metadata":{"name":"p","namespace":"n","resourceVersion":"7","managedFields":[{}]},
            "spec":{"selector":{"matchLabels":{"b":"2","a":""}},"targetPorts":[{"number":8000}],
            "appProtocol":"kubernetes.io/h2c","endpointPickerRef":{"name":"epp","port":{"number":9002},
            "failureMode":"FailOpen"}},"status":{"parents":[]}}"#;
        let pool: InferencePool = serde_json::from_str(text).unwrap();
        assert_eq!(pool.spec.selector.to_query(), "a=,b=2");
        assert_eq!(pool.spec.app_protocol, Some(AppProtocol::H2c));
        let picker = pool.spec.endpoint_picker_ref.as_ref().unwrap();
        assert_eq!(
            (picker.failure_mode, picker.port),
            (Some(FailureMode::FailOpen), Some(Port { number: 9002 }))
        );
        let again: InferencePool = serde_json::from_value(serde_json::to_value(&pool).unwrap()).unwrap();
        assert_eq!(again, pool);
    }

    #[test]
    fn unknown_app_protocol_is_kept() {
        let read = |text: &str| serde_json::from_str::<AppProtocol>(text).unwrap();
        assert_eq!(read(r#""http""#), AppProtocol::Http);
        assert_eq!(read(r#""h3""#), AppProtocol::Other("h3".to_owned()));
        assert_eq!(serde_json::to_string(&read(r#""h3""#)).unwrap(), r#""h3""#);
    }
}
