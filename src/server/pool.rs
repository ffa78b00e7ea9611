//! A pool: its endpoints, who chooses among them, and what is kept for them.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use prometheus::Registry;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::numbers::{attributes, register_locator};
use super::{Background, RunError};
use crate::endpoints::health::{OutlierDetector, SWEEP_INTERVAL};
use crate::endpoints::{CachedLocator, Clock, PodLocator, Store, StoreLocator};
use crate::extproc::exchange::Shared;
use crate::extproc::metrics::ExtProcMetrics;
use crate::extproc::parsing::Parsing;
use crate::flow::{Attempts, Dispatcher, Gate, GateCollector, GateMetrics, Policy, keep_bands, run_gate};
use crate::kv_subscriber::{KvEventsMetrics, KvEventsThread};
use crate::memory::{Budget, Sheddable};
use crate::metrics::SeriesRoom;
use crate::observe::endpoints::Attributes;
use crate::observe::freshness::FreshnessCollector;
use crate::observe::pool::PoolCollector;
use crate::observe::ui::KvEvents;
use crate::otel::Tracer;
use crate::recorder::Recorder;
use crate::records::Records;
use crate::registry::{MetricsSource, Pipeline, Sharing};
use crate::replicas::SharedCounter;
use crate::request::{ParserKind, Parsers, RuleBook};
use crate::schedule::flow_control::FlowControlSpec;
use crate::schedule::latency::Model;
use crate::schedule::{Record, Scheduler, SchedulerMetrics, Stages, State};
use crate::scrape::{ScrapeConfig, ScrapeMetrics, Scraper};
use crate::settings::ServeSettings;
use usher_plugins::KvEventsSource;

/// Interval at which what is of no more use is dropped.
const FORGET_INTERVAL: Duration = Duration::from_secs(30);

/// A pool. Nothing in it is the process's but the memory budget. Families without the pool's name as a label allow
/// one pool per registry.
pub(super) struct Pool {
    /// Name in metrics.
    pub(super) name: String,
    pub(super) clock: Clock,
    pub(super) store: Arc<Store>,
    /// Model rewrites and objectives.
    pub(super) rules: Arc<RuleBook>,
    /// The parsers of its requests, in the order in which they are asked.
    pub(super) parsers: Vec<ParserKind>,
    /// Decides and books; requests wait there.
    pub(super) dispatcher: Arc<Dispatcher>,
    /// Shared part of the pool's exchanges.
    pub(super) shared: Arc<Shared>,
    /// Numbers of its endpoints that extractors read besides those of every engine.
    pub(super) attributes: Attributes,
    /// Last decisions; `None`: they aren't kept.
    pub(super) records: Option<Arc<Records>>,
    sources: Vec<MetricsSource>,
    kv_events: Vec<KvEventsSource>,
    /// Registered if there are any of these.
    kv_metrics: Option<KvEventsMetrics>,
    /// Scrapes read times, too, as a plugin learns latencies.
    learns: Arc<AtomicBool>,
    state: Arc<State>,
    attempts: Arc<Attempts>,
    outliers: Option<Arc<OutlierDetector>>,
    /// Counters that replicas share, of the configuration that runs.
    pub(super) counters: watch::Sender<Vec<SharedCounter>>,
}

/// Parts that a pool is built of.
pub(super) struct Parts<'a> {
    pub(super) settings: &'a ServeSettings,
    pub(super) pipeline: Pipeline,
    pub(super) scheduler_metrics: &'a SchedulerMetrics,
    pub(super) state: Arc<State>,
    pub(super) store: Arc<Store>,
    /// Finds candidates; `None`: they are those of the store.
    pub(super) locator: Option<Arc<dyn PodLocator>>,
    pub(super) outliers: Option<Arc<OutlierDetector>>,
    /// Traces its requests, if they are traced.
    pub(super) tracer: Option<Tracer>,
    /// Records its decisions into a file, if they are.
    pub(super) recorder: Option<Arc<Recorder>>,
}

impl Pool {
    /// Builds a pool and registers its metrics. Nothing of it runs yet.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is registered already.
    pub(super) fn new(parts: Parts<'_>, registry: &Registry) -> prometheus::Result<Self> {
        let Parts {
            settings,
            pipeline,
            scheduler_metrics,
            state,
            store,
            locator,
            outliers,
            tracer,
            recorder,
        } = parts;
        let Pipeline { scheduler, stages, parsers, sources, kv_events, sharing, flow_control, .. } = pipeline;
        let (name, clock) = (settings.pool.label().to_owned(), state.clock().clone());
        let gate = flow_control
            .as_ref()
            .map(|flow_control| gate(flow_control, settings, (&name, state.series_room()), &clock, registry));
        let attempts = Arc::new(Attempts::register(registry)?.within(state.series_room()));
        let locator = locator.unwrap_or_else(|| {
            Arc::new(StoreLocator::new(Arc::clone(&store), settings.disable_subset_filter))
        });
        let locator =
            CachedLocator::new(locator, clock.clone(), settings.locator.ttl, settings.locator.max_subsets);
        let max_age = settings.metrics_staleness;
        let policy = policy(settings, scheduler, stages);
        let mut dispatcher = Dispatcher::new(locator, policy, clock.clone(), Arc::clone(&attempts));
        if let Some(outliers) = &outliers {
            dispatcher = dispatcher.watched(Arc::clone(outliers));
        }
        let records = (settings.decision_records > 0)
            .then(|| Arc::new(Records::new(&name, settings.decision_records, state.budget())));
        if let Some(records) = &records {
            dispatcher = dispatcher.recorded(Arc::clone(records));
        }
        if let Some(recorder) = recorder {
            dispatcher = dispatcher.recorded_by(recorder);
        }
        if let Some(gate) = gate.transpose()? {
            // A gate is dropped with its dispatcher, whatever the budget does.
            state.budget().shed_with(Arc::downgrade(&gate) as Weak<dyn Sheddable>);
            dispatcher = dispatcher.with_gate(gate);
        }
        let rules = Arc::new(RuleBook::default());
        let metrics = ExtProcMetrics::register(registry, settings.stream_metrics)?;
        let metrics = if settings.gen_ai_metrics { metrics.with_gen_ai(registry)? } else { metrics };
        let metrics = metrics.within(state.series_room());
        let shared = Shared {
            parsers: Parsers::new(&parsers),
            max_request_body_bytes: settings.limits.max_request_body,
            budget: Arc::clone(state.budget()),
            policy: dispatcher.policy().clone(),
            rules: Arc::clone(&rules),
            metrics,
            parsing: Parsing::new(scheduler_metrics),
            tracer,
            records: records.clone(),
        };
        let pool = Self {
            name,
            clock,
            store,
            rules,
            parsers,
            dispatcher: Arc::new(dispatcher),
            shared: Arc::new(shared),
            attributes: attributes(&sources),
            records,
            sources,
            kv_metrics: (!kv_events.is_empty()).then(|| KvEventsMetrics::register(registry)).transpose()?,
            kv_events,
            learns: Arc::default(),
            state,
            attempts,
            outliers,
            counters: watch::Sender::new(sharing.counters),
        };
        pool.register(max_age, registry)?;
        Ok(pool)
    }

    /// Registers the numbers of its endpoints and of its cache of candidates.
    fn register(&self, max_age: Duration, registry: &Registry) -> prometheus::Result<()> {
        let (store, clock, name) = (&self.store, &self.clock, &self.name);
        let collector = PoolCollector::new(Arc::clone(store), clock.clone(), max_age, name.clone())?;
        registry.register(Box::new(collector))?;
        let (known, time, attributes) = (Arc::clone(store), clock.clone(), self.attributes.clone());
        let freshness = FreshnessCollector::new(known, time, max_age, name.clone(), attributes)?;
        registry.register(Box::new(freshness))?;
        register_locator(&self.dispatcher, registry)
    }

    /// The memory budget that its requests and caches count against.
    pub(super) fn budget(&self) -> &Arc<Budget> {
        self.state.budget()
    }

    /// State that outlives a configuration.
    pub(super) fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// The model of its latencies, if a plugin keeps one.
    pub(super) fn latencies(&self) -> Option<Arc<Model>> {
        Model::find(&self.state)
    }

    /// Replaces what a configuration says about its decisions.
    pub(super) fn swap(&self) -> Swap {
        let (dispatcher, state) = (Arc::clone(&self.dispatcher), Arc::clone(&self.state));
        Swap { dispatcher, state, learns: Arc::clone(&self.learns), counters: self.counters.clone() }
    }

    /// Runs what keeps it up to date. `stopping`: cancelled when no request begins to wait any more;
    /// `finishing`: when none waits.
    pub(super) fn start(
        &self,
        stopping: CancellationToken,
        finishing: CancellationToken,
        background: &mut Background,
    ) {
        if let Some(outliers) = &self.outliers {
            background.run(sweep(Arc::clone(outliers), Arc::clone(&self.store)));
        }
        if let Some(gate) = self.dispatcher.gate() {
            background.run(run_gate(Arc::clone(&self.dispatcher), Arc::clone(&self.store)));
            background.run(keep_bands(Arc::clone(gate), Arc::clone(&self.rules)));
            let gate = Arc::clone(gate);
            background.run(async move {
                tokio::select! {
                    () = stopping.cancelled() => gate.drain(),
                    () = finishing.cancelled() => {}
                }
                finishing.cancelled().await;
                gate.close();
            });
        }
        let kept = Kept {
            attempts: Arc::clone(&self.attempts),
            shared: Arc::clone(&self.shared),
            dispatcher: Arc::clone(&self.dispatcher),
            state: Arc::clone(&self.state),
        };
        background.run(forget(kept, Arc::clone(&self.store)));
    }

    /// Starts to follow the KV events of its endpoints, if a plugin asks for them.
    ///
    /// # Errors
    /// `RunError` if the system can't start another thread.
    pub(super) fn follow_events(&self, background: &mut Background) -> Result<(), RunError> {
        let Some(metrics) = &self.kv_metrics else { return Ok(()) };
        for source in &self.kv_events {
            let (store, clock) = (Arc::clone(&self.store), self.clock.clone());
            let thread = KvEventsThread::start(source.clone(), store, clock, metrics)?;
            background.run(async move {
                let _until_dropped = thread;
                std::future::pending::<()>().await;
            });
        }
        Ok(())
    }

    /// Reader of the state of the first plugin that follows KV events; `None`: none does.
    pub(super) fn kv_events(&self) -> Option<impl Fn() -> KvEvents + Send + Sync + use<>> {
        let (metrics, source) = (self.kv_metrics.clone()?, self.kv_events.first()?.clone());
        Some(move || {
            let (predicted, cached) = source.tokens_counted();
            KvEvents { followed: metrics.first().unwrap_or_default(), predicted, cached }
        })
    }

    /// Starts to poll its endpoints.
    ///
    /// # Errors
    /// Returns an error that names the source which can't be polled as configured.
    pub(super) fn scrape(
        &self,
        settings: &ServeSettings,
        metrics: &ScrapeMetrics,
    ) -> Result<Vec<Scraper>, RunError> {
        let (mut scrapers, mut healthy) = (Vec::new(), false);
        self.learns.store(self.latencies().is_some(), Relaxed);
        for source in self.sources.iter().filter(|source| source.models || !source.engines.is_empty()) {
            let (tick, engines) = (settings.refresh_metrics_interval, source.engines.clone());
            let config = ScrapeConfig::new(&source.params, tick, engines, source.models);
            let config = config.map_err(RunError::Config)?;
            // The first source of metrics says how well endpoints are.
            let keeps_health = config.keeps_health && !healthy;
            let times = if keeps_health { Arc::clone(&self.learns) } else { Arc::default() };
            let state = keeps_health && !self.kv_events.is_empty();
            let config = ScrapeConfig { keeps_health, times, state, ..config };
            healthy |= config.keeps_health;
            scrapers.push(Scraper::start(Arc::clone(&self.store), self.clock.clone(), config, metrics));
        }
        Ok(scrapers)
    }
}

/// Puts a configuration into effect at a pool that runs.
#[derive(Debug)]
pub(super) struct Swap {
    dispatcher: Arc<Dispatcher>,
    state: Arc<State>,
    learns: Arc<AtomicBool>,
    counters: watch::Sender<Vec<SharedCounter>>,
}

impl Swap {
    /// Decides by this configuration from now on.
    pub(super) fn reconfigure(&self, settings: &ServeSettings, pipeline: Pipeline) {
        let Pipeline { scheduler, stages, sharing: Sharing { counters, .. }, flow_control, .. } = pipeline;
        self.dispatcher.reconfigure(policy(settings, scheduler, stages), flow_control.as_ref());
        self.counters.send_if_modified(|known| {
            let is_new = *known != counters;
            *known = counters;
            is_new
        });
        self.tidy();
    }

    /// Drops what plugins of earlier configurations kept, once their last request has ended.
    pub(super) fn tidy(&self) {
        self.state.forget_unused();
        self.learns.store(Model::find(&self.state).is_some(), Relaxed);
    }
}

/// Policy that decides by a configuration with these settings.
fn policy(settings: &ServeSettings, scheduler: Scheduler, stages: Arc<Stages>) -> Policy {
    let record = if settings.emit_endpoint_scores { Record::Scores } else { Record::No };
    Policy { scheduler, stages, max_age: settings.metrics_staleness, record }
}

/// Gate at which requests wait, with its metrics.
fn gate(
    flow_control: &FlowControlSpec,
    settings: &ServeSettings,
    (pool, room): (&str, &SeriesRoom),
    clock: &Clock,
    registry: &Registry,
) -> prometheus::Result<Arc<Gate>> {
    let metrics = GateMetrics::register(registry, pool)?.within(room);
    let shows_after = settings.refresh_metrics_interval + settings.metrics_staleness;
    let gate = Gate::new(flow_control, clock.clone(), shows_after, metrics);
    registry.register(Box::new(GateCollector::new(Arc::clone(&gate))?))?;
    Ok(gate)
}

/// Looks at the requests that wait for a first byte, again and again.
async fn sweep(outliers: Arc<OutlierDetector>, store: Arc<Store>) {
    let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        outliers.sweep(&store.snapshot());
    }
}

/// Keepers of what is of use for a while.
struct Kept {
    attempts: Arc<Attempts>,
    shared: Arc<Shared>,
    dispatcher: Arc<Dispatcher>,
    state: Arc<State>,
}

/// Drops what is kept for endpoints that are gone, and series that were unused for a while.
async fn forget(kept: Kept, store: Arc<Store>) {
    let Kept { attempts, shared, dispatcher, state } = kept;
    let mut ticks = tokio::time::interval(FORGET_INTERVAL);
    loop {
        ticks.tick().await;
        let snapshot = store.snapshot();
        attempts.retain(&snapshot);
        shared.metrics.sweep();
        state.sweep(&snapshot, state.clock().now_ms());
        dispatcher.sweep();
    }
}
