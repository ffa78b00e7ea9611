//! Who decides where requests go: the real scheduler of a configuration, or a baseline.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use prometheus::Registry;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::reference::{Formula, Reference};
use super::requests::Requests;
use super::servers::Server;
use crate::config::{ConfigError, EndpointPickerConfig};
use crate::endpoints::{
    Adapters, CachedLocator, Clock, EndpointSpec, EngineTimes, Snapshot, Store, StoreLocator, SubsetHint,
    Total,
};
use crate::flow::{Attempts, Code, Dispatcher, Policy as Dispatching, Rejection, Routed};
use crate::request::Parsers;
use crate::schedule::latency::{Model, Report};
use crate::schedule::registry::Pipeline;
use crate::schedule::{Record, SchedulerMetrics, Stages, State};
use crate::scrape::{ScrapeConfig, phase};
use crate::sim::{Engine, Histogram};

/// The header that names who computes the prompt.
const PREFILLER: &str = "x-prefiller-host-port";

/// Who decides.
#[derive(Clone, Debug)]
pub enum Policy {
    /// What `usher serve` would do with this configuration; `None`: the built-in one.
    Configured(Option<Box<EndpointPickerConfig>>),
    /// Any server, each as probable as the others.
    Random,
    /// One server after the other.
    RoundRobin,
    /// The formula of another picker.
    Reference(Formula),
}

/// Where a request goes.
#[derive(Debug)]
pub(super) struct Route {
    /// Number of the server that answers.
    pub(super) server: usize,
    /// Number of the one that computes the prompt for it.
    pub(super) prefiller: Option<usize>,
    /// What a configuration's plugins follow the answer with.
    pub(super) routed: Option<Routed>,
}

/// How often and when servers are scraped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scraping {
    pub(super) interval: Duration,
}

impl Scraping {
    /// When the server with this number is scraped first.
    pub(super) fn phase(self, number: usize) -> Duration {
        phase(self.interval, u32::try_from(number).unwrap_or(u32::MAX))
    }
}

/// A policy at work.
#[derive(Debug)]
pub(super) enum Picker {
    Configured(Box<Configured>),
    Random { rng: Box<StdRng>, servers: Vec<usize> },
    RoundRobin { next: usize, servers: Vec<usize> },
    Reference(Box<Reference>),
}

/// What `usher serve` has of a configuration, without sockets.
pub(super) struct Configured {
    dispatcher: Dispatcher,
    parsers: Parsers,
    stages: Arc<Stages>,
    state: State,
    store: Arc<Store>,
    snapshot: Arc<Snapshot>,
    rng: StdRng,
    scraping: Option<Scraping>,
}

/// How numbers are read, where the configuration doesn't say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) interval: Duration,
    pub(super) max_age: Duration,
}

/// Why a configuration can't be run.
#[derive(Debug, thiserror::Error)]
pub(super) enum BuildError {
    #[error("{0}")]
    Config(#[from] ConfigError),
    #[error("cannot register metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

impl Picker {
    /// Sets a policy to work over these servers, numbered from 0. Returns with it what the user
    /// should know.
    pub(super) fn new(
        policy: &Policy,
        servers: &[Server],
        reading: Reading,
        seed: u64,
    ) -> Result<(Self, Vec<String>), BuildError> {
        let rng = StdRng::seed_from_u64(seed);
        Ok(match policy {
            Policy::Random => {
                (Self::Random { rng: Box::new(rng), servers: (0..servers.len()).collect() }, Vec::new())
            }
            Policy::RoundRobin => {
                (Self::RoundRobin { next: 0, servers: (0..servers.len()).collect() }, Vec::new())
            }
            Policy::Reference(formula) => {
                (Self::Reference(Box::new(Reference::new(*formula, servers.len(), rng))), Vec::new())
            }
            Policy::Configured(config) => {
                let (configured, notes) = Configured::new(config.as_deref(), servers, reading, rng)?;
                (Self::Configured(Box::new(configured)), notes)
            }
        })
    }

    /// Chooses a server for the request at this position, at this time since the start.
    pub(super) fn pick(
        &mut self,
        position: usize,
        requests: &Requests,
        engines: &[Engine],
        now: Duration,
    ) -> Result<Route, Rejection> {
        let server = match self {
            Self::Configured(configured) => return configured.pick(position, requests, now),
            Self::Random { servers, .. } if servers.is_empty() => None,
            Self::Random { rng, servers } => servers.get(rng.random_range(0..servers.len())).copied(),
            Self::RoundRobin { next, servers } => {
                let turn = *next % servers.len().max(1);
                *next = turn + 1;
                servers.get(turn).copied()
            }
            Self::Reference(reference) => reference.pick(position, &requests.get(position), engines),
        };
        let server = server.ok_or_else(Rejection::no_endpoints)?;
        Ok(Route { server, prefiller: None, routed: None })
    }

    /// The first token of a request is there, for a policy that nothing else tells.
    pub(super) fn first_token(&mut self, position: usize) {
        if let Self::Reference(reference) = self {
            reference.first_token(position);
        }
    }

    /// A request has ended, however it did; likewise.
    pub(super) fn ended(&mut self, position: usize) {
        if let Self::Reference(reference) = self {
            reference.ended(position);
        }
    }

    /// From now on there are these servers, each under its number.
    pub(super) fn set_servers(&mut self, servers: &[(usize, Server)]) {
        match self {
            Self::Configured(configured) => configured.set_servers(servers),
            Self::Random { servers: numbers, .. } | Self::RoundRobin { servers: numbers, .. } => {
                *numbers = servers.iter().map(|(number, _)| *number).collect();
            }
            Self::Reference(reference) => {
                reference.set_servers(servers.iter().map(|(number, _)| *number).collect());
            }
        }
    }

    /// What happens next happens at this time.
    pub(super) fn set_clock(&self, now: Duration) {
        if let Self::Configured(configured) = self {
            configured.state.clock().set(now);
        }
    }

    /// When servers are scraped; `None`: nobody reads their numbers.
    pub(super) fn scraping(&self) -> Option<Scraping> {
        match self {
            Self::Configured(configured) => configured.scraping,
            _ => None,
        }
    }

    /// Reads what the server with this number says, now.
    pub(super) fn scrape(&self, number: usize, engine: &Engine) {
        if let Self::Configured(configured) = self {
            configured.scrape(number, engine);
        }
    }

    /// Drops what is of no more use, as the server does now and then.
    pub(super) fn sweep(&self) {
        if let Self::Configured(configured) = self {
            configured.state.sweep(&configured.snapshot, configured.state.clock().now_ms());
        }
    }

    /// The latency model, where the policy has one.
    pub(super) fn latency(&self) -> Option<Report> {
        match self {
            Self::Configured(configured) => Some(Model::find(&configured.state)?.report()),
            _ => None,
        }
    }

    /// `host:port` of the server with this number, for who is told who served.
    pub(super) fn address(&self, number: usize) -> String {
        match self {
            Self::Configured(_) => address(number).to_string(),
            _ => String::new(),
        }
    }
}

impl Configured {
    fn new(
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
        let scraping =
            interval.map(|interval| Scraping { interval: interval.max(ScrapeConfig::MIN_INTERVAL) });
        let mut configured = Self {
            dispatcher: Dispatcher::new(locator, policy, state.clock().clone(), attempts),
            parsers: Parsers::new(&pipeline.parsers),
            stages,
            state,
            snapshot: store.snapshot(),
            store,
            rng,
            scraping,
        };
        configured.set_servers(&(0..).zip(servers.iter().cloned()).collect::<Vec<_>>());
        let mut notes = pipeline.notes;
        if pipeline.waiting.is_some() {
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

    fn set_servers(&mut self, servers: &[(usize, Server)]) {
        self.store.replace(servers.iter().map(|(number, server)| spec(server, *number)).collect());
        self.snapshot = self.store.snapshot();
        let _ = self.dispatcher.locator().locate(&SubsetHint::Missing).now_or_never();
    }

    #[cfg(test)]
    pub(super) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    fn pick(&mut self, position: usize, requests: &Requests, now: Duration) -> Result<Route, Rejection> {
        self.state.clock().set(now);
        // In virtual time nothing happens beside a decision.
        self.state.settle();
        let mut request = requests
            .read(position, &self.parsers)
            .map_err(|error| Rejection::new(Code::BadRequest, error.to_string()))?;
        self.stages.process_headers(&mut request);
        let routed = self.dispatcher.try_dispatch_with(&request, &SubsetHint::Missing, &mut self.rng);
        let routed = routed.ok_or_else(Rejection::no_endpoints)??;
        let endpoints = self.snapshot.endpoints();
        let first = routed.decision().primary().picks.first();
        let picked = first.and_then(|pick| endpoints.get(*pick as usize));
        let server = picked.and_then(|endpoint| number(endpoint.address())).unwrap_or_default();
        Ok(Route { server, prefiller: self.prefiller(&routed), routed: Some(routed) })
    }

    /// Whom the sidecar of the server is told to ask for the prompt.
    fn prefiller(&self, routed: &Routed) -> Option<usize> {
        let header = routed.headers().iter().find(|header| &*header.name == PREFILLER)?;
        let address: SocketAddr = str::from_utf8(&header.value).ok()?.parse().ok()?;
        let endpoint = self.snapshot.at(address.ip(), address.port())?;
        number(endpoint.address())
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
            load.engine_times.set(times(engine));
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
}

impl std::fmt::Debug for Configured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Configured").field("dispatcher", &self.dispatcher).finish_non_exhaustive()
    }
}

/// Totals of an engine's histograms, as vLLM has them.
fn times(engine: &Engine) -> EngineTimes {
    let total = |histogram: &Histogram| Some(Total { sum: histogram.sum(), count: histogram.count() as f64 });
    let stats = engine.stats();
    EngineTimes {
        first_token: total(&stats.time_to_first_token),
        prefill: total(&stats.prefill),
        computed: total(&stats.request_computed_tokens),
        inter_token: total(&stats.inter_token),
        started: None,
    }
}

/// The address of the server with number 0. It is as good as any other.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PORT: u16 = 8000;

/// Where the server with this number would listen.
fn address(number: usize) -> SocketAddr {
    let ip = FIRST.to_bits().wrapping_add(u32::try_from(number).unwrap_or(u32::MAX));
    (Ipv4Addr::from_bits(ip), PORT).into()
}

/// The number of the server that listens there.
fn number(address: SocketAddr) -> Option<usize> {
    let IpAddr::V4(ip) = address.ip() else { return None };
    usize::try_from(ip.to_bits().wrapping_sub(FIRST.to_bits())).ok()
}

/// What discovery would say of a server.
fn spec(server: &Server, number: usize) -> EndpointSpec {
    EndpointSpec { labels: server.labels.clone(), ..EndpointSpec::new(server.name.as_str(), address(number)) }
}
