//! The ports for metrics and for administration.

use std::net::TcpListener;
use std::sync::Arc;

use prometheus::Registry;

use super::pool::Pool;
use super::reload::Status;
use super::{Background, RunError, capacity, metrics_port};
use crate::cluster::Cluster;
use crate::metrics;
use crate::observe::http::{HttpServer, Protection, Routes};
use crate::observe::log_level::LogLevel;
use crate::observe::tls::MetricsTls;
use crate::observe::ui::{self, Shown};
use crate::observe::{self, decisions, endpoints};
use crate::replicas::ReplicasMetrics;
use crate::scaling::{self, PlanStore};
use crate::schedule::latency::Model;
use crate::settings::ServeSettings;

/// Serves metrics, to whom the settings allow them. Returns whether over TLS, and whether the API server is asked who
/// may read.
///
/// # Errors
/// `RunError` if the name of a metric is taken, or the socket can't be used.
pub(super) fn metrics(
    listener: TcpListener,
    tls: Option<Arc<MetricsTls>>,
    cluster: Option<Cluster>,
    (pool, settings): (&Pool, &ServeSettings),
    registry: &Registry,
    background: &mut Background,
) -> Result<(bool, bool), RunError> {
    let shown = registry.clone();
    let routes = Routes::new().with_metrics(move || metrics::render(&shown));
    let (port, clock) = (&settings.metrics_port, &pool.clock);
    let protection = metrics_port::protect(port, tls, cluster, clock, registry, background)?;
    let protected = (protection.tls.is_some(), protection.access.is_some());
    let protection = Protection { budget: Arc::clone(pool.budget()), ..protection };
    background.pages.push(HttpServer::start_protected(listener, routes, protection)?);
    Ok(protected)
}

/// Serves pages about a pool, its configuration and its plans.
///
/// # Errors
/// `RunError` if the socket can't be used.
pub(super) fn admin(
    listener: TcpListener,
    (pool, config): (&Pool, Arc<Status>),
    settings: &ServeSettings,
    (plan_store, replicas): (Option<&Arc<PlanStore>>, Option<ReplicasMetrics>),
    log_level: Option<Arc<LogLevel>>,
    background: &mut Background,
) -> Result<(), RunError> {
    let (store, clock, state) = (Arc::clone(&pool.store), pool.clock.clone(), Arc::clone(pool.state()));
    let (attributes, records) = (pool.attributes.clone(), pool.records.clone());
    let shown = Shown { replicas, ..shown(pool, Arc::clone(&config), plan_store, settings) };
    let routes = Routes::new()
        .with_page("/endpoints", "application/json", move || endpoints::page(&store, &clock, &attributes))
        .with_page("/latency", "application/json", move || {
            // A reload may bring the first plugin that learns them.
            observe::latency::page(Model::find(&state).as_deref())
        })
        .with_page("/config", "application/json", move || config.json())
        .with_query("/decisions", "application/json", move |query| {
            decisions::page(records.as_deref(), query)
        });
    let routes = capacity::with_pages(routes, plan_store, &pool.clock);
    let routes = match log_level {
        Some(level) => routes.with_log_level(level),
        None => routes,
    };
    let routes = ui::with_page(routes.with_index(), shown);
    let routes = if listener.local_addr()?.ip().to_canonical().is_loopback() {
        routes.only_by_local_names()
    } else {
        routes
    };
    let open_to_all = Protection { budget: Arc::clone(pool.budget()), ..Protection::default() };
    background.pages.push(HttpServer::start_protected(listener, routes, open_to_all)?);
    Ok(())
}

/// Parts of a pool that the page for browsers shows.
fn shown(
    pool: &Pool,
    config: Arc<Status>,
    plan_store: Option<&Arc<PlanStore>>,
    settings: &ServeSettings,
) -> Shown {
    let (state, shared) = (Arc::clone(pool.state()), Arc::clone(&pool.shared));
    let plans = |plans: &Arc<PlanStore>| {
        let (plans, clock) = (Arc::clone(plans), pool.clock.clone());
        Box::new(move || scaling::plans_value(&plans, &clock)) as ui::Part
    };
    Shown {
        pool: pool.name.clone(),
        clock: pool.clock.clone(),
        store: Arc::clone(&pool.store),
        max_age: settings.metrics_staleness,
        budget: Arc::clone(pool.budget()),
        gate: pool.dispatcher.gate().cloned(),
        records: pool.records.clone(),
        model: Box::new(move || Model::find(&state)),
        traffic: Box::new(move || shared.metrics.traffic()),
        config: Box::new(move || config.value()),
        kv_events: pool.kv_events().map(|events| Box::new(events) as _),
        plans: plan_store.map(plans),
        replicas: None,
    }
}
