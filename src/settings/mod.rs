//! Settings of `usher serve` as plain values: the flags after parsing and
//! validation.

mod state_store;
mod tracing;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

pub use self::state_store::{ExchangeSettings, StateStoreSettings, StoreAddress, StorePassword};
pub use self::tracing::{OtlpEndpoint, OtlpSettings, SamplerSettings, Secret, TracingSettings};

/// Settings that a server needs before it reads its configuration.
#[derive(Debug, Clone)]
pub struct ServeSettings {
    /// Addresses to listen on.
    pub listen: ListenSettings,
    /// TLS of the ext_proc port; `None` serves plain text.
    pub tls: Option<TlsSettings>,
    /// Bounds on messages and bodies.
    pub limits: MessageLimits,
    /// Limits of the process' memory.
    pub memory: MemorySettings,
    /// Threads that serve connections, at least 1.
    pub worker_threads: usize,
    /// Time for which connections are still accepted after SIGTERM. Zero skips the window.
    pub drain_timeout: Duration,
    /// Source of the EndpointPickerConfig.
    pub config: ConfigSource,
    /// Allow plugins of alpha stability.
    pub allow_experimental_plugins: bool,
    /// A file of endpoints to watch, without a discovery plugin in the configuration.
    pub endpoints_file: Option<PathBuf>,
    /// A file of endpoints that lists none any more empties the pool.
    pub allow_empty_endpoints: bool,
    /// The pool this picker serves.
    pub pool: PoolSettings,
    /// Ignore the gateway's subset hint.
    pub disable_subset_filter: bool,
    /// Time for which candidates are kept that were found for a subset, and for how many.
    pub locator: LocatorSettings,
    /// Send the scores of the endpoints to the gateway.
    pub emit_endpoint_scores: bool,
    /// Settings of outlier ejection; `None`: off.
    pub outliers: Option<OutlierSettings>,
    /// Pause between two scrapes of one endpoint, at least 50 ms.
    pub refresh_metrics_interval: Duration,
    /// Shorter pause that was asked for; `None`: `refresh_metrics_interval` is what was asked for.
    pub raised_refresh_interval: Option<Duration>,
    /// Age from which an endpoint's metrics no longer count.
    pub metrics_staleness: Duration,
    /// Count and time ext_proc streams.
    pub stream_metrics: bool,
    /// Count by OpenTelemetry's conventions for generative AI, too.
    pub gen_ai_metrics: bool,
    /// Protection of the picker's metrics: which clients may read them.
    pub metrics_port: MetricsPortSettings,
    /// File of capacity policies; `None`: nobody says how many pods there should be.
    pub capacity_policy: Option<PathBuf>,
    /// Server that answers the queries that policies name; `None`: there is none.
    pub prometheus: Option<PrometheusSettings>,
    /// Follow the CapacityPolicies of the pool's namespace; not beside `capacity_policy`.
    pub capacity_policies: bool,
    /// `true` if there is never more than one replica, so that it may act without an election.
    pub capacity_single_replica: bool,
    /// Store through which replicas share state; `None`: the configuration may name one.
    pub state_store: Option<StateStoreSettings>,
    /// Longest time for which the start waits for what other replicas know; zero: it doesn't.
    pub warm_up_timeout: Duration,
    /// Decisions that are kept to explain them; 0: none.
    pub decision_records: usize,
    /// Recording of decisions and outcomes in a file; `None`: there is none.
    pub recording: Option<RecordingSettings>,
    /// Level and format of the log.
    pub log: LogSettings,
    /// Traces.
    pub tracing: TracingSettings,
    /// Flags that were given, parsed, and do nothing (yet).
    pub unused: Vec<UnusedFlag>,
}

impl ServeSettings {
    /// The flags that were given and have no effect, for the log: one entry per flag.
    ///
    /// With file discovery the flags that name a pool only label metrics, as its users
    /// expect, and are not in the list.
    pub fn unused_flags(&self, file_discovery: bool) -> impl Iterator<Item = &UnusedFlag> {
        self.unused.iter().filter(move |flag| file_discovery || !flag.with_a_file)
    }
}

/// Limits of the cache of endpoints that a request may go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocatorSettings {
    /// Time for which the endpoints of a subset are kept when none comes or goes; zero keeps none.
    pub ttl: Duration,
    /// Subsets that are kept at most, at least 1.
    pub max_subsets: usize,
}

/// A flag that was given and has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusedFlag {
    /// The flag with its dashes.
    pub flag: &'static str,
    /// Reason that it has none.
    pub reason: &'static str,
    /// `true` if that is so only when endpoints come from a file.
    pub with_a_file: bool,
}

/// Addresses to listen on. Port 0 takes a free port.
#[derive(Debug, Clone)]
pub struct ListenSettings {
    /// Address of the ext_proc, health and metrics ports; `None` is every interface,
    /// IPv6 and IPv4.
    pub bind: Option<IpAddr>,
    /// ext_proc.
    pub grpc_port: u16,
    /// gRPC health in plain text.
    pub health_port: u16,
    /// Prometheus metrics over HTTP.
    pub metrics_port: u16,
    /// Admin server; `None` is none.
    pub admin: Option<SocketAddr>,
    /// `true` if the admin address was given. A default one that is busy is no reason not
    /// to start: several pickers may share a host.
    pub admin_given: bool,
    /// KEDA's external scaler; `None` is none.
    pub keda: Option<SocketAddr>,
}

/// Bounds on messages and bodies; sizes are in bytes.
#[derive(Debug, Clone, Copy)]
pub struct MessageLimits {
    /// Largest gRPC message that is read.
    pub max_recv_message: usize,
    /// Largest gRPC message that is sent.
    pub max_send_message: usize,
    /// Largest HTTP request body that is collected; a larger one is answered with 413.
    pub max_request_body: usize,
    /// Time without progress after which an incomplete request body is answered with 408; `None`
    /// is no bound.
    pub body_idle_timeout: Option<Duration>,
}

/// Limits of the process' memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemorySettings {
    /// The whole process.
    pub budget: MemoryBudget,
    /// Bytes that the indexes of prefixes may take of it, no more than half of what is counted;
    /// `None` for a third of that, and 512 MiB without a budget.
    pub prefix_index: Option<u64>,
}

/// The memory budget of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryBudget {
    /// The memory limit of the container, where it has one.
    Container,
    /// None.
    Off,
    /// Size in bytes.
    Bytes(u64),
}

/// Source of the EndpointPickerConfig.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigSource {
    /// The built-in default.
    Default,
    /// A file.
    File(PathBuf),
    /// The text itself.
    Text(String),
}

/// The pool this picker serves.
#[derive(Debug, Clone)]
pub struct PoolSettings {
    /// API group of the InferencePool.
    pub group: String,
    /// Namespace of the pool.
    pub namespace: String,
    /// Name of the pool.
    pub name: Option<String>,
    /// Label selector of the pods, instead of a pool.
    pub endpoint_selector: Option<String>,
    /// Ports of the pods that `endpoint_selector` finds: at most 8, in order, no duplicates.
    pub endpoint_target_ports: Vec<u16>,
    /// Take part in leader election.
    pub leader_election: bool,
    /// Times of the election.
    pub election: ElectionTimes,
    /// Name of the pod that this runs in, where the environment says so.
    pub pod: Option<String>,
}

impl PoolSettings {
    /// Name of the pool in metrics and in the lease: its own; without one, and with a label selector, that
    /// of the deployment that this is a pod of; `epp` where neither is known.
    pub fn label(&self) -> &str {
        let deployment = || {
            let pod = self.pod.as_deref().filter(|_| self.endpoint_selector.is_some())?;
            // DEPLOYMENT-REPLICASET-POD; the last two have no dashes.
            pod.rsplitn(3, '-').nth(2)
        };
        self.name.as_deref().or_else(deployment).unwrap_or("epp")
    }
}

/// Times of a leader election: `retry` < `renew` < `lease`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ElectionTimes {
    /// Time that others wait after the last renewal that they saw; whole seconds.
    pub lease: Duration,
    /// Time after its last renewal in which a leader acts on the cluster.
    pub renew: Duration,
    /// Pause between two renewals.
    pub retry: Duration,
}

/// Environment variables about the pod that this runs in.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `NAMESPACE`
    pub namespace: Option<String>,
    /// `POD_NAME`
    pub pod: Option<String>,
    /// The variables of OpenTelemetry, `OTEL_…`.
    pub otel: BTreeMap<String, String>,
}

impl Environment {
    /// Environment of this process.
    pub fn of_process() -> Self {
        let given = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let otel = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok().filter(|name| name.starts_with("OTEL_"))?;
            Some((name, value.into_string().ok()?))
        });
        Self { namespace: given("NAMESPACE"), pod: given("POD_NAME"), otel: otel.collect() }
    }
}

/// Settings of ejection and recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutlierSettings {
    /// Requests that fail in a row until an endpoint is ejected, at least 1.
    pub failures: u32,
    /// Scrapes that fail in a row until an endpoint is ejected; 0: never.
    pub failed_scrapes: u32,
    /// Shortest time without a first byte after which a request counts as failed; zero:
    /// never.
    pub first_byte: Duration,
    /// Pause before the first probe, and the shortest after one that fails.
    pub first_pause: Duration,
    /// The longest pause between two probes.
    pub longest_pause: Duration,
    /// Requests that succeed in a row until an ejected endpoint is as good as any other, at
    /// least 1.
    pub successes: u32,
}

/// TLS of the ext_proc port.
#[derive(Debug, Clone, Default)]
pub struct TlsSettings {
    /// Folder with `tls.crt` and `tls.key`; `None` makes a self-signed certificate.
    pub cert_dir: Option<PathBuf>,
    /// Certificates of the authorities that gateways' have to be signed with; `None` asks
    /// gateways for none.
    pub client_ca: Option<PathBuf>,
    /// Read the files again when they change.
    pub reload: bool,
    /// Refuse TLS 1.2.
    pub only_tls13: bool,
    /// Cipher suites of TLS 1.2, `None` for all that are considered safe. Those of
    /// TLS 1.3 can't be chosen.
    pub tls12_suites: Option<Vec<rustls::CipherSuite>>,
}

/// Protection of the metrics port.
#[derive(Debug, Clone)]
pub struct MetricsPortSettings {
    /// Ask the API server who may read, where there is one.
    pub auth: bool,
    /// TLS; `None` serves plain text.
    pub tls: Option<MetricsTlsSettings>,
}

/// TLS of the metrics port.
#[derive(Debug, Clone)]
pub struct MetricsTlsSettings {
    /// Folder with `tls.crt` and `tls.key`; `None` makes a self-signed certificate.
    pub cert_dir: Option<PathBuf>,
    /// Certificates of the authorities that clients' have to be signed with; `None` asks
    /// clients for none.
    pub client_ca: Option<PathBuf>,
}

/// A server with the query API of Prometheus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrometheusSettings {
    /// `true` if it is over TLS.
    pub tls: bool,
    /// Name or IP address; IPv6 without brackets.
    pub host: String,
    /// Port of the server.
    pub port: u16,
    /// Path before `/api/v1/query`; no slash at its end.
    pub prefix: String,
    /// PEM file of who may sign its certificate; `None`: those that the system trusts.
    pub ca_file: Option<PathBuf>,
    /// File with the bearer token that it is shown, read again for every query.
    pub token_file: Option<PathBuf>,
}

/// A recording for `usher replay`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordingSettings {
    /// The file. The one before it has `.1` behind its name.
    pub file: PathBuf,
    /// Bytes of both at most.
    pub max_bytes: u64,
}

/// Level and format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogSettings {
    /// The least severe level of our own events; other crates log warnings and errors.
    pub level: ::tracing::Level,
    /// One JSON object per line instead of text.
    pub json: bool,
}
