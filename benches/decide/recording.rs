//! A dispatcher that decides, books and gives back, with and without records of its decisions: queue 2, KV cache 2
//! and load-aware 1 at 10, 48 and 1,000 endpoints. `sampled` is the usual ring, which at this rate keeps next to none
//! but lets each request hold its record; `kept` puts every record into the ring, as below 64 decisions per second.
//! `recording_file` is a prompt of 2,000 tokens, without and with `--record`: hashing it, and handing it and its end over,
//! but not what the writer's thread does meanwhile.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion};
use futures_util::FutureExt;
use prometheus::Registry;
use rand::SeedableRng;
use rand::rngs::StdRng;
use usher::endpoints::{CachedLocator, Clock, EndpointSpec, Store, StoreLocator, SubsetHint};
use usher::flow::{Attempts, Dispatcher, Policy};
use usher::memory::Budget;
use usher::recorder::{Settings, Writer};
use usher::records::{Ending, Records, Response};
use usher::request::usage::Usage;
use usher::request::{Headers, ParserKind, Parsers, Request, RequestParser};
use usher::schedule::{Record, SchedulerMetrics, StagesBuilder};

/// Decisions between two looks whether the writer has written them: fewer than the queue has room for.
const PART: u64 = 512;

fn store(count: u32) -> Arc<Store> {
    let store = Arc::new(Store::default());
    let spec =
        |index: u32| EndpointSpec::new(format!("pod-{index}"), (Ipv4Addr::from(0x0a00_0000 + index), 8000));
    store.replace((0..count).map(spec).collect());
    for (index, endpoint) in (0u32..).zip(store.snapshot().endpoints()) {
        endpoint.load().waiting.set(f64::from(index * 7 % 17), 1);
        endpoint.load().kv_usage.set(f64::from(index * 5 % 23) / 23.0, 1);
    }
    store
}

fn dispatcher(store: Arc<Store>, records: Option<usize>) -> Dispatcher {
    let metrics = SchedulerMetrics::register(&Registry::new()).unwrap();
    let policy = Policy {
        scheduler: super::scheduler(1, &metrics),
        stages: Arc::new(StagesBuilder::new(&metrics).build(false, None)),
        max_age: Duration::from_secs(3600),
        record: Record::No,
    };
    let (locator, clock) = (Arc::new(StoreLocator::new(store, false)), Clock::start());
    let cached = CachedLocator::new(locator, clock.clone(), Duration::from_secs(3600), 16);
    let attempts = Arc::new(Attempts::register(&Registry::new()).unwrap());
    let dispatcher = Dispatcher::new(cached, policy, clock, attempts);
    // Rings get a sixteenth of it: 16 MiB, the most bytes of the usual capacity.
    let budget = Arc::new(Budget::of_process(256 << 20, None));
    match records {
        Some(capacity) => dispatcher.recorded(Arc::new(Records::new("p", capacity, &budget))),
        None => dispatcher,
    }
}

pub fn dispatch(c: &mut Criterion) {
    let parsers = Parsers::new(&[ParserKind::PassThrough]);
    let request = Arc::new(RequestParser::new(Headers::default(), &parsers).without_body());
    let mut group = c.benchmark_group("recording");
    for count in [10, 48, 1000] {
        // A capacity that no rate exceeds here, within the bytes of a budget.
        for (name, records) in [("off", None), ("sampled", Some(4096)), ("kept", Some(1 << 30))] {
            let dispatcher = dispatcher(store(count), records);
            let mut rng = StdRng::seed_from_u64(1);
            // Only what the cache of candidates knows is decided at once.
            let first = dispatcher.locator().locate(&SubsetHint::Missing).now_or_never();
            assert!(first.is_some());
            group.bench_function(BenchmarkId::new(name, count), |b| {
                b.iter(|| {
                    let routed = dispatcher.decide_now(&request, &SubsetHint::Missing, &mut rng);
                    let mut routed = routed.unwrap().unwrap();
                    let tracked = routed.take_draft().and_then(|draft| draft.keep("5a2f4c1e-7f0b-4d3c-9a55"));
                    black_box(tracked);
                });
            });
        }
    }
    group.finish();
}

/// A completion of 2,000 tokens.
fn completion() -> Arc<Request> {
    let headers: Headers = [(":method", "POST"), (":path", "/v1/completions")].into_iter().collect();
    let mut parser = RequestParser::new(headers, &Parsers::new(&[ParserKind::OpenAi]));
    let prompt = "word text ".repeat(800);
    parser.push(Bytes::from(format!(r#"{{"model":"m","prompt":"{prompt}","stream":true}}"#)));
    Arc::new(parser.finish().unwrap())
}

pub fn file(c: &mut Criterion) {
    let request = completion();
    let mut group = c.benchmark_group("recording_file");
    for count in [10, 1000] {
        for is_recorded in [false, true] {
            let store = store(count);
            let mut dispatcher = dispatcher(Arc::clone(&store), None);
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("recording.jsonl");
            let settings = Settings { path: &path, max_bytes: 16 << 20, pool: "p", version: "0" };
            let writer = is_recorded.then(|| Writer::start(&settings, &store, &Arc::default()).unwrap());
            if let Some(writer) = &writer {
                dispatcher = dispatcher.recorded_by(Arc::clone(writer.recorder()));
            }
            let written = || writer.as_ref().map(|writer| writer.recorder().counts().lines.load(Relaxed));
            let mut rng = StdRng::seed_from_u64(1);
            let first = dispatcher.locator().locate(&SubsetHint::Missing).now_or_never();
            assert!(first.is_some());
            let response =
                Response { usage: Usage::default(), generated: 0, is_stream: true, ending: Ending::Complete };
            group.bench_function(BenchmarkId::new(if is_recorded { "on" } else { "off" }, count), |b| {
                b.iter_custom(|repetitions| {
                    let mut took = Duration::ZERO;
                    for start in (0..repetitions).step_by(PART as usize) {
                        let part = PART.min(repetitions - start);
                        let before = written();
                        let started = Instant::now();
                        for _ in 0..part {
                            let routed = dispatcher.decide_now(&request, &SubsetHint::Missing, &mut rng);
                            let mut routed = routed.unwrap().unwrap();
                            if let Some(draft) = routed.take_draft()
                                && let Some(tracked) = draft.keep("5a2f4c1e-7f0b-4d3c-9a55")
                            {
                                tracked.ends(&response, Instant::now());
                            }
                        }
                        took += started.elapsed();
                        while before.zip(written()).is_some_and(|(before, now)| now < before + part) {
                            std::thread::yield_now();
                        }
                    }
                    took
                });
            });
            if let Some(writer) = writer {
                assert_eq!(writer.recorder().counts().dropped.load(Relaxed), 0);
                writer.stop();
            }
        }
    }
    group.finish();
}
