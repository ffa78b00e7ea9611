//! Endpoints that fail, and the decisions that keep requests from them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use prometheus::Registry;
use rand::SeedableRng;
use rand::rngs::StdRng;
use usher::config::EndpointPickerConfig;
use usher::endpoints::health::{HealthParams, OutlierDetector, OutlierMetrics, Verdict};
use usher::endpoints::{CachedLocator, Clock, Endpoint, EndpointSpec, Store, StoreLocator, SubsetHint};
use usher::flow::{Attempts, Dispatcher, Policy, Rejection, Routed};
use usher::registry::Pipeline;
use usher::request::usage::Usage;
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

const EXPECTED_LATENCY: &str = include_str!("../../deploy/config/expected-latency.yaml");

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
        let ejections = families.iter().filter(|family| family.name() == "usher_endpoint_demotions_total");
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

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn failed_responses_eject_the_picked_endpoint() {
    let pool = Pool::new(BY_QUEUE, &[None; 4]);
    // The last has the shortest queue.
    for _ in 0..3 {
        assert_eq!(pool.answered(Verdict::Failed(503)), "10.0.0.4:8000");
    }
    for _ in 0..50 {
        assert_eq!(pool.answered(Verdict::Good), "10.0.0.3:8000");
    }
    assert!(pool.endpoint(4).health().is_ejected() && !pool.endpoint(3).health().is_ejected());
}

#[test]
fn ejected_endpoint_is_probed_despite_its_scores() {
    let pool = Pool::new(BY_QUEUE, &[None; 4]);
    pool.eject(1);
    // It has the longest queue, so that no scorer would ever take it.
    let mut probes = Vec::new();
    for ms in 0..4000 {
        if pool.answered(Verdict::Good) == "10.0.0.1:8000" {
            probes.push(ms);
        }
        pool.pass(Duration::from_millis(1));
    }
    assert_eq!(probes, [1000, 1500, 1750, 1875]);
    assert!(pool.outliers.is_empty());
}

#[test]
fn only_one_probe_is_in_flight_per_endpoint() {
    let pool = Pool::new(BY_QUEUE, &[None; 4]);
    pool.eject(1);
    pool.pass(SECOND);
    let probe = pool.send(&[]);
    assert_eq!(destination(&probe), "10.0.0.1:8000");
    for _ in 0..50 {
        pool.pass(Duration::from_millis(100));
        assert_eq!(destination(&pool.send(&[])), "10.0.0.4:8000");
    }
    // Its client goes away without a response: that says nothing, and the next one may go.
    drop(probe);
    pool.pass(SECOND);
    assert_eq!(destination(&pool.send(&[])), "10.0.0.1:8000");
    assert!(pool.endpoint(1).health().is_ejected());
}

#[test]
fn filters_apply_to_probes_and_keep_an_endpoint() {
    let pool = Pool::new(BY_HEADER, &[None; 4]);
    pool.eject(2);
    pool.pass(SECOND);
    let to = |only: &str| destination(&pool.send(&[(ONLY, only)]));
    for only in ["10.0.0.1", "10.0.0.3", "10.0.0.4"] {
        assert_eq!(to(only), format!("{only}:8000"));
    }
    pool.pass(Duration::from_millis(10));
    assert_eq!(to("10.0.0.2,10.0.0.4"), "10.0.0.2:8000", "a request that may go there is the probe");
    // Nobody who is well may have it.
    assert_eq!(to("10.0.0.2"), "10.0.0.2:8000");
    assert_eq!(pool.outliers.metrics().overruled.get(), 1);
}

#[test]
fn ejected_endpoint_gets_no_overflow_of_saturated_ones() {
    let pool = Pool::new(BY_ROOM, &[None; 4]);
    pool.eject(1);
    let _busy: Vec<_> = (0..3).map(|_| pool.send(ANY)).collect();
    let refused = |headers: &[(&str, &str)]| {
        let rejection = pool.try_send(headers).unwrap_err();
        assert_eq!((rejection.code.status(), rejection.reason), (429, Some("rejected-saturated")));
    };
    (0..50).for_each(|_| refused(ANY));
    // It is the detector that keeps it from the second, whatever comes behind it.
    refused(&[(ONLY, "10.0.0.1,10.0.0.2")]);
    assert_eq!(pool.outliers.metrics().overruled.get(), 0);
    // The others would not do if they had room.
    assert_eq!(destination(&pool.send(&[(ONLY, "10.0.0.1")])), "10.0.0.1:8000");
    assert_eq!(pool.outliers.metrics().overruled.get(), 1);
    pool.pass(SECOND);
    let probe = pool.send(ANY);
    assert_eq!(destination(&probe), "10.0.0.1:8000");
    (0..50).for_each(|_| refused(ANY));
}

#[test]
fn with_half_of_the_pool_ejected_the_other_half_serves() {
    let pool = Pool::new(BY_QUEUE, &[None; 4]);
    pool.eject(4);
    pool.eject(3);
    (0..50).for_each(|_| assert_eq!(destination(&pool.send(&[])), "10.0.0.2:8000"));
}

/// Number of requests to each of four endpoints, the first of which has the longest queue.
fn shares(pool: &Pool, requests: usize, verdict: impl Fn(&str) -> Verdict) -> [usize; 4] {
    let mut shares = [0; 4];
    for _ in 0..requests {
        let mut routed = pool.send(&[]);
        let to = destination(&routed);
        shares[to["10.0.0.".len()..].split(':').next().unwrap().parse::<usize>().unwrap() - 1] += 1;
        routed.response_begins(&Served::Unknown, verdict(&to), false);
    }
    shares
}

#[test]
fn beyond_half_ejected_fast_failures_are_not_preferred() {
    let pool = Pool::new(BY_QUEUE, &[None; 4]);
    (2..=4).for_each(|number| pool.eject(number));
    let fails = |to: &str| if to == "10.0.0.1:8000" { Verdict::Good } else { Verdict::Failed(503) };
    let [well, failing @ ..] = shares(&pool, 1000, fails);
    assert!((420..=580).contains(&well), "{well} are not two shares of four");
    assert!(failing.iter().all(|count| (110..=225).contains(count)), "{failing:?}");
    let overruled = pool.outliers.metrics().overruled.get();
    assert_eq!(overruled, failing.iter().sum::<usize>() as u64);
}

#[test]
fn first_recovery_is_found_when_the_whole_pool_is_ejected() {
    let pool = Pool::new(BY_QUEUE, &[None; 4]);
    (1..=4).for_each(|number| pool.eject(number));
    pool.pass(SECOND);
    let fails = |to: &str| if to == "10.0.0.1:8000" { Verdict::Good } else { Verdict::Failed(503) };
    shares(&pool, 100, fails);
    assert!(!pool.endpoint(1).health().is_ejected(), "it has the longest queue");
    assert!(pool.endpoint(4).health().is_ejected());
    // Then half of them by their requests, and the others by probes.
    for _ in 0..10 {
        shares(&pool, 100, |_| Verdict::Good);
        pool.pass(2 * SECOND);
    }
    assert!(pool.outliers.is_empty());
}

#[test]
fn pairs_are_picked_when_all_prefill_endpoints_are_ejected() {
    let roles = [Some("prefill"), Some("prefill"), Some("decode"), Some("decode")];
    let pool = Pool::new(PAIRS, &roles);
    for number in 1..=3 {
        pool.eject(number);
    }
    let prefills: Vec<String> = (0..50)
        .map(|_| {
            let routed = pool.send(&[]);
            let decision = routed.decision();
            assert_eq!(decision.primary_endpoint().name(), "pod-4");
            decision.endpoints_of(decision.run("prefill").unwrap()).next().unwrap().name().to_owned()
        })
        .collect();
    assert!(prefills.iter().any(|name| name == "pod-1") && prefills.iter().any(|name| name == "pod-2"));
}

#[test]
fn request_stays_on_healthy_endpoints_the_filters_allow() {
    let pool = Pool::new(BY_HEADER, &[None; 4]);
    (2..=4).for_each(|number| pool.eject(number));
    for _ in 0..50 {
        assert_eq!(destination(&pool.send(&[(ONLY, "10.0.0.1")])), "10.0.0.1:8000");
    }
}

#[test]
fn passthrough_requests_do_not_probe_or_recover() {
    let pool = Pool::new(BY_QUEUE, &[None; 4]);
    let page = || {
        let headers = [(":method", "GET"), (":path", "/v1/models")].into_iter().collect();
        let request = RequestParser::new(headers, &Parsers::new(&[ParserKind::PassThrough])).without_body();
        pool.dispatcher
            .enter(&Arc::new(request.clone()), &SubsetHint::Missing)
            .decided()
            .now_or_never()
            .unwrap()
            .unwrap()
    };
    for _ in 0..3 {
        pool.answered(Verdict::Failed(500));
        page().response_begins(&Served::Unknown, Verdict::Good, false);
    }
    assert!(pool.endpoint(4).health().is_ejected());
    pool.pass(SECOND);
    assert_eq!(destination(&page()), "10.0.0.3:8000");
    assert_eq!(destination(&pool.send(&[])), "10.0.0.4:8000");
}

#[test]
fn response_by_a_fallback_counts_as_a_failure() {
    let pool = Pool::new(TWO_PICKS, &[None; 4]);
    let served = |by: &str| {
        let mut routed = pool.send(&[]);
        routed.response_begins(&Served::By(by.to_owned()), Verdict::Good, false);
        destination(&routed)
    };
    served("10.0.0.4:8000");
    // Whom the pool doesn't know says nothing.
    (0..5).for_each(|_| drop(served("10.9.9.9:8000")));
    for _ in 0..3 {
        assert_eq!(served("10.0.0.3:8000"), "10.0.0.4:8000,10.0.0.3:8000");
    }
    assert_eq!(served("10.0.0.3:8000"), "10.0.0.3:8000,10.0.0.2:8000");
    // Its probe has somebody to fall back on, as the gateway tells who served.
    pool.pass(SECOND);
    assert_eq!(served("10.0.0.3:8000"), "10.0.0.4:8000,10.0.0.3:8000");
    assert_eq!(served("10.0.0.3:8000"), "10.0.0.3:8000,10.0.0.2:8000");
    // A good response of the fallback is none of the endpoint that is probed.
    pool.pass(2 * SECOND);
    assert_eq!(served("10.0.0.3:8000"), "10.0.0.4:8000,10.0.0.3:8000");
    for _ in 0..4 {
        pool.pass(2 * SECOND);
        assert_eq!(served("10.0.0.4:8000"), "10.0.0.4:8000,10.0.0.3:8000");
    }
    assert!(pool.outliers.is_empty());
}

#[test]
fn probe_has_no_fallback_without_served_metadata() {
    let pool = Pool::new(TWO_PICKS, &[None; 4]);
    pool.eject(4);
    pool.pass(SECOND);
    assert_eq!(destination(&pool.send(&[])), "10.0.0.4:8000");
}

#[test]
fn failed_pair_ejects_the_decode_endpoint() {
    let roles = [Some("prefill"), Some("prefill"), Some("decode"), Some("decode")];
    let pool = Pool::new(PAIRS, &roles);
    for _ in 0..3 {
        assert_eq!(pool.answered(Verdict::Failed(502)), "10.0.0.4:8000");
    }
    assert!(pool.endpoint(4).health().is_ejected() && !pool.endpoint(2).health().is_ejected());
    let pair = |routed: &Routed| {
        let decision = routed.decision();
        let prefill = decision.endpoints_of(decision.run("prefill").unwrap()).next().unwrap();
        (prefill.name().to_owned(), decision.primary_endpoint().name().to_owned())
    };
    assert_eq!(pair(&pool.send(&[])), ("pod-2".to_owned(), "pod-3".to_owned()));
    pool.pass(SECOND);
    assert_eq!(pair(&pool.send(&[])), ("pod-2".to_owned(), "pod-4".to_owned()), "the probe is a pair, too");
    // One that computes prompts and can't be scraped any more.
    let health = Arc::clone(pool.endpoint(2).health());
    (0..9).for_each(|_| health.scrape_failed(false));
    assert!(!health.is_ejected(), "it may never have shown its metrics at this port");
    health.scrape_succeeded();
    (0..3).for_each(|_| health.scrape_failed(false));
    assert_eq!(pair(&pool.send(&[])), ("pod-1".to_owned(), "pod-3".to_owned()));
    (0..4).for_each(|_| health.scrape_succeeded());
    assert_eq!(pair(&pool.send(&[])), ("pod-2".to_owned(), "pod-3".to_owned()));
}

#[test]
fn server_that_finishes_responses_survives_failed_scrapes() {
    let pool = Pool::new(BY_QUEUE, &[None; 4]);
    let health = Arc::clone(pool.endpoint(4).health());
    health.scrape_succeeded();
    let begun = |verdict| {
        let mut routed = pool.send(&[]);
        routed.response_begins(&Served::Unknown, verdict, true);
        routed
    };
    let mut streams: Vec<_> = (0..5).map(|_| begun(Verdict::Good)).collect();
    while let Some(mut stream) = streams.pop() {
        (0..2).for_each(|_| health.scrape_failed(false));
        assert!(!health.is_ejected());
        stream.response_ends(&Usage::default(), 0);
    }
    // The end of an error is no sign of life, nor is a stream that breaks.
    let (mut error, broken) = (begun(Verdict::Failed(503)), begun(Verdict::Good));
    (0..2).for_each(|_| health.scrape_failed(false));
    error.response_ends(&Usage::default(), 0);
    drop(broken);
    health.scrape_failed(false);
    assert!(health.is_ejected());
}

#[test]
fn unprobed_prefill_endpoint_does_not_block_decode_probes() {
    let roles = [Some("prefill"), Some("decode"), Some("prefill"), Some("decode")];
    let pool = Pool::new(PAIRS, &roles);
    let prefill = Arc::clone(pool.endpoint(1).health());
    prefill.scrape_succeeded();
    (0..3).for_each(|_| prefill.scrape_failed(false));
    pool.eject(2);
    let decode = Arc::clone(pool.endpoint(2).health());
    let works_again = 3 * SECOND;
    while decode.is_ejected() && pool.clock.elapsed() < works_again + 6 * SECOND {
        let mut routed = pool.send(&[]);
        let is_broken = destination(&routed) == "10.0.0.2:8000" && pool.clock.elapsed() < works_again;
        let verdict = if is_broken { Verdict::Failed(503) } else { Verdict::Good };
        routed.response_begins(&Served::Unknown, verdict, false);
        drop(routed);
        pool.pass(Duration::from_millis(50));
    }
    let elapsed = pool.clock.elapsed();
    assert!(!decode.is_ejected() && elapsed > works_again, "{elapsed:?}");
    assert!(elapsed <= works_again + 5 * SECOND, "{elapsed:?}");
    assert!(prefill.is_ejected());
}

/// Requests, of 200 per second, that reach one of ten endpoints which fails them at once, and its recovery.
struct Outage {
    /// Its share of the requests in the ten seconds in which it fails.
    broken: f64,
    /// When it is well after it works again.
    recovered: Option<Duration>,
    /// Its share in the five seconds that begin five seconds after it works again.
    after: f64,
}

fn outage(config: &str, params: HealthParams) -> Outage {
    const GAP_MS: u64 = 5;
    let pool = Pool::with(config, &[None; 10], params);
    for endpoint in pool.store.snapshot().endpoints() {
        for gauge in [&endpoint.load().waiting, &endpoint.load().running] {
            gauge.set(0.0, pool.clock.now_ms());
        }
    }
    let (request, mut rng) = (request(&[]), StdRng::seed_from_u64(7));
    drop(pool.send(&[]));
    let mut under_way = VecDeque::new();
    let (mut broken, mut recovered, mut after) = (0, None, 0);
    let (breaks, works, late, end) = (1000, 11_000, 16_000, 21_000);
    for ms in (0..end).step_by(GAP_MS as usize) {
        while let Some((_, mut routed)) = under_way.pop_front_if(|(ends, _): &mut (u64, Routed)| *ends <= ms)
        {
            routed.response_begins(&Served::Unknown, Verdict::Good, false);
        }
        if ms >= works && recovered.is_none() && pool.outliers.is_empty() {
            recovered = Some(Duration::from_millis(ms - works));
        }
        let routed = pool.dispatcher.decide_now(&request, &SubsetHint::Missing, &mut rng);
        let mut routed = routed.unwrap().unwrap();
        let is_it = destination(&routed) == "10.0.0.1:8000";
        if is_it && (breaks..works).contains(&ms) {
            broken += 1;
            routed.response_begins(&Served::Unknown, Verdict::Failed(503), false);
        } else {
            after += usize::from(is_it && ms >= late);
            under_way.push_back((ms + 100, routed));
        }
        pool.pass(Duration::from_millis(GAP_MS));
    }
    let share = |count: usize, ms: u64| count as f64 / (ms / GAP_MS) as f64;
    Outage { broken: share(broken, works - breaks), recovered, after: share(after, end - late) }
}

#[test]
fn failing_endpoint_gets_few_requests_and_recovers_soon() {
    for config in [BY_REQUESTS, EXPECTED_LATENCY] {
        let unwatched = outage(config, HealthParams { failures: u32::MAX, ..HealthParams::default() });
        assert!(unwatched.broken > 0.3, "it draws requests: {}", unwatched.broken);
        let watched = outage(config, HealthParams::default());
        assert!(watched.broken > 0.0 && watched.broken < 0.01, "{}", watched.broken);
        assert!(watched.recovered.is_some_and(|after| after <= 5 * SECOND), "{:?}", watched.recovered);
        assert!((0.05..0.2).contains(&watched.after), "{}", watched.after);
    }
}

#[test]
fn stream_without_a_first_token_is_no_success() {
    let pool = Pool::new(BY_QUEUE, &[None; 4]);
    for _ in 0..2 {
        pool.answered(Verdict::Failed(503));
        // It sends headers at once, and tokens never.
        pool.send(&[]).response_begins(&Served::Unknown, Verdict::Good, true);
    }
    pool.answered(Verdict::Failed(503));
    assert!(pool.endpoint(4).health().is_ejected());
    pool.pass(SECOND);
    let mut probe = pool.send(&[]);
    probe.response_begins(&Served::Unknown, Verdict::Good, true);
    pool.pass(2 * SECOND);
    assert_eq!(destination(&pool.send(&[])), "10.0.0.3:8000", "the probe is still out");
    probe.first_token();
    drop(probe);
    pool.pass(SECOND);
    assert_eq!(destination(&pool.send(&[])), "10.0.0.4:8000");
}

#[test]
fn endpoint_refusing_connections_gets_no_probe() {
    let pool = Pool::new(BY_QUEUE, &[None; 4]);
    let health = Arc::clone(pool.endpoint(4).health());
    health.scrape_succeeded();
    pool.eject(4);
    health.scrape_failed(true);
    for _ in 0..60 {
        pool.pass(SECOND);
        assert_eq!(destination(&pool.send(&[])), "10.0.0.3:8000");
    }
    health.scrape_succeeded();
    assert_eq!(destination(&pool.send(&[])), "10.0.0.4:8000");
}
