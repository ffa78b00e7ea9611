//! Puts the parts together and runs them: the server as a whole.

mod background;
mod capacity;
mod error;
mod keda;
mod metrics_port;
mod numbers;
mod origin;
mod setup;
mod tell;
mod warmth;

use std::sync::{Arc, Weak};

use futures_util::FutureExt;
use prometheus::Registry;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::endpoints::health::{SWEEP_INTERVAL, Ward};
use crate::endpoints::{CachedLocator, Clock, Store, StoreLocator};
use crate::extproc::call::{Calls, MessageLimits};
use crate::extproc::exchange::Shared;
use crate::extproc::health::HealthState;
use crate::extproc::listen::Listeners;
use crate::extproc::metrics::ExtProcMetrics;
use crate::extproc::parsing::Parsing;
use crate::extproc::server::{Ended, Server, ServerOptions};
use crate::extproc::service::ProcessCall;
use crate::extproc::stop::Stops;
use crate::flow::{Attempts, Dispatcher, Gate, GateCollector, GateMetrics, Policy, keep_bands, keep_moving};
use crate::leader::Term;
use crate::memory::{Sheds, files, keep_measuring, watch_uploads};
use crate::metrics::{self};
use crate::observe::http::{HttpServer, Protection, Routes};
use crate::observe::{self, endpoints};
use crate::request::{Parsers, RuleBook};
use crate::schedule::latency;
use crate::schedule::registry::MetricsSource;
use crate::schedule::waiting::Waiting;
use crate::schedule::{Record, State};
use crate::scrape::{ScrapeConfig, ScrapeMetrics, Scraper};
use crate::settings::ServeSettings;

use background::Background;
use numbers::{attributes, pool_name, register_collectors, register_connections, register_threads};

use origin::{Origin, Parts};

pub use error::RunError;
pub use setup::Setup;

/// How often what is kept for endpoints that are gone is dropped.
const FORGET_INTERVAL: std::time::Duration = std::time::Duration::from_secs(30);

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
    let Setup {
        settings,
        pipeline,
        registry,
        scheduler_metrics,
        state,
        origin,
        warm,
        locator,
        store,
        ward,
        policies,
    } = setup;
    if origin.is_none() && locator.is_none() {
        let text = "nothing says where endpoints come from; give --pool-name, --endpoint-selector, --endpoints-file, or a file-discovery plugin under dataLayer.discovery";
        return Err(RunError::Config(text.to_owned()));
    }
    if let Some(files) = files::raise_limit() {
        state.budget().limit_files(files);
    }
    let clock = state.clock().clone();
    let rules = Arc::new(RuleBook::default());
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
        dispatcher = dispatcher.watched(Arc::clone(&ward));
        let sweeping = sweep(ward, Arc::clone(&store));
        background.tasks.spawn(background.shutdown.clone().run_until_cancelled_owned(sweeping).map(|_| ()));
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
        rules: Arc::clone(&rules),
        metrics: ExtProcMetrics::register(&registry, settings.stream_metrics)?,
        parsing: Parsing::new(&scheduler_metrics),
    });
    let attributes = attributes(&pipeline.sources);
    register_collectors(&settings, &store, &clock, &dispatcher, &attributes, state.budget(), &registry)?;

    let limits =
        MessageLimits { receive: settings.limits.max_recv_message, send: settings.limits.max_send_message };
    let processing = Arc::clone(&dispatcher);
    let service = Calls::new(move || ProcessCall::new(&shared, &processing), limits);
    let from_file = origin.as_ref().is_some_and(Origin::is_file);
    // Those that find endpoints elsewhere have no API server to elect a leader with.
    let elects = settings.pool.leader_election && origin.is_some() && !from_file;
    let health = Arc::new(HealthState::new(elects));
    let term = Arc::new(if elects { Term::new(clock.clone()) } else { Term::endless(clock.clone()) });
    let options = ServerOptions {
        threads: settings.worker_threads,
        tls: settings.tls.clone(),
        drain_timeout: settings.drain_timeout,
        budget: Arc::clone(state.budget()),
    };
    let Listeners { extproc, health: health_port, metrics: metrics_port, admin, keda } = listeners;
    let server = Server::start(extproc, health_port, service, Arc::clone(&health), options)?;
    // After the server: files that both share are named with the flag of the ext_proc port.
    let metrics_tls = metrics_port::tls(&settings.metrics_port)?;
    register_connections(&server.connection_metrics(), &registry)?;
    register_threads(&server.threads(), &registry)?;
    if let Some(gate) = dispatcher.gate() {
        let moving = keep_moving(Arc::clone(&dispatcher), Arc::clone(&store));
        background.tasks.spawn(background.shutdown.clone().run_until_cancelled_owned(moving).map(|_| ()));
        let bands = keep_bands(Arc::clone(gate), Arc::clone(&rules));
        background.tasks.spawn(background.shutdown.clone().run_until_cancelled_owned(bands).map(|_| ()));
        let (gate, finishing) = (Arc::clone(gate), server.finishing());
        let closing = async move {
            finishing.cancelled().await;
            gate.close();
        };
        background.tasks.spawn(background.shutdown.clone().run_until_cancelled_owned(closing).map(|_| ()));
    }

    health.set_plugins_ready(true);
    let (selector, selected) = watch::channel(None);
    if !elects {
        // Who elects gives the lease up then.
        let (ending, stopping) = (Arc::clone(&term), stops.stopping());
        let ending = async move {
            stopping.cancelled().await;
            ending.end();
        };
        background.tasks.spawn(background.shutdown.clone().run_until_cancelled_owned(ending).map(|_| ()));
    }
    let parts = Parts {
        settings: &settings,
        store: &store,
        rules: &rules,
        health: &health,
        term: &term,
        selector,
        clock: &clock,
        registry: &registry,
        parsers: &pipeline.parsers,
        warm,
        stopping: stops.stopping(),
    };
    let cluster = origin::start(origin, parts, background).await?;
    let scrapes = ScrapeMetrics::register(&registry)?;
    let latencies = latency::Model::find(&state);
    background.scrapers =
        start_scrapers(&settings, &pipeline.sources, &store, &clock, &scrapes, latencies.is_some())?;
    let board = match policies {
        Some(policies) => {
            let (store, health) = (Arc::clone(&store), Arc::clone(&health));
            let cluster = cluster.clone();
            let budget = Arc::clone(state.budget());
            let seen = capacity::Seen {
                dispatcher: &dispatcher,
                store,
                health,
                term,
                selected,
                clock: &clock,
                scrapes,
                budget,
                connections: server.connection_metrics(),
                cluster,
            };
            Some(capacity::start(policies, seen, keda, &settings, &registry, background)?)
        }
        None => None,
    };
    let memory_budget = Arc::clone(state.budget());
    let forgetting = forget(attempts, Arc::clone(&dispatcher), Arc::clone(&store), state);
    background.tasks.spawn(background.shutdown.clone().run_until_cancelled_owned(forgetting).map(|_| ()));

    let shown = registry.clone();
    let routes = Routes::new().with_metrics(move || metrics::render(&shown));
    let address = metrics_port.local_addr()?;
    let protection =
        metrics_port::protect(&settings.metrics_port, metrics_tls, cluster, &clock, &registry, background)?;
    tracing::info!(%address, tls = protection.tls.is_some(), auth = protection.access.is_some(), "metrics port open");
    let protection = Protection { budget: Arc::clone(&memory_budget), ..protection };
    background.pages.push(HttpServer::start_protected(metrics_port, routes, protection)?);
    if let Some(admin) = admin {
        tracing::info!(address = %admin.local_addr()?, "admin port open");
        let (known, time) = (Arc::clone(&store), clock.clone());
        let routes = Routes::new()
            .with_page("/endpoints", "application/json", move || endpoints::page(&known, &time, &attributes))
            .with_page("/latency", "application/json", move || observe::latency::page(latencies.as_deref()));
        let routes = capacity::with_pages(routes, board.as_ref(), &clock).with_index();
        let open_to_all = Protection { budget: Arc::clone(&memory_budget), ..Protection::default() };
        background.pages.push(HttpServer::start_protected(admin, routes, open_to_all)?);
    }
    let uploads = watch_uploads(Arc::clone(&memory_budget), settings.limits.body_idle_timeout);
    background.tasks.spawn(background.shutdown.clone().run_until_cancelled_owned(uploads).map(|_| ()));
    if memory_budget.measure() {
        let measuring = keep_measuring(Arc::clone(&memory_budget));
        background.tasks.spawn(background.shutdown.clone().run_until_cancelled_owned(measuring).map(|_| ()));
    }
    tell::start(&settings, &pipeline.notes, &pipeline.warnings, from_file);
    tell::memory(&settings, &memory_budget);
    if let Some(waiting) = &pipeline.waiting {
        tell::limits(&settings, &waiting.rules);
    }
    Ok(server.run(stops).await)
}

fn start_scrapers(
    settings: &ServeSettings,
    sources: &[MetricsSource],
    store: &Arc<Store>,
    clock: &Clock,
    metrics: &ScrapeMetrics,
    times: bool,
) -> Result<Vec<Scraper>, RunError> {
    let mut scrapers = Vec::new();
    let mut healthy = false;
    for source in sources.iter().filter(|source| source.models || !source.engines.is_empty()) {
        let (tick, engines) = (settings.refresh_metrics_interval, source.engines.clone());
        let config = ScrapeConfig::new(&source.params, tick, engines, source.models);
        let config = config.map_err(RunError::Config)?;
        // The first source of metrics says how well endpoints are.
        let keeps_health = config.keeps_health && !healthy;
        let config = ScrapeConfig { keeps_health, times: times && keeps_health, ..config };
        healthy |= config.keeps_health;
        scrapers.push(Scraper::start(Arc::clone(store), clock.clone(), config, metrics));
    }
    Ok(scrapers)
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

/// Looks at the requests that wait for a first byte, again and again.
async fn sweep(ward: Arc<Ward>, store: Arc<Store>) {
    let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        ward.sweep(&store.snapshot());
    }
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
