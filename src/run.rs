//! Puts the parts together and runs them: the server as a whole.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use futures_util::FutureExt;
use futures_util::future::join_all;
use prometheus::Registry;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::settings::{ConfigSource, MemoryBudget, MemorySettings, ServeSettings, SickPodSettings};
use crate::config::{self, EndpointPickerConfig};
use crate::discovery::{FileDiscovery, FileError};
use crate::endpoints::health::{HealthParams, Ward, WardMetrics};
use crate::endpoints::{CachedLocator, Clock, PodLocator, Store, StoreLocator};
use crate::extproc::call::{Calls, MessageLimits};
use crate::extproc::exchange::Shared;
use crate::extproc::health::HealthState;
use crate::extproc::listen::Listeners;
use crate::extproc::metrics::ExtProcMetrics;
use crate::extproc::parsing::Parsing;
use crate::extproc::server::{Ended, Server, ServerOptions, StartError};
use crate::extproc::service::ProcessCall;
use crate::extproc::stop::Stops;
use crate::extproc::workers::ConnectionMetrics;
use crate::flow::{Attempts, Dispatcher, Gate, GateCollector, GateMetrics, Policy, keep_moving};
use crate::memory::{self, Budget, Sheds, cgroup};
use crate::metrics::{self, Timings};
use crate::observe::counters::{Kind, Number};
use crate::observe::endpoints::Attributes;
use crate::observe::freshness::FreshnessCollector;
use crate::observe::http::{HttpServer, Routes};
use crate::observe::{endpoints, pool};
use crate::request::Parsers;
use crate::schedule::registry::{MetricsSource, Pipeline};
use crate::schedule::waiting::Waiting;
use crate::schedule::{Record, SchedulerMetrics, State};
use crate::scrape::{Engines, ScrapeConfig, ScrapeMetrics, Scraper};

/// How often what is kept for endpoints that are gone is dropped.
const FORGET_INTERVAL: std::time::Duration = std::time::Duration::from_secs(30);

/// Time for background tasks to end. One may be reading from a slow file system.
const BACKGROUND_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// Why a server did not start, or did not end well. One line: what, where, what to do.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The settings or the configuration are wrong.
    #[error("{0}")]
    Config(String),
    /// Something outside failed.
    #[error("{0}")]
    Failed(String),
    /// A second stop came while streams were open.
    #[error("stopped twice, open streams were closed; one signal lets them finish")]
    Forced,
}

impl From<StartError> for RunError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Tls(_) => Self::Config(error.to_string()),
            StartError::System(_) => Self::Failed(error.to_string()),
        }
    }
}

impl From<prometheus::Error> for RunError {
    fn from(error: prometheus::Error) -> Self {
        Self::Failed(format!("cannot register metrics: {error}"))
    }
}

impl From<FileError> for RunError {
    fn from(error: FileError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<std::io::Error> for RunError {
    fn from(error: std::io::Error) -> Self {
        StartError::System(error).into()
    }
}

/// A configuration that has been read, and everything else a server is made of
/// before it listens.
pub struct Setup {
    settings: ServeSettings,
    pipeline: Pipeline,
    registry: Registry,
    scheduler_metrics: SchedulerMetrics,
    state: Arc<State>,
    discovery: Option<FileDiscovery>,
    store: Arc<Store>,
    locator: Option<Arc<dyn PodLocator>>,
    ward: Option<Arc<Ward>>,
}

impl Setup {
    /// Reads the configuration that the settings name.
    ///
    /// # Errors
    /// When it can't be read or is not valid; the text has file, line and column.
    pub fn new(settings: ServeSettings) -> Result<Self, RunError> {
        let registry = Registry::new();
        let scheduler_metrics = SchedulerMetrics::register(&registry)?;
        let (name, text) = match &settings.config {
            ConfigSource::Default => (String::new(), None),
            ConfigSource::Text(text) => ("--config-text".to_owned(), Some(text.clone())),
            ConfigSource::File(path) => {
                let name = path.display().to_string();
                let text = config::source::read_file(path)
                    .map_err(|error| RunError::Config(error.in_file(&name)))?;
                (name, Some(text))
            }
        };
        let in_file = |error: config::ConfigError| RunError::Config(error.in_file(&name));
        let text = text.unwrap_or_default();
        let config = EndpointPickerConfig::parse_unless_empty(&text).map_err(in_file)?;
        let allowed = settings.allow_experimental_plugins;
        let budget = Arc::new(budget(settings.memory, cgroup::limit()));
        let state = Arc::new(State::within(Clock::start(), budget));
        let pipeline =
            Pipeline::build(config.as_ref(), allowed, &scheduler_metrics, &state).map_err(in_file)?;
        let discovery = match (&settings.endpoints_file, &pipeline.discovery) {
            (Some(path), None) => Some(FileDiscovery::new(path, true)),
            (None, Some(params)) => Some(FileDiscovery::new(&params.path, params.watch_file)),
            (Some(_), Some(_)) => {
                let text = "endpoints come from --endpoints-file and from dataLayer.discovery of the configuration; use one of them";
                return Err(RunError::Config(text.to_owned()));
            }
            (None, None) => None,
        };
        let ward = settings.sick_pods.map(|sick| watch(sick, &registry, &state)).transpose()?;
        let store = Arc::new(ward.clone().map(Store::watched).unwrap_or_default());
        let locator = None;
        Ok(Self { settings, pipeline, registry, scheduler_metrics, state, discovery, locator, store, ward })
    }

    /// The endpoints that the server knows: they are scraped, shown, kept from requests while
    /// they fail, and cleaned up after.
    /// Discovery writes them, or a locator that finds endpoints of its own.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Finds candidates with another locator than one that looks into the
    /// [store](Self::store). The cache stays in front of it.
    #[must_use]
    pub fn with_locator(mut self, locator: Arc<dyn PodLocator>) -> Self {
        self.locator = Some(locator);
        self
    }

    /// What the server was told.
    pub fn settings(&self) -> &ServeSettings {
        &self.settings
    }
}

/// Who watches how well endpoints are.
fn watch(settings: SickPodSettings, registry: &Registry, state: &State) -> Result<Arc<Ward>, RunError> {
    let SickPodSettings { failures, failed_scrapes, first_pause, longest_pause, successes } = settings;
    let params = HealthParams { failures, failed_scrapes, first_pause, longest_pause, successes };
    Ok(Arc::new(Ward::new(params, state.clock().clone(), WardMetrics::register(registry)?)))
}

/// The memory budget that the settings ask for, where the container has this limit.
fn budget(settings: MemorySettings, container: Option<u64>) -> Budget {
    let bytes = match settings.budget {
        MemoryBudget::Off => None,
        MemoryBudget::Container => container,
        MemoryBudget::Bytes(bytes) => Some(bytes),
    };
    match bytes {
        Some(bytes) => Budget::of_process(bytes, settings.prefix_index),
        None => Budget::unlimited(settings.prefix_index),
    }
}

/// What runs beside the server, on its runtime.
#[derive(Default)]
struct Background {
    /// Cancelled: `tasks` end.
    shutdown: CancellationToken,
    tasks: JoinSet<()>,
    scrapers: Vec<Scraper>,
    pages: Vec<HttpServer>,
}

impl Background {
    /// Ends everything and waits until it has ended. What doesn't end by itself in time
    /// is aborted.
    async fn end(self) {
        let Self { shutdown, mut tasks, scrapers, pages } = self;
        shutdown.cancel();
        let pages = join_all(pages.into_iter().map(HttpServer::stop));
        let scrapers = join_all(scrapers.into_iter().map(Scraper::shutdown));
        let finished = async {
            let finish = async { while tasks.join_next().await.is_some() {} };
            if tokio::time::timeout(BACKGROUND_TIMEOUT, finish).await.is_err() {
                tracing::warn!(tasks = tasks.len(), "background tasks did not end in time");
                tasks.shutdown().await;
            }
        };
        tokio::join!(pages, scrapers, finished);
    }
}

/// Runs a server until it is told to stop. All its threads and tasks have ended when
/// this returns; after an error at the start, worker threads may still be ending.
///
/// # Errors
/// When there is nowhere to find endpoints, the endpoints file can't be used, or
/// the system refuses a thread or a socket.
pub async fn run(setup: Setup, listeners: Listeners, mut stops: Stops) -> Result<(), RunError> {
    let mut background = Background::default();
    let result = serve(setup, listeners, &mut stops, &mut background).await;
    background.end().await;
    if let Ok(ended) = &result {
        tracing::info!(?ended, "stopped");
    }
    match result? {
        Ended::Gracefully => Ok(()),
        Ended::Forced => Err(RunError::Forced),
    }
}

/// Starts everything, and serves until told to stop. What goes on after that is in
/// `background`.
async fn serve(
    setup: Setup,
    listeners: Listeners,
    stops: &mut Stops,
    background: &mut Background,
) -> Result<Ended, RunError> {
    let Setup { settings, pipeline, registry, scheduler_metrics, state, discovery, locator, store, ward } =
        setup;
    if discovery.is_none() && locator.is_none() {
        let text = "no endpoints: this version finds them in a file only; give --endpoints-file FILE, or a file-discovery plugin under dataLayer.discovery";
        return Err(RunError::Config(text.to_owned()));
    }
    let clock = state.clock().clone();
    let attempts = Arc::new(Attempts::register(&registry)?);
    let record = if settings.emit_endpoint_scores { Record::Scores } else { Record::No };
    let locator = locator
        .unwrap_or_else(|| Arc::new(StoreLocator::new(Arc::clone(&store), settings.disable_subset_filter)));
    let stages = pipeline.stages;
    let (scheduler, max_age) = (pipeline.scheduler, settings.metrics_staleness);
    let policy = Policy { scheduler, stages: Arc::clone(&stages), max_age, record };
    let gate = pipeline.waiting.as_ref().map(|waiting| gate(waiting, &settings, &clock, &registry));
    let locator =
        CachedLocator::new(locator, clock.clone(), settings.locator.ttl, settings.locator.max_subsets);
    let mut dispatcher = Dispatcher::new(locator, policy, clock.clone(), Arc::clone(&attempts));
    if let Some(ward) = ward {
        dispatcher = dispatcher.watched(ward);
    }
    let dispatcher = Arc::new(match gate.transpose()? {
        Some(gate) => {
            // A gate is dropped with its dispatcher, whatever the budget does.
            state.budget().shed_with(Arc::downgrade(&gate) as Weak<dyn Sheds>);
            dispatcher.with_gate(gate)
        }
        None => dispatcher,
    });
    let shared = Arc::new(Shared {
        parsers: Parsers::new(&pipeline.parsers),
        max_request_body_bytes: settings.limits.max_request_body,
        budget: Arc::clone(state.budget()),
        stages,
        metrics: ExtProcMetrics::register(&registry, settings.stream_metrics)?,
        parsing: Parsing::new(&scheduler_metrics),
    });
    let attributes = attributes(&pipeline.sources);
    register_collectors(&settings, &store, &clock, &dispatcher, &attributes, state.budget(), &registry)?;

    let limits =
        MessageLimits { receive: settings.limits.max_recv_message, send: settings.limits.max_send_message };
    let processing = Arc::clone(&dispatcher);
    let service = Calls::new(move || ProcessCall::new(&shared, &processing), limits);
    // Without leader election in this version, every replica serves.
    let health = Arc::new(HealthState::new(false));
    let options = ServerOptions {
        threads: settings.worker_threads,
        tls: settings.tls.clone(),
        drain_timeout: settings.drain_timeout,
    };
    let Listeners { extproc, health: health_port, metrics: metrics_port, admin } = listeners;
    let server = Server::start(extproc, health_port, service, Arc::clone(&health), options)?;
    register_connections(&server.connection_metrics(), &registry)?;
    if let Some(gate) = dispatcher.gate() {
        let moving = keep_moving(Arc::clone(&dispatcher), Arc::clone(&store));
        background.tasks.spawn(background.shutdown.clone().run_until_cancelled_owned(moving).map(|_| ()));
        let (gate, finishing) = (Arc::clone(gate), server.finishing());
        let closing = async move {
            finishing.cancelled().await;
            gate.close();
        };
        background.tasks.spawn(background.shutdown.clone().run_until_cancelled_owned(closing).map(|_| ()));
    }

    let from_file = discovery.is_some();
    if let Some(mut discovery) = discovery {
        discovery.load_into(&store)?;
        background.tasks.spawn(discovery.watch(Arc::clone(&store), background.shutdown.clone()));
    }
    background.scrapers = start_scrapers(&settings, &pipeline.sources, &store, &clock, &registry)?;
    let memory_budget = Arc::clone(state.budget());
    let forgetting = forget(attempts, Arc::clone(&dispatcher), Arc::clone(&store), state);
    background.tasks.spawn(background.shutdown.clone().run_until_cancelled_owned(forgetting).map(|_| ()));

    let routes = Routes::new().with_metrics(move || metrics::render(&registry));
    background.pages.push(HttpServer::start(metrics_port, routes)?);
    if let Some(admin) = admin {
        let known = Arc::clone(&store);
        let routes = Routes::new()
            .with_page("/endpoints", "application/json", move || endpoints::page(&known, &clock, &attributes))
            .with_index();
        background.pages.push(HttpServer::start(admin, routes)?);
    }
    tell(&settings, &pipeline.notes, from_file);
    tell_memory(&settings, memory_budget.limit());
    health.set_synced(true);
    health.set_plugins_ready(true);
    // Only a pool in Kubernetes names a protocol; a file has none to disagree with.
    health.set_protocols_match(true);
    let endpoints = store.snapshot().endpoints().len();
    tracing::info!(endpoints, version = env!("CARGO_PKG_VERSION"), "ready");
    Ok(server.run(stops).await)
}

/// Says once what the user should know about this start.
fn tell(settings: &ServeSettings, notes: &[String], from_file: bool) {
    for note in notes {
        tracing::info!(note, "configuration");
    }
    for flag in settings.unused_flags(from_file) {
        tracing::warn!(flag = flag.flag, reason = flag.reason, "flag has no effect");
    }
}

/// Says what the memory budget leaves for bodies.
fn tell_memory(settings: &ServeSettings, limit: Option<u64>) {
    let Some(bytes) = limit else { return };
    tracing::info!(bytes, "memory budget");
    if settings.limits.max_request_body as u64 > bytes {
        tracing::warn!(
            max_request_body_bytes = settings.limits.max_request_body,
            bytes,
            "the largest request body does not fit into the memory budget; raise --memory-budget or lower --max-request-body-bytes"
        );
    }
}

fn start_scrapers(
    settings: &ServeSettings,
    sources: &[MetricsSource],
    store: &Arc<Store>,
    clock: &Clock,
    registry: &Registry,
) -> Result<Vec<Scraper>, RunError> {
    let metrics = ScrapeMetrics::register(registry)?;
    let mut scrapers = Vec::new();
    let mut healthy = false;
    for source in sources.iter().filter(|source| source.models || !source.engines.is_empty()) {
        let (tick, engines) = (settings.refresh_metrics_interval, source.engines.clone());
        let config = ScrapeConfig::new(&source.params, tick, engines, source.models);
        let config = config.map_err(RunError::Config)?;
        // The first source of metrics says how well endpoints are.
        let config = ScrapeConfig { keeps_health: config.keeps_health && !healthy, ..config };
        healthy |= config.keeps_health;
        scrapers.push(Scraper::start(Arc::clone(store), clock.clone(), config, &metrics));
    }
    Ok(scrapers)
}

/// What extractors add to what every engine reports, each once.
fn attributes(sources: &[MetricsSource]) -> Attributes {
    let mut attributes = Attributes::new();
    for (id, name) in sources.iter().flat_map(|source| &source.engines).flat_map(Engines::attributes) {
        if attributes.iter().all(|(known, _)| *known != id) {
            attributes.push((id, name.to_owned()));
        }
    }
    attributes
}

/// Where requests wait, with its metrics.
fn gate(
    waiting: &Waiting,
    settings: &ServeSettings,
    clock: &Clock,
    registry: &Registry,
) -> prometheus::Result<Arc<Gate>> {
    let metrics = GateMetrics::register(registry, &pool_name(settings))?;
    let shows_after = settings.refresh_metrics_interval + settings.metrics_staleness;
    let gate = Gate::new(waiting, clock.clone(), shows_after, metrics);
    registry.register(Box::new(GateCollector::new(Arc::clone(&gate))?))?;
    Ok(gate)
}

/// The pool's name in metrics.
fn pool_name(settings: &ServeSettings) -> String {
    settings.pool.name.clone().unwrap_or_else(|| "epp".to_owned())
}

fn register_collectors(
    settings: &ServeSettings,
    store: &Arc<Store>,
    clock: &Clock,
    dispatcher: &Arc<Dispatcher>,
    attributes: &Attributes,
    budget: &Arc<Budget>,
    registry: &Registry,
) -> prometheus::Result<()> {
    let (name, max_age) = (pool_name(settings), settings.metrics_staleness);
    let collector = pool::PoolCollector::new(Arc::clone(store), clock.clone(), max_age, name.clone())?;
    registry.register(Box::new(collector))?;
    let (known, time) = (Arc::clone(store), clock.clone());
    let freshness = FreshnessCollector::new(known, time, max_age, name, attributes.clone())?;
    registry.register(Box::new(freshness))?;
    register_locator(dispatcher, registry)?;
    register_memory(budget, registry)?;
    metrics::register(
        registry,
        pool::build_info()?,
        Some(metrics::Legacy {
            name: "inference_extension_info",
            labels: &[("commit", "commit"), ("build_ref", "build_ref")],
        }),
    )?;
    let process = prometheus::process_collector::ProcessCollector::for_self();
    registry.register(Box::new(process))
}

fn register_locator(dispatcher: &Arc<Dispatcher>, registry: &Registry) -> prometheus::Result<()> {
    use Kind::{Counter, Gauge};
    let numbers: [(&str, &str, Kind, fn(&CachedLocator) -> u64); 5] = [
        ("usher_locator_hits_total", "Look-ups of candidates that the cache answered.", Counter, |l| {
            l.metrics().hits()
        }),
        ("usher_locator_misses_total", "Look-ups of candidates that asked the locator.", Counter, |l| {
            l.metrics().misses.load(Relaxed)
        }),
        (
            "usher_locator_shared_total",
            "Look-ups of candidates that waited for what another had asked for.",
            Counter,
            |l| l.metrics().shared.load(Relaxed),
        ),
        (
            "usher_locator_evicted_total",
            "Subsets of endpoints that left the cache before their time, to make room.",
            Counter,
            |l| l.metrics().evicted.load(Relaxed),
        ),
        ("usher_locator_subsets", "Subsets of endpoints in the cache.", Gauge, |l| l.keys() as u64),
    ];
    for (name, help, kind, read) in numbers {
        let dispatcher = Arc::clone(dispatcher);
        let number = Number::new(name, help, kind, move || read(dispatcher.locator()))?;
        registry.register(Box::new(number))?;
    }
    let age = dispatcher.locator().metrics().age.clone();
    let help = "How old candidates were when a look-up found them in the cache.";
    registry.register(Box::new(Timings::of("usher_locator_age_seconds", help, age)?))
}

fn register_memory(budget: &Arc<Budget>, registry: &Registry) -> prometheus::Result<()> {
    use Kind::{Counter, Gauge};
    use memory::Kind::{Bodies, PrefixIndex, Records};
    let numbers: [(&str, &str, Kind, fn(&Budget) -> u64); 6] = [
        (
            "usher_memory_limit_bytes",
            "What everything that counts against the memory budget may take; 0 without a budget.",
            Gauge,
            |budget| budget.limit().unwrap_or(0),
        ),
        ("usher_memory_bodies_bytes", "What bodies of requests take of it.", Gauge, |budget| {
            budget.used(Bodies)
        }),
        ("usher_memory_prefix_index_bytes", "What indexes of prefixes take of it.", Gauge, |budget| {
            budget.used(PrefixIndex)
        }),
        ("usher_memory_records_bytes", "What records of decisions take of it.", Gauge, |budget| {
            budget.used(Records)
        }),
        ("usher_memory_refused_total", "Requests refused for want of memory.", Counter, Budget::refused),
        (
            "usher_memory_shed_bytes_total",
            "Bodies of requests that waited and were refused to make room.",
            Counter,
            Budget::shed,
        ),
    ];
    for (name, help, kind, read) in numbers {
        let budget = Arc::clone(budget);
        registry.register(Box::new(Number::new(name, help, kind, move || read(&budget))?))?;
    }
    Ok(())
}

fn register_connections(metrics: &Arc<ConnectionMetrics>, registry: &Registry) -> prometheus::Result<()> {
    let counts: [(&str, &str, fn(&ConnectionMetrics) -> &AtomicU64); 4] = [
        ("usher_connections_accepted_total", "Connections that a worker thread took.", |m| &m.accepted),
        ("usher_connections_refused_total", "Connections closed at once, because too many were open.", |m| {
            &m.refused
        }),
        ("usher_connections_unopened_total", "Connections that did not start HTTP/2, or not in time.", |m| {
            &m.unopened
        }),
        (
            "usher_connections_broken_total",
            "Connections that broke HTTP/2, went away or no longer answered.",
            |m| &m.broken,
        ),
    ];
    for (name, help, count) in counts {
        let metrics = Arc::clone(metrics);
        let number = Number::new(name, help, Kind::Counter, move || count(&metrics).load(Relaxed))?;
        registry.register(Box::new(number))?;
    }
    Ok(())
}

/// Drops what is kept for endpoints that are gone.
async fn forget(attempts: Arc<Attempts>, dispatcher: Arc<Dispatcher>, store: Arc<Store>, state: Arc<State>) {
    let mut ticks = tokio::time::interval(FORGET_INTERVAL);
    loop {
        ticks.tick().await;
        let snapshot = store.snapshot();
        attempts.retain(&snapshot);
        state.sweep(&snapshot, state.clock().now_ms());
        dispatcher.sweep();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_the_containers_unless_a_flag_says_otherwise() {
        const GI: u64 = 1 << 30;
        let limit = |asked, container| {
            budget(MemorySettings { budget: asked, prefix_index: None }, container).limit()
        };
        assert_eq!(limit(MemoryBudget::Container, Some(GI)), Some(GI / 4 * 3));
        assert_eq!(limit(MemoryBudget::Container, None), None);
        assert_eq!(limit(MemoryBudget::Off, Some(GI)), None);
        assert_eq!(limit(MemoryBudget::Bytes(2 * GI), Some(GI)), Some(GI / 2 * 3));
    }
}
