//! One model server that can be picked.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::health::Health;
use super::slot::Slot;
use super::{Load, Topology};

/// Label that carries the role of a model server in a disaggregated pool.
pub const ROLE_LABEL: &str = "llm-d.ai/role";

/// Names of an endpoint, which outlive it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointName {
    /// `namespace/name`.
    pub id: Arc<str>,
    /// `host:port`.
    pub address: Arc<str>,
}

/// An endpoint as discovery knows it, before it has a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSpec {
    /// Namespace of the pod.
    pub namespace: String,
    /// Unique within the namespace: `<pod>-rank-<i>`, or the name in an endpoints file.
    pub name: String,
    /// Name of the pod; equal to `name` in an endpoints file.
    pub pod: String,
    /// Address of the model server.
    pub address: SocketAddr,
    /// Labels of the pod.
    pub labels: BTreeMap<String, String>,
    /// Data-parallel rank, 0 for the first or only port.
    pub rank: u32,
    /// Address of the node that the pod runs on, where discovery knows it.
    pub node: Option<IpAddr>,
    /// Unique identifier of the pod, where discovery knows it. A pod of the same name with
    /// another one is another server.
    pub uid: Option<String>,
}

impl EndpointSpec {
    /// A pod of the namespace `default` with one port and no labels.
    pub fn new(name: impl Into<String>, address: impl Into<SocketAddr>) -> Self {
        let name = name.into();
        Self {
            namespace: "default".to_owned(),
            pod: name.clone(),
            name,
            address: address.into(),
            labels: BTreeMap::new(),
            rank: 0,
            node: None,
            uid: None,
        }
    }

    /// `namespace/name`, what an endpoint is known by.
    pub fn id(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// Role of a model server in a disaggregated pool, from its `llm-d.ai/role` label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Role {
    /// Encodes images, audio and video.
    pub encode: bool,
    /// Computes the KV cache of a prompt.
    pub prefill: bool,
    /// Generates tokens. A pod without the label decodes.
    pub decode: bool,
    /// The pod has the label at all.
    pub labelled: bool,
}

impl Role {
    /// Reads the label's value; a value that is not in llm-d-router's list has no role at all.
    pub fn from_label(value: Option<&str>) -> Self {
        let (encode, prefill, decode) = match value {
            None => (false, false, true),
            Some("encode") => (true, false, false),
            Some("prefill") => (false, true, false),
            Some("decode") => (false, false, true),
            Some("encode-prefill") => (true, true, false),
            Some("prefill-decode" | "both") => (false, true, true),
            Some("encode-prefill-decode") => (true, true, true),
            Some(_) => (false, false, false),
        };
        Self { encode, prefill, decode, labelled: value.is_some() }
    }
}

/// A model server with its identity. Immutable: a change of labels makes a new value with the
/// same slot, [`Load`] and [`Health`]. At another address, or in another pod of the same name,
/// it is another server, and begins with new ones.
pub struct Endpoint {
    spec: EndpointSpec,
    id: Arc<str>,
    identity: Arc<str>,
    authority: Arc<str>,
    port: Arc<str>,
    role: Role,
    topology: Topology,
    slot: Arc<Slot>,
    load: Arc<Load>,
    health: Arc<Health>,
}

/// State of a server, which outlives a change of its labels.
pub(super) struct Lasting {
    pub(super) slot: Arc<Slot>,
    pub(super) load: Arc<Load>,
    pub(super) health: Arc<Health>,
}

impl Endpoint {
    pub(super) fn new(spec: EndpointSpec, topology: Topology, lasting: Lasting) -> Self {
        let Lasting { slot, load, health } = lasting;
        // `SocketAddr` prints IPv6 addresses in brackets, as the header needs them.
        let authority = Arc::from(spec.address.to_string());
        let id: Arc<str> = Arc::from(spec.id());
        let identity = spec.uid.as_ref().map_or_else(|| Arc::clone(&id), |uid| format!("{id}@{uid}").into());
        let port = Arc::from(spec.address.port().to_string());
        let role = Role::from_label(spec.labels.get(ROLE_LABEL).map(String::as_str));
        Self { spec, id, identity, authority, port, role, topology, slot, load, health }
    }

    /// Returns `true` if this is the server that discovery says this of.
    pub(super) fn serves(&self, spec: &EndpointSpec) -> bool {
        self.spec.address == spec.address && self.spec.uid == spec.uid
    }

    /// State that another value for the same server keeps.
    pub(super) fn lasting(&self) -> Lasting {
        Lasting {
            slot: Arc::clone(&self.slot),
            load: Arc::clone(&self.load),
            health: Arc::clone(&self.health),
        }
    }

    /// `namespace/name`, unique in the pool.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// [`id`](Self::id) and the pod's unique identifier, where discovery knows one: what is
    /// remembered by it is not taken for that of a later pod of the same name.
    pub fn identity(&self) -> &Arc<str> {
        &self.identity
    }

    /// Namespace of the pod.
    pub fn namespace(&self) -> &str {
        &self.spec.namespace
    }

    /// Name of the endpoint within its namespace.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Name of the pod.
    pub fn pod(&self) -> &str {
        &self.spec.pod
    }

    /// `host:port` as it goes into the destination header; IPv6 hosts in brackets.
    pub fn authority(&self) -> &Arc<str> {
        &self.authority
    }

    /// Id and authority, which outlive it.
    pub fn names(&self) -> EndpointName {
        EndpointName { id: Arc::clone(&self.id), address: Arc::clone(&self.authority) }
    }

    /// The port as text, for metric labels.
    pub fn port_text(&self) -> &str {
        &self.port
    }

    /// Address of requests and scrapes.
    pub fn address(&self) -> SocketAddr {
        self.spec.address
    }

    /// The pod's IP address.
    pub fn ip(&self) -> IpAddr {
        self.spec.address.ip()
    }

    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.spec.labels.get(key).map(String::as_str)
    }

    /// Data-parallel rank.
    pub fn rank(&self) -> u32 {
        self.spec.rank
    }

    /// Role in a disaggregated pool.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Location from its labels.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Small number that is stable while the endpoint exists. An index that
    /// keeps entries under it keeps a clone, so that the number is given to
    /// another endpoint only after every index has dropped this one.
    #[inline]
    pub fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// Load of the endpoint.
    #[inline]
    pub fn load(&self) -> &Arc<Load> {
        &self.load
    }

    /// Health of the endpoint.
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// The endpoint as discovery described it.
    pub fn spec(&self) -> &EndpointSpec {
        &self.spec
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}#{}", self.id, self.authority, self.slot.number())
    }
}

#[cfg(test)]
mod tests {
    use super::Role;

    #[test]
    fn roles_match_llm_d_router_labels() {
        // label, encode, prefill, decode
        let table = [
            (None, false, false, true),
            (Some("decode"), false, false, true),
            (Some("prefill"), false, true, false),
            (Some("encode"), true, false, false),
            (Some("encode-prefill"), true, true, false),
            (Some("prefill-decode"), false, true, true),
            (Some("both"), false, true, true),
            (Some("encode-prefill-decode"), true, true, true),
            (Some("encode-decode"), false, false, false),
            (Some(""), false, false, false),
        ];
        for (label, encode, prefill, decode) in table {
            let role = Role::from_label(label);
            assert_eq!((role.encode, role.prefill, role.decode), (encode, prefill, decode), "{label:?}");
        }
    }
}
