//! Cost of a look-up of candidates that the cache answers: without a hint and with one of four
//! endpoints, by one task and by 16 at once. The time is that of a processor for one look-up, which
//! should not depend on how many others ask. Neighbours on the machine that take the processor away
//! don't count; those that take the caches do.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot set itself up has nothing to measure")]

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use futures_util::FutureExt;
use rustix::time::{ClockId, Timespec, clock_gettime};
use tokio::runtime::Builder;
use usher::endpoints::{CachedLocator, Clock, EndpointSpec, Store, StoreLocator, SubsetHint};

/// As long as a task looks up before it lets another one run.
const TURN: u64 = 64;

fn hint(first: u8) -> SubsetHint {
    let entries: Vec<String> = (first..first + 4).map(|last| format!("10.0.0.{last}:8000")).collect();
    SubsetHint::from_entries(entries.iter().map(String::as_str))
}

/// A cache over 100 endpoints with a warm view for each hint.
fn warm(ttl: Duration, hints: &[SubsetHint]) -> Arc<CachedLocator> {
    let store = Arc::new(Store::default());
    let spec = |i: u32| EndpointSpec::new(format!("pod-{i}"), (Ipv4Addr::from(0x0a00_0000 + i), 8000));
    store.replace((0..100).map(spec).collect());
    let locator = Arc::new(StoreLocator::new(store, false));
    let cache = Arc::new(CachedLocator::new(locator, Clock::start(), ttl, 4096));
    for hint in hints {
        cache.locate(hint).now_or_never().unwrap();
    }
    cache
}

/// Processor time of a look-up, times `repetitions`, when `tasks` tasks do `repetitions` look-ups
/// each, on as many threads as there are cores, but no more than tasks.
fn at_once(cache: &Arc<CachedLocator>, hint: &SubsetHint, tasks: u32, repetitions: u64) -> Duration {
    let threads = available_parallelism().map_or(1, usize::from).min(tasks as usize);
    let runtime = Builder::new_multi_thread().worker_threads(threads).build().unwrap();
    let started = clock_gettime(ClockId::ProcessCPUTime);
    runtime.block_on(async {
        let tasks: Vec<_> = (0..tasks)
            .map(|_| {
                let (cache, hint) = (Arc::clone(cache), hint.clone());
                tokio::spawn(async move {
                    for turn in 0..repetitions.div_ceil(TURN) {
                        for _ in turn * TURN..repetitions.min((turn + 1) * TURN) {
                            black_box(cache.locate(black_box(&hint)).await);
                        }
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    since(started, ClockId::ProcessCPUTime) / tasks
}

fn since(before: Timespec, clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    Duration::try_from(now).unwrap() - Duration::try_from(before).unwrap()
}

/// Processor time that this thread takes for `repetitions` calls.
fn alone<T>(repetitions: u64, mut call: impl FnMut() -> T) -> Duration {
    let started = clock_gettime(ClockId::ThreadCPUTime);
    for _ in 0..repetitions {
        black_box(call());
    }
    since(started, ClockId::ThreadCPUTime)
}

fn locate(c: &mut Criterion) {
    let hour = Duration::from_secs(3600);
    let mut group = c.benchmark_group("warm");
    let hints = [("without a hint", SubsetHint::Missing), ("four endpoints", hint(1))];
    for (name, hint) in &hints {
        let cache = warm(hour, std::slice::from_ref(hint));
        group.bench_function(BenchmarkId::new(*name, "peek"), |b| {
            b.iter_custom(|n| alone(n, || cache.peek(black_box(hint)).unwrap()));
        });
        for tasks in [1, 16] {
            group.bench_function(BenchmarkId::new(*name, format!("{tasks} tasks")), |b| {
                b.iter_custom(|repetitions| at_once(&cache, hint, tasks, repetitions));
            });
        }
    }
    // Among as many others as there is room for.
    let others: Vec<SubsetHint> = (0..4000u32)
        .map(|i| SubsetHint::from_entries([Ipv4Addr::from(0x0b00_0000 + i).to_string().as_str()]))
        .chain([hint(1)])
        .collect();
    let cache = warm(hour, &others);
    group.bench_function(BenchmarkId::new("four endpoints", "a full cache"), |b| {
        b.iter_custom(|n| alone(n, || cache.peek(black_box(&hints[1].1)).unwrap()));
    });
    group.finish();

    let mut group = c.benchmark_group("cold");
    for (name, hint) in &hints {
        let cache = warm(Duration::ZERO, &[]);
        group.bench_function(*name, |b| {
            b.iter_custom(|n| alone(n, || cache.locate(black_box(hint)).now_or_never()))
        });
    }
    let mut turns = others.iter().cycle();
    let cache = warm(Duration::ZERO, &[]);
    group.bench_function("another one each time", |b| {
        b.iter_custom(|n| alone(n, || cache.locate(turns.next().unwrap()).now_or_never()));
    });
    let entries = ["10.0.0.4:8000", "10.0.0.1:8000", "10.0.0.3:8000", "10.0.0.2:8000"];
    group.bench_function("reading a hint of four", |b| {
        b.iter_custom(|n| alone(n, || SubsetHint::from_entries(black_box(entries))));
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2)).sample_size(30);
    targets = locate
}
criterion_main!(benches);
