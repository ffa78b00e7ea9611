//! Cost of a decision, without the wire: queue 2, KV cache 2 and load-aware 1 at 10, 100 and 1,000
//! endpoints, and on several threads at once; `expected-latency-scorer`; and plugins that go by
//! labels.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot set itself up has nothing to measure")]

#[path = "decide/labels.rs"]
mod labels;
#[path = "decide/latency.rs"]
mod latency;
#[path = "decide/recording.rs"]
mod recording;

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use prometheus::Registry;
use rand::SeedableRng;
use rand::rngs::StdRng;
use usher::config::EndpointPickerConfig;
use usher::endpoints::{Candidates, EndpointSpec, Store};
use usher::registry::Pipeline;
use usher::request::{Headers, ParserKind, Parsers, RequestParser};
use usher::schedule::{Context, Record, Scheduler, SchedulerMetrics, Scratch, State};

fn candidates(count: u32) -> Candidates {
    let store = Store::default();
    let spec =
        |index: u32| EndpointSpec::new(format!("pod-{index}"), (Ipv4Addr::from(0x0a00_0000 + index), 8000));
    store.replace((0..count).map(spec).collect());
    let snapshot = store.snapshot();
    for (index, endpoint) in (0u32..).zip(snapshot.endpoints()) {
        endpoint.load().waiting.set(f64::from(index * 7 % 17), 1);
        endpoint.load().kv_usage.set(f64::from(index * 5 % 23) / 23.0, 1);
    }
    snapshot.all()
}

/// Queue, KV cache and load with as many picks as asked for.
fn scheduler(picks: u32, metrics: &SchedulerMetrics) -> Scheduler {
    let text = format!(
        "
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: load-aware-scorer
- {{type: max-score-picker, parameters: {{maxNumOfEndpoints: {picks}}}}}
schedulingProfiles:
- name: default
  plugins:
  - {{pluginRef: queue-scorer, weight: 2}}
  - {{pluginRef: kv-cache-utilization-scorer, weight: 2}}
  - {{pluginRef: load-aware-scorer, weight: 1}}
  - {{pluginRef: max-score-picker}}
"
    );
    let config = EndpointPickerConfig::parse(&text).unwrap();
    Pipeline::build(Some(&config), false, metrics, &State::default()).unwrap().scheduler
}

fn decide(c: &mut Criterion) {
    let metrics = SchedulerMetrics::register(&Registry::new()).unwrap();
    let parsers = Parsers::new(&[ParserKind::PassThrough]);
    let request = RequestParser::new(Headers::default(), &parsers).without_body();
    let cx = Context::new(&request, 10, Duration::from_secs(2));
    let (one, three) = (scheduler(1, &metrics), scheduler(3, &metrics));
    let mut group = c.benchmark_group("decide");
    for count in [10, 100, 1000] {
        let candidates = candidates(count);
        for (name, scheduler, record) in [
            ("one", &one, Record::No),
            ("three", &three, Record::No),
            ("with_scores", &one, Record::Scores),
            ("with_columns", &one, Record::Columns),
        ] {
            let (mut rng, mut scratch) = (StdRng::seed_from_u64(1), Scratch::default());
            group.bench_function(BenchmarkId::new(name, count), |b| {
                b.iter(|| black_box(scheduler.decide(&cx, &candidates, &mut rng, &mut scratch, record)));
            });
        }
    }
    group.finish();
}

/// Time that so many threads take together for this work, which gets the number of its thread:
/// from the first one's start to the last one's end, as they see them.
fn timed(threads: u64, work: impl Fn(u64) + Sync) -> Duration {
    let start = Barrier::new(threads as usize);
    let times: Vec<_> = std::thread::scope(|scope| {
        let (start, work) = (&start, &work);
        let spawn = |number| {
            scope.spawn(move || {
                start.wait();
                let started = Instant::now();
                work(number);
                (started, Instant::now())
            })
        };
        let threads: Vec<_> = (0..threads).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let first = times.iter().map(|(started, _)| *started).min().unwrap();
    times.iter().map(|(_, ended)| *ended).max().unwrap() - first
}

/// Several threads deciding at once on one pool. The time is that of all together, for
/// so many decisions each: two threads on two cores should take as long as one alone.
fn threads(c: &mut Criterion) {
    let metrics = SchedulerMetrics::register(&Registry::new()).unwrap();
    let parsers = Parsers::new(&[ParserKind::PassThrough]);
    let request = RequestParser::new(Headers::default(), &parsers).without_body();
    let scheduler = scheduler(1, &metrics);
    let candidates = candidates(100);
    let mut group = c.benchmark_group("threads");
    for count in [1, 2, 8] {
        group.throughput(Throughput::Elements(count));
        group.bench_function(BenchmarkId::from_parameter(count), |b| {
            b.iter_custom(|repetitions| {
                timed(count, |seed| {
                    let cx = Context::new(&request, 10, Duration::from_secs(2));
                    let (mut rng, mut scratch) = (StdRng::seed_from_u64(seed), Scratch::default());
                    for _ in 0..repetitions {
                        let decision = scheduler.decide(&cx, &candidates, &mut rng, &mut scratch, Record::No);
                        black_box(decision).unwrap();
                    }
                })
            });
        });
    }
    group.finish();
}

criterion_group!(
    benches,
    decide,
    threads,
    latency::decide,
    latency::decide_with_targets,
    latency::threads,
    labels::labels_of,
    recording::dispatch,
    recording::file
);
criterion_main!(benches);
