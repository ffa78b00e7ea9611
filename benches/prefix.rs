//! Cost of the prefix index.
//!
//! - `hash`: the block hashes of a prompt of 500 KB, beside one XXH3 over its bytes.
//! - `find`: how much of a prompt 100 endpoints hold that are all full (31,250 blocks each).
//! - `add`: a prompt of 2,048 blocks at a full endpoint, which evicts as many.
//! - `book`: a prompt of 64 blocks of which eight are new, published to other replicas or not.
//!
//! Others take longer and are asked for by name:
//!
//! - `cargo bench --bench prefix -- beside`: eight threads that look prompts up, beside eight
//!   that add to the same index, that add to another one, or that only compute. How much less
//!   the first get done is what adding costs those that look up; that of the second is the
//!   memory that both want. Then look-ups of what engines hold, beside their events.
//! - `cargo bench --bench prefix -- import`: bookings beside an import of what other replicas publish.
//! - `cargo bench --bench prefix -- events`: engines' events that one thread applies.
//! - `cargo bench --bench prefix -- ten-million`: 20 million blocks of engines into room for
//!   10 million.
//! - `cargo bench --bench prefix -- thirty-million`: 30 million blocks over 1,000 endpoints
//!   into an index with room for 8 million, and what that took.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot set itself up has nothing to measure")]
#![allow(clippy::print_stdout, reason = "what is no time is printed")]

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group};
use usher::endpoints::{EndpointSpec, Snapshot, Store};
use usher::prefix::{Blocks, Limits, PrefixIndex};
use usher::request::{ParserKind, Parsers, Request, RequestParser};
use xxhash_rust::xxh3::xxh3_64;

#[path = "common/bodies.rs"]
mod bodies;
#[path = "prefix/events.rs"]
mod events;
#[path = "prefix/share.rs"]
mod share;

const BLOCK: NonZeroU32 = NonZeroU32::new(64).unwrap();
const CAPACITY: usize = 31_250;
const LONG: usize = 2048;

fn pool(count: u32) -> Arc<Snapshot> {
    let store = Store::default();
    let spec =
        |index: u32| EndpointSpec::new(format!("pod-{index}"), (Ipv4Addr::from(0x0a00_0000 + index), 8000));
    store.replace((0..count).map(spec).collect());
    store.snapshot()
}

fn parse(chunks: &[Bytes]) -> Request {
    let parsers = Parsers::new(&[ParserKind::OpenAi]);
    let mut parser = RequestParser::new(bodies::HEADERS.into_iter().collect(), &parsers);
    chunks.iter().cloned().for_each(|chunk| parser.push(chunk));
    parser.finish().unwrap()
}

fn hash(c: &mut Criterion) {
    let prompt: String =
        "the quick brown fox jumps over the lazy dog ".chars().cycle().take(500_000).collect();
    let body = Bytes::from(format!(r#"{{"model":"m","prompt":"{prompt}"}}"#));
    let chunks: Vec<Bytes> =
        (0..body.len()).step_by(32 << 10).map(|at| body.slice(at..body.len().min(at + (32 << 10)))).collect();
    let (plain, escaped) = (parse(&chunks), parse(&bodies::completions(500_000)));
    let mut group = c.benchmark_group("hash");
    group.throughput(Throughput::Bytes(prompt.len() as u64));
    group.bench_function("xxh3 once", |b| b.iter(|| xxh3_64(black_box(prompt.as_bytes()))));
    for (name, request) in [("plain", &plain), ("an escape in 96 bytes", &escaped)] {
        let mut blocks = Blocks::default();
        group.bench_function(name, |b| {
            b.iter(|| {
                blocks.read(black_box(request), BLOCK, LONG);
                black_box(blocks.hashes().last().copied())
            });
        });
    }
    group.finish();
}

/// A number that looks like a hash.
fn mixed(number: u64) -> u64 {
    xxh3_64(&number.to_le_bytes())
}

fn prompt(number: u64) -> Vec<u64> {
    (0..LONG as u64).map(|block| mixed(number << 32 | block)).collect()
}

const PROMPTS: u64 = 8;

/// Endpoints that are full. Half of what each holds is its own, half it shares with three
/// others. Of each of eight prompts, one endpoint in 16 holds all and half of the others
/// the first half.
fn populated(snapshot: &Snapshot) -> PrefixIndex {
    let index = PrefixIndex::new(Limits { entries: 1 << 26, ..Limits::default() });
    for (number, endpoint) in (0u64..).zip(snapshot.endpoints()) {
        let of = |block: u64| if block.is_multiple_of(2) { 1000 + number } else { 100_000 + number / 4 };
        let filling: Vec<u64> = (0..CAPACITY as u64).map(|block| mixed(of(block) << 32 | block)).collect();
        index.add(endpoint, &filling, CAPACITY);
    }
    refresh(&index, snapshot);
    index
}

/// Adds the eight prompts to those that hold them.
fn refresh(index: &PrefixIndex, snapshot: &Snapshot) {
    for which in 0..PROMPTS {
        let hashes = prompt(which);
        for (number, endpoint) in (0u64..).zip(snapshot.endpoints()) {
            match (number * 7 + which * 3) % 16 {
                0 => index.add(endpoint, &hashes, CAPACITY),
                1..8 => index.add(endpoint, &hashes[..LONG / 2], CAPACITY),
                _ => {}
            }
        }
    }
}

fn find(c: &mut Criterion) {
    let mut group = c.benchmark_group("find");
    for count in [100, 1000] {
        let snapshot = pool(count);
        let index = populated(&snapshot);
        assert_eq!(index.entries(), count as usize * CAPACITY);
        println!("{count} endpoints: {:.1} bytes an entry", index.bytes() as f64 / index.entries() as f64);
        let candidates = snapshot.all();
        let mut matched = Vec::new();
        for blocks in [0, 8, 256, LONG] {
            // All eight in turns, so that what one look-up reads is not all in the cache for the next.
            let prompts: Vec<Blocks> =
                (0..PROMPTS).map(|which| Blocks::from_prompts([&prompt(which)[..blocks]])).collect();
            let mut turns = prompts.iter().cycle();
            group.bench_function(BenchmarkId::new(format!("{blocks} blocks"), count), |b| {
                b.iter(|| {
                    index.find(turns.next().unwrap(), candidates.view(), &mut matched);
                    black_box(matched.last().copied())
                });
            });
        }
        let unknown = Blocks::from_prompts([prompt(99)]);
        group.bench_function(BenchmarkId::new("2048 unknown blocks", count), |b| {
            b.iter(|| {
                index.find(&unknown, candidates.view(), &mut matched);
                black_box(matched.last().copied())
            });
        });
    }
    group.finish();
}

fn add(c: &mut Criterion) {
    let snapshot = pool(100);
    let index = populated(&snapshot);
    let mut group = c.benchmark_group("add");
    group.throughput(Throughput::Elements(LONG as u64));
    let mut number = 1 << 20;
    let few = pool(2);
    let of_few = populated(&few);
    for (name, snapshot, index) in
        [("2048 new blocks", &snapshot, &index), ("2048 new blocks, two endpoints", &few, &of_few)]
    {
        let mut endpoints = snapshot.endpoints().iter().cycle();
        group.bench_function(name, |b| {
            b.iter_batched(
                || {
                    number += 1;
                    prompt(number)
                },
                |hashes| index.add(endpoints.next().unwrap(), &hashes, CAPACITY),
                criterion::BatchSize::SmallInput,
            );
        });
    }
    let known = prompt(number);
    let endpoint = &snapshot.endpoints()[0];
    group.bench_function("2048 known blocks", |b| b.iter(|| index.add(endpoint, &known, CAPACITY)));
    group.finish();
}

/// Work of the other threads.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Others {
    Compute,
    AddElsewhere,
    AddHere,
}

/// Look-ups per second of eight threads beside eight others, and the CPU time of one in
/// nanoseconds.
fn lookups_beside(
    others: Others,
    [here, elsewhere]: [&PrefixIndex; 2],
    snapshot: &Arc<Snapshot>,
) -> (f64, f64) {
    const EACH: u64 = 8;
    const LOOKUPS: u64 = 200;
    static NUMBER: AtomicU64 = AtomicU64::new(1 << 22);
    let (stop, start) = (AtomicBool::new(false), Barrier::new(2 * EACH as usize + 1));
    let prompts: Vec<Blocks> = (0..PROMPTS).map(|which| Blocks::from_prompts([prompt(which)])).collect();
    std::thread::scope(|scope| {
        let (stop, start, prompts) = (&stop, &start, &prompts);
        for thread in 0..EACH {
            scope.spawn(move || {
                start.wait();
                let mut endpoints = snapshot.endpoints().iter().cycle().skip(thread as usize * 12);
                while !stop.load(Relaxed) {
                    let hashes = &prompt(NUMBER.fetch_add(1, Relaxed))[..256];
                    let endpoint = endpoints.next().unwrap();
                    match others {
                        Others::Compute => {}
                        Others::AddElsewhere => elsewhere.add(endpoint, hashes, CAPACITY),
                        Others::AddHere => here.add(endpoint, hashes, CAPACITY),
                    }
                }
            });
        }
        let lookups: Vec<_> = (0..EACH)
            .map(|thread| {
                scope.spawn(move || {
                    let (candidates, mut matched) = (snapshot.all(), Vec::new());
                    start.wait();
                    let before = cpu_time();
                    for turn in 0..LOOKUPS {
                        let blocks = &prompts[(turn + thread) as usize % prompts.len()];
                        here.find(blocks, candidates.view(), &mut matched);
                        black_box(matched.last());
                    }
                    cpu_time() - before
                })
            })
            .collect();
        start.wait();
        let started = Instant::now();
        let cpu: f64 = lookups.into_iter().map(|thread| thread.join().unwrap()).sum();
        let took = started.elapsed();
        stop.store(true, Relaxed);
        let count = (EACH * LOOKUPS) as f64;
        (count / took.as_secs_f64(), cpu / count)
    })
}

/// Nanoseconds that this thread was on a processor, as Linux says.
fn cpu_time() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or_default()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// KiB of memory that this process has, and has had at most, as Linux says.
fn memory() -> [u64; 2] {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ["VmRSS:", "VmHWM:"].map(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
    })
}

/// Rounds in turns, so that all see the same neighbours on the machine; medians.
fn beside() {
    const ROUNDS: usize = 15;
    let snapshot = pool(100);
    let (here, elsewhere) = (populated(&snapshot), populated(&snapshot));
    let modes = [Others::Compute, Others::AddElsewhere, Others::AddHere];
    let mut rounds = modes.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (others, rounds) in modes.into_iter().zip(&mut rounds) {
            // What the last round added has made them lose the prompts.
            refresh(&here, &snapshot);
            rounds.push(lookups_beside(others, [&here, &elsewhere], &snapshot));
        }
    }
    println!("look-ups of 2048 blocks by eight threads, beside eight that");
    for (others, rounds) in modes.into_iter().zip(rounds) {
        let (per_second, cpu): (Vec<f64>, Vec<f64>) = rounds.into_iter().unzip();
        let (per_second, cpu) = (median(per_second), median(cpu) / 1000.0);
        println!("{others:?}: {per_second:.0} per second, {cpu:.1} µs of CPU each");
    }
}

fn thirty_million() {
    const ENTRIES: usize = 8_000_000;
    let snapshot = pool(1000);
    let index = PrefixIndex::new(Limits { entries: ENTRIES, ..Limits::default() });
    let (started, mut most) = (Instant::now(), 0.0f64);
    for number in 0..60_000u64 {
        let hashes: Vec<u64> = (0..500).map(|block| mixed(number << 32 | block)).collect();
        index.add(&snapshot.endpoints()[(number * 7 % 1000) as usize], &hashes, CAPACITY);
        assert!(index.entries() <= ENTRIES);
        if number > 100 {
            most = most.max(index.bytes() as f64 / index.entries() as f64);
        }
    }
    let took = started.elapsed();
    println!("30 million blocks in {took:.1?}, {:.0} ns each", took.as_nanos() as f64 / 30e6);
    println!(
        "{} entries of {ENTRIES}, {} bytes; {most:.1} bytes an entry at most",
        index.entries(),
        index.bytes()
    );
    println!("{} KiB of memory at most", memory()[1]);
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3)).sample_size(30);
    targets = hash, find, add, share::bookings
}

fn main() {
    let asked = |name: &str| std::env::args().any(|argument| argument == name);
    match () {
        () if asked("thirty-million") => thirty_million(),
        () if asked("ten-million") => events::ten_million(),
        () if asked("import") => share::import(),
        () if asked("events") => events::events(),
        () if asked("beside") => {
            beside();
            events::beside();
        }
        () => {
            benches();
            Criterion::default().configure_from_args().final_summary();
        }
    }
}
