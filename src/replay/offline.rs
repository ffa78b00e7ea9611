//! A configuration at work without sockets, in a clock that is set from outside: as `usher serve` builds
//! it, for who replays requests ([`crate::replay`]).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use prometheus::Registry;
use rand::rngs::StdRng;
use usher_core::config::{ConfigError, EndpointPickerConfig};
use usher_core::endpoints::health::Verdict;
use usher_core::endpoints::{
    Adapters, CachedLocator, Clock, EndpointSpec, EngineTimes, Snapshot, Store, StoreLocator, SubsetHint,
    Total,
};
use usher_core::request::usage::Usage;
use usher_core::request::{Code, ParseError, Parsers, Rejection, Request, Served};
use usher_lab::replay::{BuildError, Configured, Reading, ResponseObserver, Route, Server};
use usher_lab::sim::{Dialect, Engine, Histogram};

use super::idle;
use crate::flow::{Attempts, Dispatcher, Policy as Dispatching, Routed};
use crate::registry::{Pipeline, Resolved};
use crate::schedule::latency::{Model, Report};
use crate::schedule::{Record, SchedulerMetrics, Stages, State};
use crate::scrape::{ScrapeConfig, phase};

/// The header that names who computes the prompt.
const PREFILLER: &str = "x-prefiller-host-port";

/// A pool's part of `usher serve`, without sockets.
pub struct Offline {
    dispatcher: Dispatcher,
    parsers: Parsers,
    resolved: Resolved,
    stages: Arc<Stages>,
    state: State,
    store: Arc<Store>,
    snapshot: Arc<Snapshot>,
    rng: StdRng,
    scrape_interval: Option<Duration>,
    dialect: Dialect,
}

impl Offline {
    /// Builds a configuration, or the built-in one, over these servers, numbered from 0. Returns with it
    /// what the user should know.
    ///
    /// # Errors
    /// `BuildError` if the configuration is not valid, or can't run on a simulated clock.
    pub fn new(
        config: Option<&EndpointPickerConfig>,
        servers: &[Server],
        reading: Reading,
        rng: StdRng,
    ) -> Result<(Self, Vec<String>), BuildError> {
        let registry = Registry::new();
        let state = State::new(Clock::stopped());
        let metrics = SchedulerMetrics::register(&registry)?;
        // Production may refuse plugins that are experimental; here they are looked at.
        let pipeline = Pipeline::build(config, true, &metrics, &state)?;
        if pipeline.stages.gathers() {
            let message = "a configuration that holds requests back can't be replayed";
            return Err(ConfigError::new(message).hint("leave out burst-prefix-cache-producer").into());
        }
        let store = Arc::new(Store::default());
        let stages = pipeline.stages;
        let policy = Dispatching {
            scheduler: pipeline.scheduler,
            stages: Arc::clone(&stages),
            max_age: reading.max_age,
            record: Record::No,
        };
        // Candidates are looked up when the servers change, and at no other time.
        let locator = Arc::new(StoreLocator::new(Arc::clone(&store), false));
        let locator = CachedLocator::new(locator, state.clock().clone(), Duration::MAX, 1);
        let attempts = Arc::new(Attempts::register(&registry)?);
        let polled = pipeline.sources.iter().filter(|source| !source.engines.is_empty());
        let interval = polled.map(|source| source.params.interval.unwrap_or(reading.interval)).min();
        let scrape_interval = interval.map(|interval| interval.max(ScrapeConfig::MIN_INTERVAL));
        let mut configured = Self {
            dispatcher: Dispatcher::new(locator, policy, state.clock().clone(), attempts),
            parsers: Parsers::new(&pipeline.parsers),
            resolved: pipeline.resolved,
            stages,
            state,
            snapshot: store.snapshot(),
            store,
            rng,
            scrape_interval,
            dialect: reading.dialect,
        };
        configured.set_servers(&(0..).zip(servers.iter().cloned()).collect::<Vec<_>>());
        let mut notes = pipeline.notes;
        if pipeline.flow_control.is_some() {
            notes.push(
                "flow control is left out: requests wait in the servers only, and none is refused".to_owned(),
            );
        }
        if pipeline.discovery.is_some() {
            notes.push("file-discovery is ignored, as the servers are simulated".to_owned());
        }
        let engines = pipeline.sources.iter().flat_map(|source| &source.engines);
        let endpoints = configured.snapshot.endpoints();
        let mut attributes: Vec<String> = engines
            .flat_map(|engines| endpoints.iter().map(|endpoint| engines.of(endpoint)))
            .flat_map(|engine| engine.attributes().map(str::to_owned))
            .collect();
        attributes.sort_unstable();
        attributes.dedup();
        notes.extend(attributes.iter().map(|attribute| {
            format!("attribute '{attribute}' has no value, as simulated servers have no such metric")
        }));
        Ok((configured, notes))
    }

    /// The endpoints that the servers are.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Number of the server that the sidecar is to ask for the prompt; `None` if no known one is named.
    fn prefiller(&self, routed: &Routed) -> Option<usize> {
        let header = routed.headers().iter().find(|header| &*header.name == PREFILLER)?;
        let address: SocketAddr = str::from_utf8(&header.value).ok()?.parse().ok()?;
        let endpoint = self.snapshot.at(address.ip(), address.port())?;
        number(endpoint.address())
    }
}

impl Configured for Offline {
    fn pick(
        &mut self,
        now: Duration,
        read: &mut dyn FnMut(&Parsers) -> Result<Request, ParseError>,
    ) -> Result<Route, Rejection> {
        self.state.clock().set(now);
        // In virtual time nothing happens beside a decision.
        self.state.settle();
        let mut request =
            read(&self.parsers).map_err(|error| Rejection::new(Code::BadRequest, error.to_string()))?;
        self.stages.process_headers(&mut request);
        let routed = self.dispatcher.decide_now(&request, &SubsetHint::Missing, &mut self.rng);
        let routed = routed.ok_or_else(Rejection::no_endpoints)??;
        let endpoints = self.snapshot.endpoints();
        let first = routed.decision().primary().picks.first();
        let picked = first.and_then(|pick| endpoints.get(*pick as usize));
        let server = picked.and_then(|endpoint| number(endpoint.address())).unwrap_or_default();
        Ok(Route { server, prefiller: self.prefiller(&routed), observer: Some(Box::new(Observing(routed))) })
    }

    fn set_servers(&mut self, servers: &[(usize, Server)]) {
        self.store.replace(servers.iter().map(|(number, server)| spec(server, *number)).collect());
        self.snapshot = self.store.snapshot();
        let _ = self.dispatcher.locator().locate(&SubsetHint::Missing).now_or_never();
    }

    fn set_clock(&self, now: Duration) {
        self.state.clock().set(now);
    }

    fn scrape_interval(&self) -> Option<Duration> {
        self.scrape_interval
    }

    fn first_scrape(&self, number: usize) -> Duration {
        let interval = self.scrape_interval.unwrap_or_default();
        phase(interval, u32::try_from(number).unwrap_or(u32::MAX))
    }

    fn scrape(&self, number: usize, engine: &Engine) {
        let address = address(number);
        // It may have left.
        let Some(endpoint) = self.snapshot.at(address.ip(), address.port()) else { return };
        let (state, config, load) = (engine.state(), engine.config(), endpoint.load());
        load.seen(load.sent());
        let now_ms = self.state.clock().now_ms();
        // As the server reads histograms: once a second.
        if load.waiting.read_at_ms().is_none_or(|last| last / 1000 != now_ms / 1000) {
            load.engine_times.set(times(engine, self.dialect));
        }
        load.waiting.set(state.waiting as f64, now_ms);
        load.running.set(state.running as f64, now_ms);
        load.kv_usage.set(state.kv_usage, now_ms);
        load.block_size.set(f64::from(config.block_size), now_ms);
        load.num_blocks.set(f64::from(config.num_blocks), now_ms);
        // No request asks for an adapter, so none is ever loaded.
        if load.adapters_read.read_at_ms().is_none() {
            let max = u32::try_from(config.max_loras).unwrap_or(u32::MAX);
            load.adapters.store(Some(Arc::new(Adapters { max, ..Adapters::default() })));
        }
        load.adapters_read.set(0.0, now_ms);
        load.scraped(now_ms);
    }

    fn sweep(&self) {
        self.state.sweep(&self.snapshot, self.state.clock().now_ms());
    }

    fn latency(&self) -> Option<Report> {
        Some(Model::find(&self.state)?.report())
    }

    fn idle(&self, servers: &[Server], has_targets: bool) -> Option<String> {
        idle::sentence(&self.resolved, servers, has_targets)
    }

    fn address(&self, number: usize) -> String {
        address(number).to_string()
    }
}

/// A request under way at a simulated server.
#[derive(Debug)]
struct Observing(Routed);

impl ResponseObserver for Observing {
    fn response_headers(&mut self, served: &Served, verdict: Verdict, is_stream: bool) {
        self.0.response_begins(served, verdict, is_stream);
    }

    fn first_token(&mut self) {
        self.0.first_token();
    }

    fn response_complete(&mut self, usage: &Usage) {
        self.0.response_ends(usage, 0);
    }
}

/// Builds a configuration for [`usher_lab::replay`].
///
/// # Errors
/// Same as [`Offline::new`].
pub fn build(
    config: Option<&EndpointPickerConfig>,
    servers: &[Server],
    reading: Reading,
    rng: StdRng,
) -> Result<(Box<dyn Configured>, Vec<String>), BuildError> {
    let (offline, notes) = Offline::new(config, servers, reading, rng)?;
    Ok((Box::new(offline), notes))
}

impl std::fmt::Debug for Offline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Offline").field("dispatcher", &self.dispatcher).finish_non_exhaustive()
    }
}

/// Totals of an engine's histograms, as far as this kind of server has them.
fn times(engine: &Engine, dialect: Dialect) -> EngineTimes {
    let total = |histogram: &Histogram| Some(Total { sum: histogram.sum(), count: histogram.count() as f64 });
    let stats = engine.stats();
    let first_token = total(&stats.time_to_first_token);
    match dialect {
        Dialect::Vllm => EngineTimes {
            first_token,
            prefill: total(&stats.prefill),
            computed: total(&stats.request_computed_tokens),
            inter_token: total(&stats.inter_token),
            ..EngineTimes::default()
        },
        Dialect::Sglang => {
            EngineTimes { first_token, inter_token: total(&stats.inter_token), ..EngineTimes::default() }
        }
        Dialect::TrtllmServe => EngineTimes {
            first_token,
            per_request: total(&stats.time_per_output_token),
            ..EngineTimes::default()
        },
        Dialect::TritonTensorrtLlm | Dialect::Triton => EngineTimes::default(),
    }
}

/// The address of the server with number 0. It is as good as any other.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PORT: u16 = 8000;

/// Address that the server with this number would listen on.
fn address(number: usize) -> SocketAddr {
    let ip = FIRST.to_bits().wrapping_add(u32::try_from(number).unwrap_or(u32::MAX));
    (Ipv4Addr::from_bits(ip), PORT).into()
}

/// The number of the server that listens there.
fn number(address: SocketAddr) -> Option<usize> {
    let IpAddr::V4(ip) = address.ip() else { return None };
    usize::try_from(ip.to_bits().wrapping_sub(FIRST.to_bits())).ok()
}

/// Endpoint of a server, as discovery would report it.
fn spec(server: &Server, number: usize) -> EndpointSpec {
    EndpointSpec { labels: server.labels.clone(), ..EndpointSpec::new(server.name.as_str(), address(number)) }
}
