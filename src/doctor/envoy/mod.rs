//! Envoy's configuration as far as a picker depends on it, read from a dump of its admin
//! interface. No I/O; nothing of the dump is kept but what is listed here.

mod cluster;
mod filter;
mod route;

use std::collections::BTreeMap;

use serde_json::Value;

use super::json::{list, number, text};

pub(super) use cluster::socket;
pub use cluster::{Cluster, DESTINATION, Destination, Validation};
pub use filter::{BodyMode, Processor, Settings};
pub use route::{Route, Routes};

/// Parts of a configuration that matter.
#[derive(Clone, Debug, Default)]
pub struct EnvoyConfig {
    /// HTTP connection managers of the listeners that clients use.
    pub managers: Vec<Manager>,
    /// Clusters by name.
    pub clusters: BTreeMap<String, Cluster>,
}

/// An HTTP connection manager.
#[derive(Clone, Debug, Default)]
pub struct Manager {
    /// Name of the listener.
    pub listener: String,
    /// The listener's port.
    pub port: Option<u16>,
    /// Prefix of its counters.
    pub stat_prefix: String,
    /// Names of its filters, in their order.
    pub filters: Vec<String>,
    /// Filters whose configuration comes from elsewhere and is not in the dump.
    pub unseen: Vec<String>,
    /// Filters of ext_proc.
    pub processors: Vec<Processor>,
    /// Limits of buffer filters that stand before the first ext_proc filter, bytes.
    pub buffers: Vec<u64>,
    /// Headers that are removed before anything looks at them.
    pub removed: Vec<String>,
    /// Routes of the connection manager.
    pub routes: Routes,
}

impl EnvoyConfig {
    /// Reads a dump. Listeners with another port than `port` are left out, unless none has it.
    pub fn read(dump: &Value, port: Option<u16>) -> Self {
        let parts = list(dump, "configs");
        let of = |kind: &str, fields: &[&str]| -> Vec<&Value> {
            let is_kind = |part: &&Value| text(part, "@type").ends_with(kind);
            let parts = parts.iter().filter(is_kind);
            parts.flat_map(|part| fields.iter().flat_map(|field| list(part, field))).collect()
        };
        let clusters = of("ClustersConfigDump", &["static_clusters", "dynamic_active_clusters"]);
        let clusters = clusters.iter().filter_map(|entry| entry.get("cluster")).map(Cluster::read);
        let clusters = clusters.map(|cluster| (cluster.name.clone(), cluster)).collect();
        let tables = of("RoutesConfigDump", &["static_route_configs", "dynamic_route_configs"]);
        let tables: Vec<&Value> = tables.iter().filter_map(|entry| entry.get("route_config")).collect();
        let listeners = of("ListenersConfigDump", &["static_listeners", "dynamic_listeners"]);
        let listeners: Vec<&Value> = (listeners.iter())
            .filter_map(|entry| entry.get("listener").or_else(|| entry.pointer("/active_state/listener")))
            .collect();
        let fits = |listener: &&&Value| port.is_some() && port_of(listener) == port;
        let mut used: Vec<&Value> = listeners.iter().filter(fits).copied().collect();
        if used.is_empty() {
            used = listeners;
        }
        let managers = used.iter().flat_map(|listener| managers(listener, &tables)).collect();
        Self { managers, clusters }
    }

    /// The filters that ask a picker, each with its manager: of several on a listener the one
    /// in full duplex, or the last.
    pub fn pickers(&self) -> impl Iterator<Item = (&Manager, &Processor)> {
        self.managers.iter().filter_map(|manager| {
            let duplex = |processor: &&Processor| processor.settings.request_body == BodyMode::FullDuplex;
            let of = manager.processors.iter().find(duplex).or(manager.processors.last())?;
            Some((manager, of))
        })
    }

    /// Clusters of pickers, each once.
    pub fn picker_clusters(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for (_, processor) in self.pickers() {
            let of = processor.effective().map(|(_, settings)| settings.cluster.as_str());
            of.for_each(|name| {
                if !name.is_empty() && !names.contains(&name) {
                    names.push(name)
                }
            });
        }
        // Lives as long as the configuration.
        names
            .iter()
            .filter_map(|name| self.clusters.get_key_value(*name).map(|(key, _)| key.as_str()))
            .collect()
    }
}

fn managers(listener: &Value, tables: &[&Value]) -> Vec<Manager> {
    let chains = list(listener, "filter_chains").iter().chain(listener.get("default_filter_chain"));
    let configs =
        chains.flat_map(|chain| list(chain, "filters")).filter_map(|filter| filter.get("typed_config"));
    let is_manager = |config: &&Value| text(config, "@type").ends_with(".HttpConnectionManager");
    configs.filter(is_manager).map(|config| manager(listener, config, tables)).collect()
}

fn manager(listener: &Value, config: &Value, tables: &[&Value]) -> Manager {
    let wanted = config.pointer("/rds/route_config_name").and_then(Value::as_str);
    let table = config
        .get("route_config")
        .or_else(|| tables.iter().copied().find(|table| Some(text(table, "name")) == wanted));
    let routes = table.map(Routes::read).unwrap_or_default();
    let filters = list(config, "http_filters");
    let mut found = Manager {
        listener: text(listener, "name").to_owned(),
        port: port_of(listener),
        stat_prefix: text(config, "stat_prefix").to_owned(),
        filters: filters.iter().map(|filter| text(filter, "name").to_owned()).collect(),
        removed: removed(config, filters),
        ..Manager::default()
    };
    for filter in filters {
        match filter.get("typed_config") {
            None => found.unseen.push(text(filter, "name").to_owned()),
            Some(config) if text(config, "@type").ends_with(".ExternalProcessor") => {
                found.processors.push(Processor::read(filter, config, &routes));
            }
            Some(config)
                if text(config, "@type").ends_with(".buffer.v3.Buffer") && found.processors.is_empty() =>
            {
                found.buffers.push(number(config, "max_request_bytes").unwrap_or(0));
            }
            Some(_) => {}
        }
    }
    found.routes = routes;
    found
}

/// Headers that are removed by the manager, or by a filter before the first ext_proc filter.
fn removed(config: &Value, filters: &[Value]) -> Vec<String> {
    let early = list(config, "early_header_mutation_extensions").iter();
    let is_processor = |filter: &&Value| {
        !filter
            .get("typed_config")
            .is_some_and(|config| text(config, "@type").ends_with(".ExternalProcessor"))
    };
    let before = filters.iter().take_while(is_processor);
    let configs = early.chain(before).filter_map(|extension| extension.get("typed_config"));
    let mutations = configs.flat_map(|config| {
        list(config, "mutations").iter().chain(
            config.pointer("/mutations/request_mutations").and_then(Value::as_array).into_iter().flatten(),
        )
    });
    let mut names: Vec<String> =
        mutations.map(|mutation| text(mutation, "remove").to_ascii_lowercase()).collect();
    names.retain(|name| !name.is_empty());
    names
}

fn port_of(listener: &Value) -> Option<u16> {
    let port = listener.pointer("/address/socket_address/port_value")?.as_u64()?;
    u16::try_from(port).ok()
}
