//! Plan of an examination: places to look at, and settings.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use super::http::HttpClient;
use crate::capacity::Policy;

/// Plan of an examination: places to look at, and settings.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Address that clients send requests to.
    pub gateway: Option<HttpClient>,
    /// Envoy's admin interface; else it is looked for beside a local gateway.
    pub envoy: Option<HttpClient>,
    /// The picker's ext_proc port, `host:port`; else as Envoy's configuration says.
    pub picker: Option<String>,
    /// The picker's metrics; else they are looked for beside a local gateway.
    pub metrics: Option<HttpClient>,
    /// Usher's admin port; else it is looked for beside a local gateway.
    pub admin: Option<HttpClient>,
    /// A model to ask for; else one that no server has.
    pub model: Option<String>,
    /// The model servers, where a file names them.
    pub endpoints: Option<Vec<Pods>>,
    /// The engine of servers whose labels name none.
    pub engine: String,
    /// The pool in Kubernetes.
    pub pool: Option<PoolPlan>,
    /// `true` if no place is given: the usual ports of this machine are looked at.
    pub is_bare: bool,
    /// Ports of this machine where parts without an address are looked for.
    pub ports: LocalPorts,
    /// Time for each response.
    pub limit: Duration,
}

/// Ports of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalPorts {
    /// Envoy's admin interface.
    pub envoy: u16,
    /// The picker's ext_proc port.
    pub picker: u16,
    /// The picker's metrics.
    pub metrics: u16,
    /// Usher's admin port.
    pub admin: u16,
}

impl Default for LocalPorts {
    /// Envoy's as in `deploy/envoy` and in llm-d-router's charts, and the defaults of `usher serve`.
    fn default() -> Self {
        Self { envoy: 19000, picker: 9002, metrics: 9090, admin: 9095 }
    }
}

impl fmt::Display for LocalPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { envoy, picker, metrics, admin } = self;
        write!(
            f,
            "127.0.0.1:{envoy} (Envoy's admin interface), :{picker} (picker), :{metrics} (metrics), :{admin} (admin port)"
        )
    }
}

/// A pool in Kubernetes.
#[derive(Clone, Debug)]
pub struct PoolPlan {
    /// Namespace of the pool.
    pub namespace: String,
    /// Name of the InferencePool; else pods are those of `selector`.
    pub name: Option<String>,
    /// Labels of the pods, as of `kubectl -l`.
    pub selector: Option<String>,
    /// Ports of these pods.
    pub ports: Vec<u16>,
    /// `true` if several replicas elect one.
    pub election: bool,
    /// `true` if the picker asks who may read its metrics.
    pub metrics_auth: bool,
    /// Service account of the picker, whose rights are looked at; else our own.
    pub account: Option<String>,
    /// Capacity policies of the picker's file.
    pub policies: Vec<Policy>,
}

/// A model server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pods {
    /// Name of the pod.
    pub name: String,
    /// Address that it serves at.
    pub address: SocketAddr,
    /// Engine of the pod.
    pub engine: String,
}
