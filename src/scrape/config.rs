//! Settings of a source's scrapes.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use http::uri::PathAndQuery;

use super::engine::Engines;
use super::metrics::SOURCE_TYPE;
use super::params::{SourceKind, SourceParams};
use super::tls::TlsClient;

/// Lists of models are short.
const MAX_MODELS_BYTES: usize = 1 << 20;

/// Settings of the scrapes of one source of metrics.
#[derive(Clone, Debug)]
pub struct ScrapeConfig {
    /// Time between two scrapes of an endpoint. Default 50 ms, as llm-d-router;
    /// less than [`MIN_INTERVAL`](Self::MIN_INTERVAL) counts as that.
    pub interval: Duration,
    /// Time for a whole scrape, connecting included. Default 1 s, as llm-d-router.
    pub timeout: Duration,
    /// The longest time that a failing endpoint is left alone. Default 1 s:
    /// a pod that comes back is known again within a second, and one that
    /// doesn't costs a twentieth of the scrapes of a healthy one.
    pub max_backoff: Duration,
    /// A longer page is a failure. Default 16 MiB: pages of large engines have
    /// a tenth of one.
    pub max_body_bytes: usize,
    /// Path of the page. Default `/metrics`.
    pub path: PathAndQuery,
    /// Port of the page; default that of the endpoint.
    pub port: Option<u16>,
    /// Over TLS; default without.
    pub tls: Option<TlsClient>,
    /// Ask for compressed pages. Inflating one costs more than it saves on any network
    /// that a pool is on, so the default is not to. A server that compresses unasked is
    /// understood.
    pub gzip: bool,
    /// Ask for the metrics in use only, which servers with Python's prometheus_client
    /// understand. One that doesn't is asked for whole pages. Default no.
    pub select_metrics: bool,
    /// The page is on the node of the endpoint. Default no.
    pub on_node: bool,
    /// Type of the plugin, for metrics and the log. Default `metrics-data-source`.
    pub source_type: &'static str,
    /// The pages say how well the endpoints are. Default yes; of several sources one.
    pub keeps_health: bool,
    /// `true`: histograms of times are read, too, once a second. Default no: only what learns latencies
    /// needs them. May change at any time.
    pub times: Arc<AtomicBool>,
    /// Read when the engine's process started and whether it sleeps. Default no: only who follows KV events needs that.
    pub state: bool,
    /// Read pages as lists of models. Default no.
    pub models: bool,
    /// Metrics to read, by engine. Several extractors read a page one after the other: of a
    /// field that two of them read, the last one's value counts. Default one, of the built-in
    /// engines.
    pub engines: Vec<Engines>,
}

impl ScrapeConfig {
    /// The shortest interval. Engines compute a page on every scrape, so more
    /// would cost them more than it tells.
    pub const MIN_INTERVAL: Duration = Duration::from_millis(50);
}

impl Default for ScrapeConfig {
    fn default() -> Self {
        Self {
            interval: Self::MIN_INTERVAL,
            timeout: Duration::from_secs(1),
            max_backoff: Duration::from_secs(1),
            max_body_bytes: 16 << 20,
            path: PathAndQuery::from_static("/metrics"),
            port: None,
            tls: None,
            gzip: false,
            select_metrics: false,
            on_node: false,
            source_type: SOURCE_TYPE,
            keeps_health: true,
            times: Arc::default(),
            state: false,
            models: false,
            engines: vec![Engines::default()],
        }
    }
}

impl ScrapeConfig {
    /// The parameters in a configuration. `tick`: the interval of sources that name none.
    ///
    /// # Errors
    /// Returns an error for an invalid path, and for TLS files that can't be used.
    pub fn new(
        params: &SourceParams,
        tick: Duration,
        engines: Vec<Engines>,
        models: bool,
    ) -> Result<Self, String> {
        let source_type = params.kind.type_name();
        let path = &params.path;
        let path = path.parse().map_err(|error| format!("path {path:?} of {source_type}: {error}"))?;
        let tls = params.https.then(|| TlsClient::load(&params.tls)).transpose();
        let tls = tls.map_err(|error| format!("TLS of {source_type}: {error}"))?;
        let defaults = Self::default();
        Ok(Self {
            interval: params.own_interval().unwrap_or(tick),
            max_body_bytes: if models { MAX_MODELS_BYTES } else { defaults.max_body_bytes },
            path,
            port: params.port,
            tls,
            gzip: params.gzip,
            select_metrics: params.select_metrics,
            on_node: params.on_node,
            source_type,
            keeps_health: params.kind == SourceKind::Metrics,
            models,
            engines,
            ..defaults
        })
    }
}
