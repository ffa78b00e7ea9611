//! Bookings of requests that are under way, and their release.

use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use usher::config::EndpointPickerConfig;
use usher::endpoints::health::Verdict;
use usher::endpoints::{CachedLocator, Clock, EndpointSpec, InFlightId, Store, StoreLocator, SubsetHint};
use usher::flow::{Attempts, Dispatcher, Policy, Routed};
use usher::registry::Pipeline;
use usher::request::{Headers, ParserKind, Parsers, Request, RequestParser};
use usher::schedule::{Record, SchedulerMetrics, Served, State};

const LEAST_BUSY: &str = "
plugins:
- type: active-request-scorer
- type: max-score-picker
";

struct Pool {
    dispatcher: Arc<Dispatcher>,
    store: Arc<Store>,
    counters: InFlightId,
}

impl Pool {
    fn new(config: &str, endpoints: u8) -> Self {
        let store = Arc::new(Store::default());
        let spec = |i: u8| EndpointSpec::new(format!("pod-{i}"), ([10, 0, 0, i], 8001));
        store.replace((1..=endpoints).map(spec).collect());
        let (registry, state, clock) = (Registry::new(), State::default(), Clock::start());
        let metrics = SchedulerMetrics::register(&registry).unwrap();
        let config = EndpointPickerConfig::parse(config).unwrap();
        let pipeline = Pipeline::build(Some(&config), false, &metrics, &state).unwrap();
        let (scheduler, stages) = (pipeline.scheduler, pipeline.stages);
        let max_age = Duration::from_secs(2);
        let policy = Policy { scheduler, stages, max_age, record: Record::No };
        let locator = Arc::new(StoreLocator::new(Arc::clone(&store), false));
        let cached = CachedLocator::new(locator, clock.clone(), Duration::from_secs(60), 16);
        let attempts = Arc::new(Attempts::register(&registry).unwrap());
        let dispatcher = Arc::new(Dispatcher::new(cached, policy, clock, attempts));
        let counters = state.in_flight("inflight-load-producer").unwrap().id();
        Self { dispatcher, store, counters }
    }

    async fn send(&self, request: &Request) -> Routed {
        self.dispatcher.enter(&Arc::new(request.clone()), &SubsetHint::Missing).decided().await.unwrap()
    }

    /// Requests and tokens under way at each endpoint.
    fn booked(&self) -> Vec<(u64, u64)> {
        let of = |load: &usher::endpoints::Load| {
            let counted = load.in_flight_of(self.counters);
            (counted.requests(), counted.tokens())
        };
        self.store.snapshot().endpoints().iter().map(|endpoint| of(endpoint.load())).collect()
    }
}

fn completion(prompt: &str) -> Request {
    let parsers = Parsers::new(&[ParserKind::OpenAi]);
    let headers: Headers = [(":path", "/v1/completions")].into_iter().collect();
    let mut parser = RequestParser::new(headers, &parsers);
    parser.push(format!(r#"{{"model":"m","prompt":"{prompt}"}}"#).into());
    parser.finish().unwrap()
}

#[tokio::test]
async fn a_burst_of_equal_requests_spreads() {
    let pool = Arc::new(Pool::new(LEAST_BUSY, 8));
    // The cache is warm: deciding takes no turn of a task.
    drop(pool.send(&completion("first")).await);
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let pool = Arc::clone(&pool);
            std::thread::spawn(move || {
                let request = completion("the same");
                let dispatch =
                    || pool.dispatcher.decide_now(&request, &SubsetHint::Missing, &mut rand::rng());
                (0..32).map(|_| dispatch().unwrap().unwrap()).collect::<Vec<_>>()
            })
        })
        .collect();
    let routed: Vec<Vec<Routed>> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let requests: Vec<u64> = pool.booked().iter().map(|(requests, _)| *requests).collect();
    assert_eq!(requests, [32; 8], "256 requests over 8 endpoints");
    drop(routed);
    assert_eq!(pool.booked(), [(0, 0); 8]);
}

#[tokio::test]
async fn prompt_is_booked_until_the_first_token() {
    let pool = Pool::new(LEAST_BUSY, 1);
    let mut routed = pool.send(&completion("nine byte")).await;
    assert_eq!(pool.booked(), [(1, 3)], "nine bytes are three tokens");
    assert!(routed.response_begins(&Served::Unknown, Verdict::Good, true).is_empty());
    assert_eq!(pool.booked(), [(1, 3)]);
    routed.first_token();
    assert_eq!(pool.booked(), [(1, 0)]);
    drop(routed);
    assert_eq!(pool.booked(), [(0, 0)]);
}

#[tokio::test]
async fn booking_moves_to_the_serving_endpoint() {
    let pool = Pool::new(LEAST_BUSY, 2);
    let mut routed = pool.send(&completion("four")).await;
    let first = pool.booked().iter().position(|booked| *booked == (1, 1)).unwrap();
    let other = pool.store.snapshot().endpoints()[1 - first].authority().to_string();
    routed.response_begins(&Served::By(other), Verdict::Good, true);
    assert_eq!(pool.booked()[1 - first], (1, 1));
    assert_eq!(pool.booked()[first], (0, 0));
    drop(routed);
    assert_eq!(pool.booked(), [(0, 0); 2]);
}

#[tokio::test]
async fn booking_moves_to_the_serving_pod_behind_a_shared_port() {
    let config = "
plugins:
- type: data-parallel-profile-handler
- type: active-request-scorer
- {type: max-score-picker, parameters: {maxNumOfEndpoints: 2}}
";
    let pool = Pool::new(config, 2);
    let mut routed = pool.send(&completion("four")).await;
    let first = pool.booked().iter().position(|booked| *booked == (1, 1)).unwrap();
    // Every pod is asked at the primary port, 8000.
    let addresses: Vec<_> = pool.store.snapshot().endpoints().iter().map(|endpoint| endpoint.ip()).collect();
    routed.response_begins(&Served::By(format!("{}:8000", addresses[first])), Verdict::Good, true);
    assert_eq!(pool.booked()[first], (1, 1), "the first choice served");
    drop(routed);
    let mut routed = pool.send(&completion("four")).await;
    let first = pool.booked().iter().position(|booked| *booked == (1, 1)).unwrap();
    routed.response_begins(&Served::By(format!("{}:8000", addresses[1 - first])), Verdict::Good, true);
    assert_eq!((pool.booked()[first], pool.booked()[1 - first]), ((0, 0), (1, 1)));
    drop(routed);
    assert_eq!(pool.booked(), [(0, 0); 2]);
}

#[tokio::test]
async fn probable_output_is_booked_to_the_end() {
    let config = "
plugins:
- type: inflight-load-producer
  parameters: {addEstimatedOutputTokens: true, outputRatio: 2, maxEstimatedOutputTokens: 50}
- type: active-request-scorer
";
    let pool = Pool::new(config, 1);
    let mut routed = pool.send(&completion(&"x".repeat(40))).await;
    assert_eq!(pool.booked(), [(1, 30)], "ten tokens in, twenty out");
    routed.first_token();
    assert_eq!(pool.booked(), [(1, 30)]);
    drop(routed);
    let routed = pool.send(&completion(&"x".repeat(400))).await;
    assert_eq!(pool.booked(), [(1, 150)], "a hundred in, fifty out at most");
    drop(routed);
}

#[tokio::test]
async fn both_stages_are_booked_and_prefill_ends_with_the_first_token() {
    let config = "
plugins:
- type: disagg-profile-handler
  parameters: {deciders: {prefill: always-disagg-pd-decider}}
- type: always-disagg-pd-decider
- type: active-request-scorer
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: active-request-scorer}]}
- {name: decode, plugins: [{pluginRef: active-request-scorer}]}
";
    let pool = Pool::new(config, 1);
    let mut routed = pool.send(&completion("nine byte")).await;
    // A block that is not full counts as one that is, as in llm-d-router.
    assert_eq!(pool.booked(), [(2, 128)], "the only one does both");
    routed.first_token();
    assert_eq!(pool.booked(), [(1, 0)], "it decodes");
    drop(routed);
    assert_eq!(pool.booked(), [(0, 0)]);
}
