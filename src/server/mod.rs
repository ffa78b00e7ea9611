//! Puts the parts together and runs them: the server as a whole.

mod background;
mod capacity;
mod error;
mod keda;
mod metrics_port;
mod numbers;
mod origin;
mod pool;
mod ports;
mod recording;
mod reload;
mod setup;
mod sharing;
mod start;
mod startup_log;
mod traces;
mod warmth;

use std::net::TcpListener;
use std::sync::Arc;

use tokio::sync::watch;

use crate::extproc::call::{Calls, MessageLimits};
use crate::extproc::health::HealthState;
use crate::extproc::listen::Listeners;
use crate::extproc::server::{Ended, Server, ServerOptions};
use crate::extproc::service::ProcessCall;
use crate::extproc::stop::StopSignals;
use crate::leader::Term;
use crate::memory::{Budget, files, keep_measuring, watch_uploads};
use crate::recorder::Writer;
use crate::scrape::ScrapeMetrics;
use crate::settings::ServeSettings;

use background::Background;
use numbers::{register_connections, register_process, register_threads};
use origin::Origin;
use pool::Pool;
use reload::{Active, Events, Reloader, Status};
use start::Start;
use startup_log::StartupLog;

pub use error::RunError;
pub use setup::Setup;
pub(crate) use setup::memory_budget;

/// Runs a server until it is told to stop. All its threads and tasks have ended when
/// this returns; after an error at the start, worker threads may still be ending.
///
/// # Errors
/// `RunError` if no source of endpoints is set, the endpoints file can't be used, or the system refuses a
/// thread or a socket.
pub async fn run(setup: Setup, listeners: Listeners, mut stops: StopSignals) -> Result<(), RunError> {
    let mut background = Background::default();
    let mut recording = None;
    let result = serve(setup, listeners, &mut stops, &mut background, &mut recording).await;
    background.end().await;
    // Last: what has ended until now is in it.
    if let Some(recording) = recording {
        recording.stop();
    }
    if let Ok(ended) = &result {
        tracing::info!(gracefully = *ended == Ended::Gracefully, "stopped");
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
    stops: &mut StopSignals,
    background: &mut Background,
    recording: &mut Option<Writer>,
) -> Result<Ended, RunError> {
    let Setup {
        settings,
        types,
        text,
        mut pipeline,
        registry,
        scheduler_metrics,
        state,
        origin,
        warm,
        locator,
        store,
        outliers,
        policies,
        sharing,
        log_level,
    } = setup;
    if origin.is_none() && locator.is_none() {
        let text = "nothing says where endpoints come from; give --pool-name, --endpoint-selector, --endpoints-file, or a file-discovery plugin under dataLayer.discovery";
        return Err(RunError::Config(text.to_owned()));
    }
    if let Some(files) = files::raise_limit() {
        state.budget().limit_files(files);
    }
    let startup_log = StartupLog::take(&mut pipeline);
    let active = Active::new(&pipeline, &text);
    let config = Arc::new(Status::register(&settings.config, active.hash(), &registry)?);
    let of_plugins = scheduler_metrics.clone();
    let scheduler_metrics = &scheduler_metrics;
    let tracer = traces::start(&settings.tracing, &registry, background)?;
    *recording = recording::start(&settings, &store, state.budget(), &registry)?;
    let parts = pool::Parts {
        settings: &settings,
        pipeline,
        scheduler_metrics,
        state,
        store,
        locator,
        outliers,
        tracer,
        recorder: recording.as_ref().map(|recording| Arc::clone(recording.recorder())),
    };
    let pool = Pool::new(parts, &registry)?;
    register_process(pool.budget(), &registry)?;
    let from_file = origin.as_ref().is_some_and(Origin::is_file);
    // Those that find endpoints elsewhere have no API server to elect a leader with.
    let elects = settings.pool.leader_election && origin.is_some() && !from_file;
    let health = Arc::new(HealthState::new(elects));
    let is_shared = sharing.is_some();
    if elects && is_shared {
        health.let_standbys_serve();
    }
    health.set_warm(!is_shared || settings.warm_up_timeout.is_zero());
    let mut announcement = Start::of(&settings, origin.as_ref(), &listeners);
    let Listeners { extproc, health: health_port, metrics, admin, keda } = listeners;
    let server = listen(extproc, health_port, &pool, &health, &settings)?;
    // After the server: files that both share are named with the flag of the ext_proc port.
    let metrics_tls = metrics_port::tls(&settings.metrics_port)?;
    register_connections(&server.connection_metrics(), &registry)?;
    register_threads(&server.threads(), &registry)?;
    pool.start(stops.stopping(), server.finishing(), background);
    health.set_plugins_ready(true);
    let term = term(elects, &pool, stops, background);
    let (selector, selected) = watch::channel(None);
    let parts = origin::Parts {
        settings: &settings,
        pool: &pool,
        health: &health,
        term: &term,
        selector,
        registry: &registry,
        warm,
        stopping: stops.stopping(),
    };
    let cluster = origin::start(origin, parts, background).await?;
    let events = Events::about(cluster.clone(), origin::own_pod(&settings.pool));
    let state = Arc::clone(pool.state());
    let parts = reload::Parts { types, settings: settings.clone(), metrics: of_plugins, state };
    if let Some(reloader) = Reloader::new(parts, pool.swap(), (active, text), config.clone(), events) {
        background.run(reloader.follow());
    }
    pool.follow_events(background)?;
    let share = |sharing| sharing::start(sharing, (&pool, &health, &settings), &registry, background);
    let shared = sharing.map(share).transpose()?;
    let scrapes = ScrapeMetrics::register(&registry)?;
    background.scrapers = pool.scrape(&settings, &scrapes)?;
    let connections = server.connection_metrics();
    let seen = capacity::Seen {
        pool: &pool,
        health,
        term,
        selected,
        scrapes,
        connections,
        cluster: cluster.clone(),
        is_shared,
    };
    let start = |policies| capacity::start(policies, seen, keda, &settings, &registry, background);
    let plan_store = policies.map(start).transpose()?;
    (announcement.metrics_tls, announcement.metrics_auth) =
        ports::metrics(metrics, metrics_tls, cluster, (&pool, &settings), &registry, background)?;
    if let Some(admin) = admin {
        let config = Arc::clone(&config);
        let parts = (plan_store.as_ref(), shared);
        ports::admin(admin, (&pool, config), &settings, parts, log_level, background)?;
    }
    watch_memory(pool.budget(), &settings, background);
    startup_log.write(&settings, pool.budget(), from_file);
    if elects && is_shared {
        startup_log::every_replica_serves();
    }
    announcement.log(&settings);
    Ok(server.run(stops).await)
}

/// Answers gateways and health checks.
fn listen(
    extproc: TcpListener,
    health_port: TcpListener,
    pool: &Pool,
    health: &Arc<HealthState>,
    settings: &ServeSettings,
) -> Result<Server, RunError> {
    let limits =
        MessageLimits { receive: settings.limits.max_recv_message, send: settings.limits.max_send_message };
    let (shared, dispatcher) = (Arc::clone(&pool.shared), Arc::clone(&pool.dispatcher));
    let service = Calls::new(move || ProcessCall::new(&shared, &dispatcher), limits);
    let options = ServerOptions {
        threads: settings.worker_threads,
        tls: settings.tls.clone(),
        drain_timeout: settings.drain_timeout,
        budget: Arc::clone(pool.budget()),
    };
    Ok(Server::start(extproc, health_port, service, Arc::clone(health), options)?)
}

/// The time in which this replica may act on the cluster: while it leads, or until it stops where
/// nobody is elected.
fn term(elects: bool, pool: &Pool, stops: &StopSignals, background: &mut Background) -> Arc<Term> {
    if elects {
        // Who elects gives the lease up at the end.
        return Arc::new(Term::new(pool.clock.clone()));
    }
    let term = Arc::new(Term::endless(pool.clock.clone()));
    let (ending, stopping) = (Arc::clone(&term), stops.stopping());
    background.run(async move {
        stopping.cancelled().await;
        ending.end();
    });
    term
}

/// Measures the process against its budget, and ends uploads that make no progress.
fn watch_memory(budget: &Arc<Budget>, settings: &ServeSettings, background: &mut Background) {
    background.run(watch_uploads(Arc::clone(budget), settings.limits.body_idle_timeout));
    if budget.measure() {
        background.run(keep_measuring(Arc::clone(budget)));
    }
}
