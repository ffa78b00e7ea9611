//! Bookings from several threads while the pool changes and is swept: nothing is lost, and
//! everything comes back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use prometheus::Registry;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use usher::config::EndpointPickerConfig;
use usher::endpoints::health::Verdict;
use usher::endpoints::{
    CachedLocator, Clock, EndpointSpec, InFlightId, Load, Share, Store, StoreLocator, SubsetHint,
};
use usher::flow::{Attempts, Dispatcher, Policy, Routed};
use usher::metrics::render;
use usher::registry::Pipeline;
use usher::request::usage::Usage;
use usher::request::{Headers, ParserKind, Parsers, Request, RequestParser};
use usher::schedule::{Record, SchedulerMetrics, Served, State};

const CONFIG: &str = "
plugins:
- type: active-request-scorer
- {type: max-score-picker, parameters: {maxNumOfEndpoints: 2}}
";
const PODS: u8 = 6;
const THREADS: u64 = 4;
const STEPS: usize = 1500;
/// Tokens of every prompt.
const TOKENS: u64 = 2;

struct Pool {
    dispatcher: Arc<Dispatcher>,
    store: Arc<Store>,
    state: State,
    registry: Registry,
    counters: InFlightId,
    /// Every load that there ever was, by its place in memory: an endpoint that comes back
    /// has a new one.
    loads: Mutex<HashMap<usize, Arc<Load>>>,
}

impl Pool {
    fn new() -> Self {
        let store = Arc::new(Store::default());
        let (registry, state, clock) = (Registry::new(), State::default(), Clock::start());
        let metrics = SchedulerMetrics::register(&registry).unwrap();
        let config = EndpointPickerConfig::parse(CONFIG).unwrap();
        let pipeline = Pipeline::build(Some(&config), false, &metrics, &state).unwrap();
        let (scheduler, stages) = (pipeline.scheduler, pipeline.stages);
        let policy = Policy { scheduler, stages, max_age: Duration::from_secs(2), record: Record::No };
        let locator = Arc::new(StoreLocator::new(Arc::clone(&store), false));
        let cached = CachedLocator::new(locator, clock.clone(), Duration::from_secs(60), 16);
        let attempts = Arc::new(Attempts::register(&registry).unwrap());
        let dispatcher = Arc::new(Dispatcher::new(cached, policy, clock, attempts));
        let counters = state.in_flight("inflight-load-producer").unwrap().id();
        let pool = Self { dispatcher, store, state, registry, counters, loads: Mutex::default() };
        pool.change((1..=PODS).collect());
        pool
    }

    /// Makes these pods the pool.
    fn change(&self, pods: Vec<u8>) {
        self.store
            .replace(pods.into_iter().map(|i| EndpointSpec::new(format!("pod-{i}"), address(i))).collect());
        let mut loads = self.loads.lock().unwrap();
        for endpoint in self.store.snapshot().endpoints() {
            let load = endpoint.load();
            loads.insert(Arc::as_ptr(load) as usize, Arc::clone(load));
        }
    }

    fn loads(&self) -> Vec<Arc<Load>> {
        self.loads.lock().unwrap().values().cloned().collect()
    }

    /// Requests and tokens in the counters of all loads.
    fn counted(&self) -> (u64, u64) {
        self.loads().iter().fold((0, 0), |(requests, tokens), load| {
            let counted = load.in_flight_of(self.counters);
            (requests + counted.own_requests(), tokens + counted.own_tokens())
        })
    }

    /// Sum over all series of a family.
    fn exported(&self, family: &str) -> i64 {
        let text = render(&self.registry);
        let lines = text.lines().filter(|line| line.starts_with(family));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<i64>().unwrap()).sum()
    }
}

fn address(pod: u8) -> ([u8; 4], u16) {
    ([10, 0, 0, pod], 8001)
}

fn request(flow: &str) -> Request {
    let headers: Headers =
        [(":path", "/v1/completions"), ("x-llm-d-inference-fairness-id", flow)].into_iter().collect();
    let mut parser = RequestParser::new(headers, &Parsers::new(&[ParserKind::OpenAi]));
    parser.push(r#"{"model":"m","prompt":"eightbyt"}"#.into());
    parser.finish().unwrap()
}

/// A request under way, and whether its tokens are still counted.
type Held = (Routed, bool);

/// Sends requests and takes them through what responses do, in any order. Returns those
/// that are still under way.
fn traffic(pool: &Pool, seed: u64) -> Vec<Held> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut rng = StdRng::seed_from_u64(seed);
    let requests = ["", "gold", "iron"].map(request);
    let mut held: Vec<Held> = Vec::new();
    for _ in 0..STEPS {
        let choice = rng.random_range(0..100);
        if held.is_empty() || (choice < 35 && held.len() < 40) {
            let request = &requests[rng.random_range(0..requests.len())];
            let routed = runtime
                .block_on(pool.dispatcher.enter(&Arc::new(request.clone()), &SubsetHint::Missing).decided());
            held.push((routed.unwrap(), true));
            continue;
        }
        let at = rng.random_range(0..held.len());
        let (routed, has_tokens) = &mut held[at];
        match choice {
            0..60 => {
                // A pod that may be gone, or never was.
                let pod = rng.random_range(1..=PODS + 1);
                routed.response_begins(&Served::By(format!("10.0.0.{pod}:8001")), Verdict::Good, true);
            }
            60..75 => {
                routed.first_token();
                *has_tokens = false;
            }
            75..85 => {
                routed.response_ends(&Usage::default(), 0);
            }
            _ => drop(held.swap_remove(at)),
        }
    }
    held
}

#[test]
fn concurrent_bookings_are_seen_and_released() {
    let pool = Pool::new();
    let (start, over) = (Barrier::new(THREADS as usize + 1), AtomicBool::new(false));
    let mut held: Vec<Held> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|seed| {
                let (pool, start) = (&pool, &start);
                scope.spawn(move || {
                    start.wait();
                    traffic(pool, seed)
                })
            })
            .collect();
        let changes = scope.spawn(|| {
            let mut rng = StdRng::seed_from_u64(99);
            start.wait();
            let mut now_ms = 0;
            while !over.load(Relaxed) {
                // There is always somebody to send to.
                let pods = (1..=PODS).filter(|pod| *pod == 1 || rng.random_bool(0.6));
                pool.change(pods.collect());
                // What is not in use goes at every second sweep.
                now_ms += 200_000;
                pool.state.sweep(&pool.store.snapshot(), now_ms);
            }
        });
        let held = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        over.store(true, Relaxed);
        changes.join().unwrap();
        held
    });

    let (requests, tokens) = (held.len() as u64, TOKENS * held.iter().filter(|(_, has)| *has).count() as u64);
    assert!(requests > 0 && tokens > 0 && tokens < TOKENS * requests, "{requests} {tokens}");
    assert_eq!(pool.counted(), (requests, tokens));
    assert_eq!(pool.loads().iter().map(|load| load.in_flight()).sum::<i64>(), requests as i64);
    assert_eq!(pool.exported("llm_d_epp_inflight_requests{"), requests as i64);
    assert_eq!(pool.exported("llm_d_epp_inflight_tokens{"), tokens as i64);

    held.clear();
    let text = render(&pool.registry);
    let series = || text.lines().filter(|line| line.starts_with("llm_d_epp_inflight_"));
    assert!(series().count() > 0 && series().all(|line| line.ends_with(" 0")), "{text}");
    for load in pool.loads() {
        assert_eq!(load.in_flight(), 0);
        // Nothing is below 0 either: what is counted next is all there is.
        let share = Share::new(&load, pool.counters, 7);
        let counted = load.in_flight_of(pool.counters);
        assert_eq!((counted.own_requests(), counted.own_tokens()), (1, 7));
        drop(share);
        assert_eq!((counted.own_requests(), counted.own_tokens()), (0, 0));
    }
    pool.change(Vec::new());
    pool.state.sweep(&pool.store.snapshot(), u64::MAX);
    assert!(!render(&pool.registry).contains("llm_d_epp_inflight_"), "the series go, too");
}
