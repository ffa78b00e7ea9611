//! Cost of publishing to other replicas, and of importing from them.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BatchSize, Criterion};
use usher::endpoints::{Endpoint, Snapshot};
use usher::prefix::{EndpointBlocks, EndpointId, OriginId, PrefixIndex};

use crate::{CAPACITY, mixed, pool, populated};

/// Blocks of a booking, and how many of them are new: the next turn of a conversation.
const BLOCKS: u64 = 64;
const NEW: u64 = 8;

/// Bookings at a full endpoint, of prompts that begin alike.
fn book(c: &mut Criterion, name: &str, queue: usize) {
    let snapshot = pool(100);
    let index = populated(&snapshot);
    index.keep_updates(queue);
    let mut group = c.benchmark_group("book");
    let mut number = 1u64 << 24;
    let endpoint = &snapshot.endpoints()[0];
    let known: Vec<u64> = (0..BLOCKS - NEW).map(mixed).collect();
    group.bench_function(name, |b| {
        b.iter_batched(
            || {
                number += 1;
                if number.is_multiple_of(1000) {
                    black_box(index.take_updates(usize::MAX));
                }
                let new = (0..NEW).map(|block| mixed(number << 32 | block));
                known.iter().copied().chain(new).collect::<Vec<u64>>()
            },
            |hashes| index.add(endpoint, &hashes, CAPACITY),
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

/// A booking of 64 blocks of which eight are new, not published and published.
pub fn bookings(c: &mut Criterion) {
    book(c, "8 of 64 blocks new, not published", 0);
    book(c, "8 of 64 blocks new, queued for others", 1 << 18);
}

/// Blocks that others publish, of ten endpoints, as a batch has them.
fn batch(number: u64, snapshot: &Snapshot) -> Vec<(Arc<Endpoint>, EndpointBlocks)> {
    let endpoints = snapshot.endpoints().iter().cycle().skip(number as usize * 10 % 100).take(10);
    let held = |(at, endpoint): (u64, &Arc<Endpoint>)| {
        let hashes = (0..800).map(|block| mixed((1 << 40) + (number << 20 | at << 10 | block))).collect();
        let held = EndpointBlocks { endpoint: EndpointId::of(endpoint), capacity: CAPACITY as u32, hashes };
        (Arc::clone(endpoint), held)
    };
    (0..).zip(endpoints).map(held).collect()
}

/// Bookings of one thread, each timed, in nanoseconds: median, of a thousand the tenth, and the longest.
fn booked(index: &PrefixIndex, snapshot: &Snapshot, took: Duration) -> [u64; 3] {
    let (started, mut number, mut times) = (Instant::now(), 1u64 << 26, Vec::new());
    while started.elapsed() < took {
        number += 1;
        let hashes: Vec<u64> = (0..NEW).map(|block| mixed(number << 32 | block)).collect();
        let begun = Instant::now();
        index.add(&snapshot.endpoints()[number as usize * 7 % 100], &hashes, CAPACITY);
        times.push(begun.elapsed().as_nanos() as u64);
        thread::sleep(Duration::from_micros(20));
    }
    times.sort_unstable();
    let len = times.len();
    [times[len / 2], times[len - len / 100], times[len - 1]]
}

/// Bookings alone, and beside an import of 100,000 blocks a second.
#[allow(clippy::print_stdout, reason = "what is no time of Criterion's is printed")]
pub fn import() {
    let snapshot = pool(100);
    let index = populated(&snapshot);
    for _ in 0..3 {
        for per_second in [0u64, 100_000] {
            let stop = AtomicBool::new(false);
            let (times, cost) = thread::scope(|scope| {
                let (stop, index, snapshot) = (&stop, &index, &snapshot);
                let importer = scope.spawn(move || {
                    let (started, mut batches, mut busy) = (Instant::now(), 0u64, Duration::ZERO);
                    while !stop.load(Relaxed) {
                        let due = started.elapsed().as_millis() as u64 * per_second / 8_000_000;
                        if batches >= due {
                            thread::sleep(Duration::from_millis(1));
                            continue;
                        }
                        let held = batch(batches, snapshot);
                        let begun = Instant::now();
                        index.import(OriginId([1; 16]), &held, 1, Duration::from_secs(1000));
                        busy += begun.elapsed();
                        batches += 1;
                    }
                    busy.as_nanos() as u64 / (batches * 8000).max(1)
                });
                let times = booked(index, snapshot, Duration::from_secs(5));
                stop.store(true, Relaxed);
                (times, importer.join().unwrap_or_default())
            });
            let [median, tail, longest] = times.map(|ns| ns as f64 / 1000.0);
            println!(
                "beside {per_second} imported blocks a second ({cost} ns each): a booking of {NEW} new blocks takes {median:.1} µs, p99 {tail:.1} µs, at most {longest:.0} µs"
            );
        }
    }
}
