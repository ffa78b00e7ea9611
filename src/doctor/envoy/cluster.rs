//! A cluster: who is in it, what is spoken to it, and what it holds.

use serde_json::Value;

use crate::doctor::json::{flag, list, number, text};

/// The header in which a picker names its choice.
pub const DESTINATION: &str = "x-gateway-destination-endpoint";

/// Envoy's limit of connections, of what waits, and of requests, where none is set.
const DEFAULT_LIMIT: u64 = 1024;

/// A cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// Name of the cluster.
    pub name: String,
    /// Way in which requests find a host.
    pub destination: Destination,
    /// The smallest of its limits and that limit's name; `None` when the limits are off.
    pub limit: (String, u64),
    /// Requests to it are HTTP/2.
    pub http2: bool,
    /// TLS, and whose certificates are taken.
    pub tls: Option<Validation>,
    /// Addresses in its configuration, `host:port`.
    pub addresses: Vec<String>,
}

/// Way in which requests find a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Destination {
    /// By load balancing, whatever a picker says.
    #[default]
    Balanced,
    /// To the address in a picker's header, one only.
    Header,
    /// To the address in a picker's metadata, one only.
    Metadata,
    /// To the first of a picker's list that works.
    List {
        /// `true` if the header is read.
        header: bool,
        /// `true` if the metadata is read.
        metadata: bool,
    },
}

/// Certificates that are accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Validation {
    /// Any certificate.
    #[default]
    None,
    /// Certificates that this certificate authority signed: PEM.
    Inline(String),
    /// Certificates that the certificate authority in this file signed.
    File(String),
    /// Set by a secret that is not in the dump.
    Elsewhere,
}

impl Cluster {
    pub(super) fn read(cluster: &Value) -> Self {
        let options = cluster.pointer(
            "/typed_extension_protocol_options/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        );
        let http2 = options.is_some_and(|options| {
            options.pointer("/explicit_http_config/http2_protocol_options").is_some()
                || options.get("auto_config").is_some()
                || options.get("use_downstream_protocol_config").is_some()
        });
        Self {
            name: text(cluster, "name").to_owned(),
            destination: destination(cluster),
            limit: limit(cluster),
            http2: http2 || cluster.get("http2_protocol_options").is_some(),
            tls: tls(cluster),
            addresses: addresses(cluster),
        }
    }

    /// Returns `true` if it follows a picker.
    pub fn follows(&self) -> bool {
        self.destination != Destination::Balanced
    }
}

fn destination(cluster: &Value) -> Destination {
    let is_ours = |name: &str| name.eq_ignore_ascii_case(DESTINATION);
    let has_key = |key: &Value| {
        text(key, "key") == "envoy.lb"
            && list(key, "path").last().is_some_and(|part| is_ours(text(part, "key")))
    };
    if let Some(config) = cluster.get("original_dst_lb_config") {
        if config.get("metadata_key").is_some_and(has_key) {
            return Destination::Metadata;
        }
        if flag(config, "use_http_header") && is_ours(text(config, "http_header_name")) {
            return Destination::Header;
        }
    }
    let policies = cluster.pointer("/load_balancing_policy/policies").and_then(Value::as_array);
    let configs = policies.into_iter().flatten();
    let configs = configs.filter_map(|policy| policy.pointer("/typed_extension_config/typed_config"));
    for config in configs.filter(|config| text(config, "@type").ends_with(".OverrideHost")) {
        let sources = list(config, "override_host_sources");
        let header = sources.iter().any(|source| is_ours(text(source, "header")));
        let metadata = sources.iter().filter_map(|source| source.get("metadata")).any(has_key);
        if header || metadata {
            return Destination::List { header, metadata };
        }
    }
    Destination::Balanced
}

/// The smallest limit of requests with the default priority.
fn limit(cluster: &Value) -> (String, u64) {
    let thresholds = cluster.pointer("/circuit_breakers/thresholds").and_then(Value::as_array);
    let is_default = |threshold: &&Value| matches!(text(threshold, "priority"), "" | "DEFAULT");
    let threshold = thresholds.into_iter().flatten().find(is_default);
    let names = ["max_connections", "max_pending_requests", "max_requests"];
    let of = |name: &str| threshold.and_then(|threshold| number(threshold, name)).unwrap_or(DEFAULT_LIMIT);
    let smallest = names.map(|name| (of(name), name)).into_iter().min_by_key(|(value, _)| *value);
    smallest.map(|(value, name)| (name.to_owned(), value)).unwrap_or_default()
}

fn tls(cluster: &Value) -> Option<Validation> {
    let single = cluster.get("transport_socket");
    let matched =
        list(cluster, "transport_socket_matches").iter().filter_map(|each| each.get("transport_socket"));
    let contexts = single.into_iter().chain(matched).filter_map(|socket| socket.get("typed_config"));
    let context =
        contexts.into_iter().find(|config| text(config, "@type").ends_with(".UpstreamTlsContext"))?;
    let common = context.get("common_tls_context")?;
    let is_elsewhere = common.get("validation_context_sds_secret_config").is_some()
        || common.get("combined_validation_context").is_some();
    let authority = common.pointer("/validation_context/trusted_ca");
    Some(match authority {
        _ if is_elsewhere => Validation::Elsewhere,
        None => Validation::None,
        Some(source) => match (text(source, "inline_string"), text(source, "filename")) {
            ("", "") => Validation::Elsewhere,
            ("", file) => Validation::File(file.to_owned()),
            (pem, _) => Validation::Inline(pem.to_owned()),
        },
    })
}

fn addresses(cluster: &Value) -> Vec<String> {
    let localities = cluster.pointer("/load_assignment/endpoints").and_then(Value::as_array);
    let endpoints = localities.into_iter().flatten().flat_map(|locality| list(locality, "lb_endpoints"));
    endpoints.filter_map(|endpoint| socket(endpoint.pointer("/endpoint/address")?)).collect()
}

/// `host:port` of an address.
pub fn socket(address: &Value) -> Option<String> {
    let socket = address.get("socket_address")?;
    let (host, port) = (text(socket, "address"), number(socket, "port_value")?);
    Some(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
}
