//! A picker without sockets: the built-in configuration over some endpoints.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prometheus::Registry;
use usher::endpoints::{CachedLocator, Clock, EndpointSpec, Store, StoreLocator};
use usher::extproc::exchange::Shared;
use usher::extproc::metrics::ExtProcMetrics;
use usher::extproc::parsing::Parsing;
use usher::flow::{Attempts, Dispatcher, Policy};
use usher::registry::Pipeline;
use usher::request::Parsers;
use usher::schedule::{PrefixCaches, Record, SchedulerMetrics, State};

/// State that an exchange needs, and the server.
pub struct Picker {
    pub shared: Arc<Shared>,
    pub dispatcher: Arc<Dispatcher>,
    caches: Arc<PrefixCaches>,
}

impl Picker {
    /// A picker over `count` endpoints with fresh, different loads.
    pub fn new(count: u16) -> Self {
        let registry = Registry::new();
        let store = Arc::new(Store::default());
        let spec = |i: u16| EndpointSpec::new(format!("pod-{i}"), ([10, 0, (i >> 8) as u8, i as u8], 8000));
        store.replace((0..count).map(spec).collect());
        let clock = Clock::start();
        for (index, endpoint) in store.snapshot().endpoints().iter().enumerate() {
            endpoint.load().waiting.set((index % 7) as f64, clock.now_ms());
            endpoint.load().kv_usage.set((index % 11) as f64 / 11.0, clock.now_ms());
        }
        let metrics = SchedulerMetrics::register(&registry).unwrap();
        let state = State::default();
        let pipeline = Pipeline::build(None, false, &metrics, &state).unwrap();
        let (_, caches) = state.all::<PrefixCaches>().remove(0);
        let locator = Arc::new(StoreLocator::new(store, false));
        let hour = Duration::from_secs(3600);
        let (scheduler, stages) = (pipeline.scheduler, pipeline.stages);
        let policy = Policy { scheduler, stages, max_age: hour, record: Record::No };
        let dispatcher = Dispatcher::new(
            CachedLocator::new(locator, clock.clone(), hour, 16),
            policy,
            clock,
            Arc::new(Attempts::register(&registry).unwrap()),
        );
        let shared = Shared {
            parsers: Parsers::new(&pipeline.parsers),
            max_request_body_bytes: 32 << 20,
            budget: Arc::default(),
            policy: dispatcher.policy().clone(),
            rules: Arc::default(),
            metrics: ExtProcMetrics::register(&registry, false).unwrap(),
            parsing: Parsing::new(&metrics),
            tracer: None,
            records: None,
        };
        Self { shared: Arc::new(shared), dispatcher: Arc::new(dispatcher), caches }
    }

    /// Waits until the thread that learns what was sent has nothing to do.
    #[allow(dead_code, reason = "benchmarks measure it as it comes")]
    pub fn learned(&self) {
        self.caches.flush();
    }
}

/// A response with usage.
pub fn response() -> Bytes {
    Bytes::from_static(
        br#"{"id":"c-1","object":"text_completion","model":"m","choices":[{"index":0,"text":"hello","finish_reason":"length"}],"usage":{"prompt_tokens":50,"completion_tokens":16,"total_tokens":66}}"#,
    )
}
