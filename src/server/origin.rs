//! Sources of a server's endpoints, and their part in its health.

use std::sync::Arc;

use prometheus::{IntGauge, Registry};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::pool::Pool;
use super::warmth::Warmth;
use super::{Background, RunError};
use crate::cluster::{self, Cluster};
use crate::discovery::kubernetes::{AppProtocol, KubernetesDiscovery, Membership, PoolName, PoolStatus};
use crate::discovery::params::FileDiscoveryParams;
use crate::discovery::{FileDiscovery, FileError};
use crate::extproc::health::HealthState;
use crate::leader::{LeaseName, Replica, Term, Timing, elect};
use crate::request::ParserKind;
use crate::settings::{ElectionTimes, PoolSettings, ServeSettings};

/// Source of endpoints.
#[derive(Debug)]
pub(super) enum Origin {
    /// A file.
    File(FileDiscovery),
    /// Pods.
    Kubernetes(Membership),
}

impl Origin {
    /// Origin that the flags and the configuration name; `None`: they name none. `declared` says where the
    /// configuration declares its plugin.
    ///
    /// # Errors
    /// Returns an error if the settings name two sources. `--pool-name` and `--endpoint-selector` beside a plugin are no
    /// second source: llm-d-router doesn't start without one of them, also where a plugin finds its endpoints, so that its
    /// command lines have them. `--endpoints-file` is Usher's own.
    pub(super) fn new(
        settings: &ServeSettings,
        plugin: Option<&FileDiscoveryParams>,
        declared: impl FnOnce() -> String,
    ) -> Result<Option<Self>, RunError> {
        let pool = &settings.pool;
        let twice = |one: &str, other: &str| {
            Err(RunError::Config(format!(
                "endpoints would come from {one} and from {other}; keep one of the two"
            )))
        };
        Ok(match (&settings.endpoints_file, plugin) {
            (Some(path), Some(_)) => {
                return twice(&format!("--endpoints-file {}", path.display()), &declared());
            }
            (Some(path), None) => {
                if let Some(labels) = &pool.endpoint_selector {
                    let file = format!("--endpoints-file {}", path.display());
                    return twice(&file, &format!("--endpoint-selector {labels}"));
                }
                Some(Self::File(FileDiscovery::new(path, true)))
            }
            (None, Some(params)) => Some(Self::File(FileDiscovery::new(&params.path, params.watch_file))),
            (None, None) => match (&pool.endpoint_selector, &pool.name) {
                (Some(labels), _) => {
                    let ports = pool.endpoint_target_ports.clone();
                    Some(Self::Kubernetes(Membership::Selector { labels: labels.clone(), ports }))
                }
                (None, Some(_)) => Some(Self::Kubernetes(Membership::Pool)),
                (None, None) => None,
            },
        })
    }

    /// Words for a log line.
    pub(super) fn describe(&self, pool: &PoolSettings) -> String {
        match self {
            Self::File(file) => format!("file {}", file.path().display()),
            Self::Kubernetes(Membership::Pool) => {
                format!("InferencePool {}/{}", pool.namespace, pool.label())
            }
            Self::Kubernetes(Membership::Selector { labels, .. }) => {
                format!("pods {labels} in {}", pool.namespace)
            }
        }
    }

    /// Note on flags of the pool that don't say where endpoints come from. llm-d-router takes them beside a
    /// file, too.
    pub(super) fn note(&self, pool: &PoolSettings) -> Option<String> {
        let (Self::File(file), Some(_)) = (self, &pool.name) else { return None };
        let path = file.path().display();
        Some(format!("--pool-name only names the pool in metrics; endpoints come from {path}"))
    }

    /// Returns `true` if endpoints come from a file.
    pub(super) fn is_file(&self) -> bool {
        matches!(self, Self::File(_))
    }
}

/// Parts of the server for which endpoints are found.
pub(super) struct Parts<'a> {
    pub(super) settings: &'a ServeSettings,
    pub(super) pool: &'a Pool,
    pub(super) health: &'a Arc<HealthState>,
    /// The time in which this replica may act on the cluster.
    pub(super) term: &'a Arc<Term>,
    /// Hears the labels of the pool's pods.
    pub(super) selector: watch::Sender<Option<String>>,
    pub(super) registry: &'a Registry,
    /// Replicas that don't lead know the endpoints, too.
    pub(super) warm: bool,
    /// Cancelled at the first wish to stop.
    pub(super) stopping: CancellationToken,
}

/// Starts to find endpoints, and says which cluster they are found in, if any. Without an
/// origin, somebody else finds them.
///
/// # Errors
/// Returns an error if a file can't be used, or no API server is configured.
pub(super) async fn start(
    origin: Option<Origin>,
    parts: Parts<'_>,
    background: &mut Background,
) -> Result<Option<Cluster>, RunError> {
    let (store, health) = (&parts.pool.store, parts.health);
    let shutdown = background.shutdown.clone();
    match origin {
        Some(Origin::Kubernetes(membership)) => {
            let cluster = cluster::connect().await.map_err(|error| RunError::Config(error.to_string()))?;
            kubernetes(cluster.clone(), membership, &parts, background)?;
            return Ok(Some(cluster));
        }
        Some(Origin::File(file)) => {
            let current = IntGauge::new(
                "usher_endpoints_file_current",
                "1 while the endpoints file is in use; 0 while an older version is, because the file is missing, empty or invalid.",
            )?;
            let current = crate::metrics::register(parts.registry, current, None)?;
            let mut file = file.allow_empty(parts.settings.allow_empty_endpoints).report_to(current);
            file.load_into(store)?;
            background.tasks.spawn(file.watch(Arc::clone(store), shutdown));
        }
        None => {}
    }
    health.set_synced(true);
    // Only a pool in Kubernetes names a protocol; a file has none to disagree with.
    health.set_protocols_match(true);
    let endpoints = store.snapshot().endpoints().len();
    tracing::info!(endpoints, "ready");
    Ok(None)
}

fn kubernetes(
    cluster: Cluster,
    membership: Membership,
    parts: &Parts<'_>,
    background: &mut Background,
) -> Result<(), RunError> {
    let selector = parts.selector.clone();
    let pool = &parts.settings.pool;
    let Pool { store, clock, rules, parsers, .. } = parts.pool;
    let (leads, mut leading) = watch::channel(false);
    if pool.leader_election {
        let lease = LeaseName::of_pool(&pool.namespace, pool.label());
        let health = Arc::clone(parts.health);
        let set_leader = move |now| {
            health.set_leader(now);
            leads.send_replace(now);
        };
        let (stopping, shutdown) = (parts.stopping.clone(), background.shutdown.clone());
        let stop = async move {
            tokio::select! {
                () = stopping.cancelled() => {}
                () = shutdown.cancelled() => {}
            }
        };
        let warmth = Warmth::new(parts.health, store, clock, parts.warm);
        let fitness = move || warmth.fitness();
        let ElectionTimes { lease: lasts, renew, retry } = pool.election;
        let timing = Timing { lease: lasts, renew, retry, ..Timing::default() };
        let term = Arc::clone(parts.term);
        let replica = Replica { identity: identity(pool), pod: own_pod(pool), fitness, timing, term };
        background.tasks.spawn(elect(cluster.clone(), lease, replica, clock.clone(), stop, set_leader));
    }
    let name = PoolName {
        group: pool.group.clone(),
        namespace: pool.namespace.clone(),
        name: pool.label().to_owned(),
    };
    let (health, parsers, seen) = (Arc::clone(parts.health), parsers.clone(), Arc::clone(store));
    let mut ready = false;
    let report = move |status: PoolStatus| {
        let protocol = status.protocol.as_ref();
        let matching = understood(protocol, &parsers);
        if !matching && health.view().protocols_match {
            let parsers: Vec<&str> = parsers.iter().map(|parser| parser.plugin_type()).collect();
            tracing::error!(
                protocol = protocol.map(AppProtocol::name),
                parsers = parsers.join(", "),
                "a parser of the configuration does not understand the pool's appProtocol; change the pool's, or take the parser out"
            );
        }
        health.set_protocols_match(matching);
        selector.send_if_modified(|known| {
            let is_new = *known != status.selector;
            known.clone_from(&status.selector);
            is_new
        });
        health.set_synced(status.synced);
        if status.synced && !std::mem::replace(&mut ready, true) {
            let endpoints = seen.snapshot().endpoints().len();
            tracing::info!(endpoints, "ready");
        }
    };
    let (store, rules) = (Arc::clone(store), Arc::clone(rules));
    let discovery = KubernetesDiscovery::new(cluster, name, membership, store, rules, clock, report);
    parts.registry.register(Box::new(discovery.metrics()?))?;
    let waits = pool.leader_election && !parts.warm;
    let run = async move {
        // The sender is gone where nobody is elected, or when this process ends.
        if !waits || leading.wait_for(|leads| *leads).await.is_ok() {
            discovery.run().await;
        }
    };
    background.run(run);
    Ok(())
}

/// Returns `true` if every parser understands what the pool's pods speak. A parser that
/// reads gRPC needs HTTP/2; the one that reads nothing understands everything.
fn understood(protocol: Option<&AppProtocol>, parsers: &[ParserKind]) -> bool {
    match protocol {
        None | Some(AppProtocol::H2c) => true,
        Some(AppProtocol::Http) => !parsers.iter().any(|parser| parser.needs_http2()),
        Some(AppProtocol::Other(_)) => parsers.iter().all(|parser| *parser == ParserKind::PassThrough),
    }
}

/// The name of the pod that this runs in, or of whatever else it is.
pub(super) fn place(pool: &PoolSettings) -> String {
    let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    // A pod's host name is its own name, unless it says otherwise.
    pool.pod.clone().unwrap_or_else(host)
}

/// A name that no other replica has, nor this one after a restart.
fn identity(pool: &PoolSettings) -> String {
    format!("{}_{:016x}", place(pool), rand::random::<u64>())
}

/// The pod that this may run in: namespace and name. It is looked for where the rights are,
/// which is where pickers run.
pub(super) fn own_pod(pool: &PoolSettings) -> Option<(String, String)> {
    let place = place(pool);
    (!place.is_empty()).then(|| (pool.namespace.clone(), place))
}

impl From<FileError> for RunError {
    fn from(error: FileError) -> Self {
        Self::Config(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_parser_needs_http2() {
        use AppProtocol::{H2c, Http};
        use ParserKind::{OpenAi, PassThrough, VertexAi, VllmGrpc};
        let other = AppProtocol::Other("h3".to_owned());
        // protocol, parsers, understood
        let table: [(Option<&AppProtocol>, &[ParserKind], bool); 8] = [
            (None, &[VllmGrpc], true),
            (Some(&Http), &[OpenAi, PassThrough], true),
            (Some(&H2c), &[OpenAi, PassThrough], true),
            (Some(&Http), &[OpenAi, VllmGrpc], false),
            (Some(&Http), &[VertexAi], false),
            (Some(&H2c), &[VllmGrpc, VertexAi], true),
            (Some(&other), &[OpenAi], false),
            (Some(&other), &[PassThrough], true),
        ];
        for (protocol, parsers, expected) in table {
            assert_eq!(understood(protocol, parsers), expected, "{protocol:?} {parsers:?}");
        }
    }
}
