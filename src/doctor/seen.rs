//! Observations of the doctor.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::envoy::EnvoyConfig;
use crate::actuator::held_back::HeldBack;
use crate::actuator::pods::PodObject;
use crate::capacity::policy::TargetRef;

/// Observation, or the reason that there is none: text for a check that is skipped.
pub type Seen<T> = Result<T, String>;

/// All gathered state.
#[derive(Clone, Debug)]
pub struct Observations {
    /// Version of the doctor.
    pub version: &'static str,
    /// Responses of the gateway to probes.
    pub gateway: Seen<Gateway>,
    /// State of Envoy, from its admin interface.
    pub envoy: Seen<Envoy>,
    /// `true` if the admin interface was given, and not looked for by chance: then its silence is a failure.
    pub envoy_given: bool,
    /// Server that responds at the picker's port.
    pub picker: Seen<Picker>,
    /// The picker's metrics.
    pub metrics: Seen<PickerPage>,
    /// Usher's endpoints, from its admin port.
    pub admin: Seen<Vec<Known>>,
    /// `true` if the admin port was given, as that of Envoy.
    pub admin_given: bool,
    /// The model servers' metrics.
    pub pods: Seen<Vec<PodPage>>,
    /// State of the cluster, from the API server.
    pub cluster: Seen<Cluster>,
}

impl Observations {
    /// Returns `true` if there is nothing to check, as no part responded.
    pub fn is_empty(&self) -> bool {
        let Self { gateway, envoy, picker, metrics, admin, pods, cluster, .. } = self;
        let is_silent = gateway.is_err() && envoy.is_err() && picker.is_err();
        is_silent && metrics.is_err() && admin.is_err() && pods.is_err() && cluster.is_err()
    }
}

/// Responses of a gateway to probes.
#[derive(Clone, Debug, Default)]
pub struct Gateway {
    /// URL of the gateway.
    pub url: String,
    /// Reason that it didn't respond at all.
    pub unreachable: Option<String>,
    /// Requests that a picker refuses, in a random order of two kinds.
    pub refusals: Vec<(Broken, Reply)>,
    /// Requests that a picker routes.
    pub routed: Vec<Reply>,
}

/// Deliberate defect of a request. A picker refuses both, each in its own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The body is no JSON.
    Json,
    /// The body is JSON, and no chat request.
    Messages,
}

/// A response to a probe, as far as it shows who gave it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// The body's first bytes.
    pub body: String,
    /// Reason of a picker's refusal: `x-llm-d-request-dropped-reason`.
    pub reason: String,
    /// `true` if a picker has marked the response: `x-went-into-resp-headers`.
    pub marked: bool,
    /// The pod that responded, where a simulated server says so: `x-inference-pod`.
    pub pod: String,
    /// Port: `x-inference-port`.
    pub port: String,
}

/// State of Envoy, from its admin interface.
#[derive(Clone, Debug, Default)]
pub struct Envoy {
    /// URL that was asked.
    pub url: String,
    /// `true` if picker and servers can be expected to be reachable from here, too.
    pub local: bool,
    /// Version, for example `1.40.0`.
    pub version: String,
    /// Configuration of Envoy.
    pub config: EnvoyConfig,
    /// Counters and gauges by name, those that checks ask for.
    pub stats: BTreeMap<String, u64>,
    /// Hosts of each cluster.
    pub hosts: BTreeMap<String, Vec<Host>>,
    /// Requests that each host got while the probes ran, by its address.
    pub probed: BTreeMap<String, u64>,
}

/// A host of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// `address:port`.
    pub address: String,
    /// Reasons for which Envoy does not send to it.
    pub unhealthy: Vec<String>,
    /// Requests that it got.
    pub requests: u64,
}

/// Server that responds at the picker's port.
#[derive(Clone, Debug)]
pub struct Picker {
    /// Address, as `host:port`.
    pub address: String,
    /// Origin of the address.
    pub found: String,
    /// The TLS handshake.
    pub tls: Result<Handshake, String>,
    /// Reason that it can't even be connected to.
    pub unreachable: Option<String>,
    /// Reply to an exchange of ext_proc.
    pub reply: Result<Choice, String>,
}

/// Result of a TLS handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handshake {
    /// HTTP/2 was agreed upon.
    pub h2: bool,
    /// Certificates, the server's own first: DER.
    pub chain: Vec<Vec<u8>>,
}

/// Reply of a picker to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Addresses of the chosen endpoints, in order.
    Destination(String),
    /// Refused with this status.
    Refused(u64),
}

/// The metrics of a picker, before and after the probes.
#[derive(Clone, Debug, Default)]
pub struct PickerPage {
    /// URL of the page.
    pub url: String,
    /// The address was given, and not found by chance.
    pub given: bool,
    /// Reason that the page can't be read.
    pub problem: Option<String>,
    /// Number of families of a picker's.
    pub families: usize,
    /// Version of the picker, where it says so.
    pub version: Option<String>,
    /// Endpoints that it chose for the probes: name and port, how often.
    pub chosen: BTreeMap<(String, String), u64>,
    /// Comparison of KV events with usage, by plugin and endpoint.
    pub agreements: BTreeMap<(String, String), Agreement>,
    /// Endpoints whose engine may hold more than its KV events say.
    pub partly_known: BTreeSet<String>,
    /// Prompts whose tokens were asked for, by plugin and result.
    pub tokens: BTreeMap<String, BTreeMap<String, u64>>,
    /// Connection to a state store; `None`: it has none.
    pub state_store: Option<StateStore>,
}

/// Connections of a picker to the store through which replicas share their load, prefixes and learned state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateStore {
    /// It is connected now.
    pub is_connected: bool,
    /// `true` if prefixes should be shared and aren't.
    pub lacks_prefixes: bool,
    /// `true` if learned state should be handed on and isn't.
    pub lacks_learned: bool,
    /// Time of the last failure, in milliseconds since 1970, and its reason, of the connection of each state: `load`,
    /// `prefixes`, `learned`.
    pub failed: BTreeMap<String, (u64, String)>,
}

/// Requests to an endpoint whose cached tokens were compared with what its engine announced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// All of them.
    pub compared: u64,
    /// Requests with far fewer tokens cached than announced.
    pub not_cached: u64,
    /// Requests with far more tokens cached than announced.
    pub not_told: u64,
}

/// An endpoint that Usher knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Name, without the namespace.
    pub name: String,
    /// `address:port`.
    pub address: String,
    /// Reason of its ejection, if it is ejected.
    pub ejected: Option<String>,
}

/// The metrics of a model server.
#[derive(Clone, Debug)]
pub struct PodPage {
    /// Name of the pod.
    pub name: String,
    /// URL of its metrics.
    pub url: String,
    /// Address that it serves at.
    pub address: SocketAddr,
    /// The engine that its labels or the flag name.
    pub engine: String,
    /// The page, or why there is none.
    pub page: Result<Vec<u8>, String>,
}

/// State of the cluster, from the API server.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Reason that the API server can't be read.
    pub unreachable: Option<String>,
    /// Version of the API server.
    pub version: String,
    /// Kinds of objects that it serves: group, version, plural.
    pub kinds: Vec<(String, String, String)>,
    /// Account that has the rights.
    pub account: String,
    /// Rights that a picker needs, and whether there are; why it can't be known.
    pub rights: Seen<Vec<(Right, bool)>>,
    /// Namespace of the pool.
    pub namespace: String,
    /// The pool; `None` without --pool-name.
    pub pool: Option<Result<Pool, NoPool>>,
    /// Pods that the pool selects.
    pub pods: Seen<Vec<Pod>>,
    /// Capacity policies and what they act on.
    pub capacity: Seen<Capacity>,
}

/// Capacity policies of a namespace, its pods, and what is held back.
#[derive(Clone, Debug, Default)]
pub struct Capacity {
    /// Policies of the picker's file, then the objects.
    pub policies: Vec<CapacityPolicy>,
    /// Pods with Usher's scheduling gate.
    pub gated: Vec<PodObject>,
    /// Workloads whose updates are held back.
    pub held: Vec<HeldBack>,
    /// Reasons that some kinds of workloads can't be listed.
    pub unlisted: Vec<String>,
    /// All pods of the namespace.
    pub pods: Vec<Labelled>,
}

/// An object's name and labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labelled {
    /// Name of the object.
    pub name: String,
    /// Labels of the object.
    pub labels: BTreeMap<String, String>,
}

/// A capacity policy.
#[derive(Clone, Debug)]
pub struct CapacityPolicy {
    /// Name of the policy.
    pub name: String,
    /// The pool that it names.
    pub pool: Option<String>,
    /// Labels of pods that it may act on, by pool; empty: not known, or any.
    pub pools: Vec<String>,
    /// Reason that it is not in force as it is written.
    pub problem: Option<String>,
    /// `true` if it lets pods of its roles through the gate: it is carried out.
    pub opens_gates: bool,
    /// `true` if it decides how far updates of its targets go.
    pub updates: bool,
    /// Roles of the policy.
    pub roles: Vec<CapacityRole>,
    /// Rights that it takes, and whether there are; why it can't be known.
    pub rights: Seen<Vec<(CapacityRight, bool)>>,
}

/// A role of a policy.
#[derive(Clone, Debug)]
pub struct CapacityRole {
    /// Name of the role.
    pub name: String,
    /// Labels of its pods.
    pub selector: BTreeMap<String, String>,
    /// The object that has its replicas.
    pub target: Option<TargetRef>,
    /// `true` if there is one; `None`: it wasn't looked for, as of another pool's.
    pub is_there: Option<Seen<bool>>,
}

/// A right that a policy takes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CapacityRight {
    /// API group; empty is the core of Kubernetes.
    pub group: String,
    /// Plural of the kind, with a subresource: `deployments/scale`.
    pub resource: String,
    /// Verb of the right.
    pub verb: &'static str,
    /// `true` if the policy is not carried out without it.
    pub is_needed: bool,
    /// In all namespaces.
    pub everywhere: bool,
}

/// A right that a picker needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    /// API group; empty is the core of Kubernetes.
    pub group: &'static str,
    /// Plural of the kind.
    pub resource: &'static str,
    /// Verb of the right.
    pub verb: &'static str,
    /// Purpose of the right.
    pub need: Need,
}

/// Purpose of a right that a picker needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// To be ready: a right in the namespace of the pool.
    Ready,
    /// To know who may read its metrics: a right that has no namespace.
    Metrics,
}

/// Reason that nothing is known of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoPool {
    /// No pool of that name.
    Missing(String),
    /// The pool can't be read.
    Unreadable(String),
}

impl NoPool {
    /// In words.
    pub fn reason(&self) -> &str {
        match self {
            Self::Missing(reason) | Self::Unreadable(reason) => reason,
        }
    }
}

/// An InferencePool and what belongs to it.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Name of the pool.
    pub name: String,
    /// Ports that requests are sent to.
    pub ports: Vec<u16>,
    /// `true` if a gateway is to go on without the picker.
    pub fails_open: bool,
    /// The Service of its picker, and the port.
    pub picker: Option<(String, Option<u16>)>,
    /// The Service itself.
    pub service: Seen<Option<Service>>,
    /// Conditions of the gateways that are not true: parent, type, message.
    pub rejected: Vec<(String, String, String)>,
    /// HTTPRoutes of the namespace that lead to it.
    pub routes: Seen<Vec<Route>>,
    /// Other pools of the namespace whose selector is the same.
    pub overlapping: Vec<String>,
}

/// A Service.
#[derive(Clone, Debug)]
pub struct Service {
    /// Ports of the Service.
    pub ports: Vec<u16>,
    /// Ready addresses; why they are not known.
    pub ready: Seen<usize>,
}

/// An HTTPRoute.
#[derive(Clone, Debug, Default)]
pub struct Route {
    /// Name of the route.
    pub name: String,
    /// Conditions of the gateways that are not true: parent, type, message.
    pub rejected: Vec<(String, String, String)>,
}

/// A pod of the pool.
#[derive(Clone, Debug, Default)]
pub struct Pod {
    /// Name of the pod.
    pub name: String,
    /// Address of the pod.
    pub ip: Option<std::net::IpAddr>,
    /// `true` if it is ready.
    pub ready: bool,
    /// Engine, by its label.
    pub engine: Option<String>,
    /// Ports that its containers declare.
    pub ports: Vec<u16>,
}
