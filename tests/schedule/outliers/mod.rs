//! Endpoints that fail, and the decisions that keep requests from them.

mod ejected_pools;
mod outage;
mod probes;
mod signals;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use prometheus::Registry;
use usher::config::EndpointPickerConfig;
use usher::endpoints::health::{HealthParams, OutlierDetector, OutlierMetrics, Verdict};
use usher::endpoints::{CachedLocator, Clock, Endpoint, EndpointSpec, Store, StoreLocator, SubsetHint};
use usher::flow::{Attempts, Dispatcher, Policy, Rejection, Routed};
use usher::registry::Pipeline;
use usher::request::{ParserKind, Parsers, Request, RequestParser};
use usher::schedule::{Record, SchedulerMetrics, Served, State};

pub(crate) const BY_QUEUE: &str = "
plugins: [{type: queue-scorer}, {type: header-based-testing-filter}]
schedulingProfiles:
- {name: default, plugins: [{pluginRef: queue-scorer}]}
";

pub(crate) const BY_HEADER: &str = "
plugins: [{type: queue-scorer}, {type: header-based-testing-filter}]
schedulingProfiles:
- {name: default, plugins: [{pluginRef: header-based-testing-filter}, {pluginRef: queue-scorer}]}
";

const BY_ROOM: &str = "
plugins:
- {type: concurrency-detector, parameters: {maxConcurrency: 1}}
- type: header-based-testing-filter
- type: queue-scorer
schedulingProfiles:
- name: default
  plugins: [{pluginRef: concurrency-detector}, {pluginRef: header-based-testing-filter}, {pluginRef: queue-scorer}]
";

pub(crate) const BY_REQUESTS: &str = "
plugins: [{type: active-request-scorer}]
schedulingProfiles:
- {name: default, plugins: [{pluginRef: active-request-scorer}]}
";

const TWO_PICKS: &str = "
plugins: [{type: queue-scorer}, {type: max-score-picker, parameters: {maxNumOfEndpoints: 2}}]
schedulingProfiles:
- {name: default, plugins: [{pluginRef: queue-scorer}, {pluginRef: max-score-picker}]}
";

const PAIRS: &str = "
plugins:
- type: always-disagg-pd-decider
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
- type: prefill-filter
- type: decode-filter
- type: queue-scorer
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: queue-scorer}]}
- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: queue-scorer}]}
";

const SECOND: Duration = Duration::from_secs(1);

/// Header of the filter that takes endpoints by their address.
pub(crate) const ONLY: &str = "test-epp-endpoint-selection";

/// Header that selects any of four.
const ANY: &[(&str, &str)] = &[(ONLY, "10.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4")];

pub(crate) struct Pool {
    registry: Registry,
    pub(crate) clock: Clock,
    pub(crate) outliers: Arc<OutlierDetector>,
    pub(crate) store: Arc<Store>,
    pub(crate) dispatcher: Arc<Dispatcher>,
}

impl Pool {
    /// `pod-1` … with these roles, the first ones with the longest queues.
    pub(crate) fn new(config: &str, roles: &[Option<&str>]) -> Self {
        Self::with(config, roles, HealthParams::default())
    }

    pub(crate) fn with(config: &str, roles: &[Option<&str>], params: HealthParams) -> Self {
        let (registry, clock) = (Registry::new(), Clock::stopped());
        let metrics = OutlierMetrics::register(&registry).unwrap();
        let outliers = Arc::new(OutlierDetector::new(params, clock.clone(), metrics));
        let store = Arc::new(Store::watched(Arc::clone(&outliers)));
        let spec = |(role, i): (&Option<&str>, u8)| {
            let mut spec = EndpointSpec::new(format!("pod-{i}"), ([10, 0, 0, i], 8000));
            spec.labels =
                role.map(|role| ("llm-d.ai/role".to_owned(), role.to_owned())).into_iter().collect();
            spec
        };
        store.replace(roles.iter().zip(1..).map(spec).collect());
        let queue = (0..roles.len()).rev().map(|queue| queue as f64);
        for (endpoint, queue) in store.snapshot().endpoints().iter().zip(queue) {
            endpoint.load().waiting.set(queue, clock.now_ms());
        }
        let state = State::new(clock.clone());
        let metrics = SchedulerMetrics::register(&registry).unwrap();
        let config = EndpointPickerConfig::parse(config).unwrap();
        let pipeline = Pipeline::build(Some(&config), true, &metrics, &state).unwrap();
        let (scheduler, stages) = (pipeline.scheduler, pipeline.stages);
        let policy = Policy { scheduler, stages, max_age: Duration::from_secs(3600), record: Record::No };
        let locator = Arc::new(StoreLocator::new(Arc::clone(&store), false));
        let cached = CachedLocator::new(locator, clock.clone(), Duration::from_secs(3600), 16);
        let attempts = Arc::new(Attempts::register(&registry).unwrap());
        let dispatcher =
            Arc::new(Dispatcher::new(cached, policy, clock.clone(), attempts).watched(Arc::clone(&outliers)));
        Self { registry, clock, outliers, store, dispatcher }
    }

    fn try_send(&self, headers: &[(&str, &str)]) -> Result<Routed, Rejection> {
        let request = request(headers);
        self.dispatcher
            .enter(&Arc::new(request.clone()), &SubsetHint::Missing)
            .decided()
            .now_or_never()
            .unwrap()
    }

    pub(crate) fn send(&self, headers: &[(&str, &str)]) -> Routed {
        self.try_send(headers).unwrap()
    }

    /// The destination of a request that is answered so by its first choice.
    fn answered(&self, verdict: Verdict) -> String {
        let mut routed = self.send(&[]);
        routed.response_begins(&Served::Unknown, verdict, false);
        destination(&routed)
    }

    fn endpoint(&self, number: usize) -> Arc<Endpoint> {
        Arc::clone(&self.store.snapshot().endpoints()[number - 1])
    }

    /// Fails until it is ejected.
    fn eject(&self, number: usize) {
        let health = Arc::clone(self.endpoint(number).health());
        (0..3).for_each(|_| health.ended(Verdict::Failed(503), self.clock.now_ms()));
        assert!(health.is_ejected());
    }

    pub(crate) fn ejections(&self) -> f64 {
        let families = self.registry.gather();
        let ejections = families.iter().filter(|family| family.name() == "usher_endpoint_ejections_total");
        ejections.flat_map(|family| family.get_metric()).map(|metric| metric.get_counter().get_value()).sum()
    }

    fn pass(&self, time: Duration) {
        self.clock.set(self.clock.elapsed() + time);
    }
}

pub(crate) fn request(headers: &[(&str, &str)]) -> Request {
    let headers =
        [(":method", "POST"), (":path", "/v1/completions")].iter().chain(headers).copied().collect();
    let mut parser = RequestParser::new(headers, &Parsers::new(&[ParserKind::OpenAi]));
    parser.push(r#"{"model":"m","prompt":"x"}"#.into());
    parser.finish().unwrap()
}

pub(crate) fn destination(routed: &Routed) -> String {
    String::from_utf8(routed.destination().to_vec()).unwrap()
}
