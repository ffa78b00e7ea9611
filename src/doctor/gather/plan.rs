//! Plan of an examination: places to look at, and settings.

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
    /// Time for each response.
    pub limit: Duration,
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
