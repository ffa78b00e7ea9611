//! A dispatcher with a gate over some endpoints.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use prometheus::Registry;
use tokio::task::JoinHandle;
use usher::config::EndpointPickerConfig;
use usher::endpoints::health::{HealthParams, OutlierDetector, OutlierMetrics};
use usher::endpoints::{CachedLocator, Clock, EndpointSpec, Load, Store, StoreLocator, SubsetHint};
use usher::extproc::exchange::{Exchange, Shared};
use usher::extproc::metrics::ExtProcMetrics;
use usher::extproc::parsing::Parsing;
use usher::flow::{
    Attempts, Demand, Dispatcher, Gate, GateCollector, GateMetrics, Policy, Rejection, Routed, run_gate,
};
use usher::registry::Pipeline;
use usher::request::{Headers, ParserKind, Parsers, Request, RequestParser};
use usher::schedule::{Record, SchedulerMetrics, State};

/// Room for one request at each endpoint, and whoever is picked is picked at random.
pub(crate) fn config(max_concurrency: u64, flow_control: &str) -> String {
    format!(
        "
featureGates: [flowControl]
plugins:
- {{type: random-picker}}
- {{type: round-robin-fairness-policy}}
- {{type: slo-deadline-ordering-policy}}
- {{type: program-aware-fairness}}
- {{type: concurrency-detector, parameters: {{maxConcurrency: {max_concurrency}}}}}
schedulingProfiles: [{{name: default, plugins: [{{pluginRef: random-picker}}]}}]
flowControl:
  saturationDetector: {{pluginRef: concurrency-detector}}
{}
",
        flow_control.lines().map(|line| format!("  {line}\n")).collect::<String>()
    )
}

pub(crate) struct Pool {
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) store: Arc<Store>,
    pub(crate) clock: Clock,
    registry: Registry,
    metrics: SchedulerMetrics,
    moving: Option<JoinHandle<()>>,
}

impl Pool {
    /// A pool with so many endpoints, whose task runs.
    pub(crate) fn new(config: &str, endpoints: u8) -> Self {
        let mut pool = Self::without_task(config, endpoints);
        pool.moving = Some(tokio::spawn(run_gate(Arc::clone(&pool.dispatcher), Arc::clone(&pool.store))));
        pool
    }

    /// The same where nothing happens but what requests do.
    pub(crate) fn without_task(config: &str, endpoints: u8) -> Self {
        let registry = Registry::new();
        // Readings don't grow old while the clock of the tests is paused.
        let clock = Clock::stopped();
        let health = OutlierMetrics::register(&registry).unwrap();
        let outliers = Arc::new(OutlierDetector::new(HealthParams::default(), clock.clone(), health));
        let store = Arc::new(Store::watched(Arc::clone(&outliers)));
        let state = State::new(clock.clone());
        let metrics = SchedulerMetrics::register(&registry).unwrap();
        let config = EndpointPickerConfig::parse(config).unwrap();
        let pipeline = Pipeline::build(Some(&config), true, &metrics, &state).unwrap();
        let (scheduler, stages) = (pipeline.scheduler, pipeline.stages);
        let max_age = Duration::from_secs(2);
        let policy = Policy { scheduler, stages, max_age, record: Record::No };
        let locator = Arc::new(StoreLocator::new(Arc::clone(&store), false));
        let cached = CachedLocator::new(locator, clock.clone(), Duration::from_secs(60), 16);
        let attempts = Arc::new(Attempts::register(&registry).unwrap());
        let gate_metrics = GateMetrics::register(&registry, "pool").unwrap();
        let waiting = pipeline.flow_control.unwrap();
        let gate = Gate::new(&waiting, clock.clone(), Duration::from_millis(2050), gate_metrics);
        registry.register(Box::new(GateCollector::new(Arc::clone(&gate)).unwrap())).unwrap();
        let dispatcher = Dispatcher::new(cached, policy, clock.clone(), attempts).watched(outliers);
        let dispatcher = Arc::new(dispatcher.with_gate(gate));
        let pool = Self { dispatcher, store, clock, registry, metrics, moving: None };
        pool.scale(endpoints);
        pool
    }

    /// Sets the number of endpoints: 10.0.0.1, 10.0.0.2 …
    pub(crate) fn scale(&self, endpoints: u8) {
        let spec = |i: u8| EndpointSpec::new(format!("pod-{i}"), ([10, 0, 0, i], 8000));
        self.store.replace((1..=endpoints).map(spec).collect());
    }

    /// An exchange with a gateway.
    pub(crate) fn exchange(&self) -> Exchange {
        Exchange::new(Arc::new(Shared {
            parsers: Parsers::new(&[ParserKind::OpenAi]),
            max_request_body_bytes: 1000,
            budget: Arc::default(),
            rules: Arc::default(),
            policy: self.dispatcher.policy().clone(),
            metrics: ExtProcMetrics::register(&self.registry, false).unwrap(),
            parsing: Parsing::new(&self.metrics),
            tracer: None,
            records: None,
        }))
    }

    pub(crate) fn load(&self, position: usize) -> Arc<Load> {
        Arc::clone(self.store.snapshot().endpoints()[position].load())
    }

    /// Sends a request, and returns its outcome once there is one.
    pub(crate) fn send(&self, request: Request) -> Sent {
        self.send_within(request, SubsetHint::Missing)
    }

    pub(crate) fn send_within(&self, request: Request, subset: SubsetHint) -> Sent {
        let dispatcher = Arc::clone(&self.dispatcher);
        Sent(Some(tokio::spawn(async move {
            // As a stream does: at once if it can be.
            dispatcher.enter(&Arc::new(request), &subset).decided().await
        })))
    }

    /// Sends a request that has room at once.
    pub(crate) async fn pass(&self, request: Request) -> Routed {
        self.send(request).outcome().await.unwrap()
    }

    pub(crate) fn demand(&self) -> Demand {
        self.dispatcher.demand()
    }

    /// The page of metrics.
    pub(crate) fn page(&self) -> String {
        usher::metrics::render(&self.registry)
    }

    /// The value of a series, given as on the page.
    pub(crate) fn metric(&self, series: &str) -> Option<f64> {
        let page = self.page();
        let line =
            page.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    pub(crate) fn outcome(&self, outcome: &str, priority: i32) -> f64 {
        let series = format!(
            "llm_d_epp_flow_control_requests_total{{inference_pool=\"pool\",outcome=\"{outcome}\",priority=\"{priority}\"}}"
        );
        self.metric(&series).unwrap_or(0.0)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(moving) = &self.moving {
            moving.abort();
        }
    }
}

/// A request that was sent. Its client goes away when it is dropped.
pub(crate) struct Sent(Option<JoinHandle<Result<Routed, Rejection>>>);

impl Sent {
    pub(crate) async fn outcome(mut self) -> Result<Routed, Rejection> {
        self.0.take().unwrap().await.unwrap()
    }

    /// Returns `true` if there is an outcome, once every task has had its turn.
    pub(crate) async fn is_answered(&self) -> bool {
        settle().await;
        self.0.as_ref().unwrap().is_finished()
    }

    /// The outcome that is there.
    pub(crate) async fn now(self) -> Result<Routed, Rejection> {
        settle().await;
        self.outcome().now_or_never().expect("no outcome yet")
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// Lets every task do what it can without time passing. A turn of the runtime is 61 tasks.
pub(crate) async fn settle() {
    for _ in 0..400 {
        tokio::task::yield_now().await;
    }
}

/// A request of a flow.
pub(crate) fn of(flow: &str, priority: i32) -> Request {
    with(&[("x-llm-d-inference-fairness-id", flow)], priority, "hello")
}

pub(crate) fn with(headers: &[(&str, &str)], priority: i32, prompt: &str) -> Request {
    let parsers = Parsers::new(&[ParserKind::OpenAi]);
    let headers: Headers = [(":path", "/v1/completions")].iter().chain(headers).copied().collect();
    let mut parser = RequestParser::new(headers, &parsers);
    parser.push(format!(r#"{{"model":"m","prompt":"{prompt}"}}"#).into());
    let mut request = parser.finish().unwrap();
    request.priority = priority;
    request
}
