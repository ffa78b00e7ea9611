//! `expected-latency-scorer`: a decision at 100 and 1,000 endpoints whose speeds are known and
//! that have work, and a dispatcher that decides and books on several threads.

use std::collections::VecDeque;
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use futures_util::FutureExt;
use prometheus::Registry;
use rand::SeedableRng;
use rand::rngs::StdRng;
use usher::config::EndpointPickerConfig;
use usher::endpoints::{CachedLocator, Clock, EndpointSpec, Store, StoreLocator, SubsetHint};
use usher::flow::{Attempts, Dispatcher, Policy, Routed};
use usher::registry::Pipeline;
use usher::request::{Headers, ParserKind, Parsers, Request, RequestParser};
use usher::schedule::{Context, Effects, Facts, Record, RequestContext, SchedulerMetrics, Scratch, State};

const CONFIG: &str = "
plugins:
- type: approx-prefix-cache-producer
- type: expected-latency-scorer
- type: max-score-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: expected-latency-scorer
  - pluginRef: max-score-picker
";

/// Requests under way per endpoint.
const UNDER_WAY: usize = 8;

fn pipeline() -> Pipeline {
    let metrics = SchedulerMetrics::register(&Registry::new()).unwrap();
    let config = EndpointPickerConfig::parse(CONFIG).unwrap();
    Pipeline::build(Some(&config), false, &metrics, &State::default()).unwrap()
}

fn store(count: u32) -> Arc<Store> {
    let store = Arc::new(Store::default());
    let spec =
        |index: u32| EndpointSpec::new(format!("pod-{index}"), (Ipv4Addr::from(0x0a00_0000 + index), 8000));
    store.replace((0..count).map(spec).collect());
    for (index, endpoint) in (0u32..).zip(store.snapshot().endpoints()) {
        let load = endpoint.load();
        load.waiting.set(f64::from(index % 3), 1);
        load.running.set(f64::from(index * 7 % 17), 1);
        load.kv_usage.set(f64::from(index * 5 % 23) / 23.0, 1);
        load.block_size.set(16.0, 1);
        load.num_blocks.set(20_000.0, 1);
    }
    store
}

/// A chat request of about 200 tokens that begins like every tenth other one.
fn request(number: usize) -> Request {
    request_with(number, &[])
}

/// The same with these headers.
fn request_with(number: usize, headers: &[(&str, &str)]) -> Request {
    let shared = format!("You are assistant {}. ", number % 10).repeat(30);
    let body = format!(
        r#"{{"model":"m","stream":true,"messages":[{{"role":"system","content":"{shared}"}},{{"role":"user","content":"question {number}"}}]}}"#
    );
    let path = (":path", "/v1/chat/completions");
    let headers: Headers = headers.iter().copied().chain([path]).collect();
    let mut parser = RequestParser::new(headers, &Parsers::new(&[ParserKind::OpenAi]));
    parser.push(body.into());
    parser.finish().unwrap()
}

fn dispatcher(store: &Arc<Store>) -> Arc<Dispatcher> {
    let Pipeline { scheduler, stages, .. } = pipeline();
    let policy = Policy { scheduler, stages, max_age: Duration::from_secs(3600), record: Record::No };
    let (locator, clock) = (Arc::new(StoreLocator::new(Arc::clone(store), false)), Clock::start());
    let cached = CachedLocator::new(locator, clock.clone(), Duration::from_secs(3600), 16);
    Arc::new(Dispatcher::new(cached, policy, clock, Arc::new(Attempts::register(&Registry::new()).unwrap())))
}

fn send(dispatcher: &Dispatcher, request: &Request, rng: &mut StdRng) -> Routed {
    dispatcher.decide_now(request, &SubsetHint::Missing, rng).unwrap().unwrap()
}

/// The decision alone: what is cached where is known.
pub fn decide(c: &mut Criterion) {
    decide_for(c, "expected_latency/decide", &[1, 1].map(request));
}

/// The same with latency targets. Half the requests under way have the tight ones, and the one
/// that is decided has the loose ones, so that harm and packing count.
pub fn decide_with_targets(c: &mut Criterion) {
    let targets = [("2000", "20"), ("10000", "100")];
    let requests = targets
        .map(|(ttft, tpot)| request_with(1, &[("x-llm-d-slo-ttft-ms", ttft), ("x-llm-d-slo-tpot-ms", tpot)]));
    decide_for(c, "expected_latency/decide_with_targets", &requests);
}

/// Decides for the second request where both are under way, as many of the one as of the other.
fn decide_for(c: &mut Criterion, name: &str, requests: &[Request; 2]) {
    let mut group = c.benchmark_group(name);
    for count in [100, 1000] {
        let (store, Pipeline { scheduler, stages, .. }) = (store(count), pipeline());
        let candidates = store.snapshot().all();
        let request = &requests[1];
        let cx = RequestContext { request, now_ms: 10, max_age: Duration::from_secs(2) };
        let (mut rng, mut scratch) = (StdRng::seed_from_u64(1), Scratch::default());
        let mut facts = Facts::default();
        stages.produce(&cx, &candidates, &mut facts);
        let context =
            |request| Context { facts: &facts, ..Context::new(request, 10, Duration::from_secs(2)) };
        let mut under_way = Vec::new();
        for number in 0..count as usize * UNDER_WAY {
            let cx = context(&requests[number % 2]);
            let decision = scheduler.decide(&cx, &candidates, &mut rng, &mut scratch, Record::No).unwrap();
            let mut effects = Effects::default();
            stages.act(&cx, &decision, &mut effects);
            under_way.push((decision.primary_endpoint().load().book(), effects));
        }
        let cx = context(request);
        group.bench_function(BenchmarkId::from_parameter(count), |b| {
            b.iter(|| black_box(scheduler.decide(&cx, &candidates, &mut rng, &mut scratch, Record::No)));
        });
    }
    group.finish();
}

/// Decision and booking on several threads at once: the time is that of all together, for so
/// many requests each. With every request that is sent one ends that was sent long before, so that
/// as many stay under way. They have no bodies, as a thread of its own keeps the hashes of
/// prompts, which is one more than there are here. `2-apart` are two threads with a pool each: what the
/// machine makes of two threads that share nothing.
pub fn threads(c: &mut Criterion) {
    let parsers = Parsers::new(&[ParserKind::PassThrough]);
    let request = RequestParser::new(Headers::default(), &parsers).without_body();
    let dispatchers = [(); 2].map(|()| dispatcher(&store(100)));
    for dispatcher in &dispatchers {
        // Only what the cache of candidates knows is decided at once.
        let entered = dispatcher.enter(&Arc::new(request.clone()), &SubsetHint::Missing);
        drop(entered.decided().now_or_never().unwrap().unwrap());
    }
    let mut group = c.benchmark_group("expected_latency/dispatch");
    for (name, count, is_apart) in [("1", 1, false), ("2", 2, false), ("2-apart", 2, true)] {
        let of = |thread: usize| &dispatchers[if is_apart { thread } else { 0 }];
        group.throughput(Throughput::Elements(count));
        let under_way: Vec<_> = (0..count).map(|_| Mutex::new(VecDeque::new())).collect();
        let mut rng = StdRng::seed_from_u64(7);
        let each = if is_apart { 100 * UNDER_WAY } else { 100 * UNDER_WAY / under_way.len() };
        for (thread, under_way) in under_way.iter().enumerate() {
            let mut under_way = under_way.lock().unwrap();
            under_way.extend((0..each).map(|_| send(of(thread), &request, &mut rng)));
        }
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter_custom(|repetitions| {
                crate::timed(count, |thread| {
                    let (thread, mut rng) = (thread as usize, StdRng::seed_from_u64(thread));
                    let mut under_way = under_way[thread].lock().unwrap();
                    for _ in 0..repetitions {
                        under_way.push_back(black_box(send(of(thread), &request, &mut rng)));
                        drop(under_way.pop_front());
                    }
                })
            });
        });
    }
    group.finish();
}
