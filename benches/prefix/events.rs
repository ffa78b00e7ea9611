//! Engines' events applied to what they hold and to its index.
//!
//! An engine stores 16 blocks of a conversation at a time, with their tokens. Once it is full, each such store follows the
//! removal of the 16 blocks that were used longest ago, the tail of a conversation before its head.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use rmpv::Value;
use usher::endpoints::{Slot, Snapshot};
use usher::prefix::{Blocks, EngineIndex, TierWeights};
use usher_core::kv_events::{
    Batch, Chain, Change, Dialect, Media, Residency, ResidencySettings, SourceId, prompt_keys,
};

use super::{cpu_time, median, memory, mixed, pool};

/// Tokens of a block, and blocks of an event.
const TOKENS: NonZeroU16 = NonZeroU16::new(16).unwrap();
const EVENT: usize = 16;
/// Events of a conversation: 4,096 tokens.
const CONVERSATION: u64 = 16;
/// Blocks that an engine holds.
const CAPACITY: usize = 32_768;
/// Events of a message.
const BATCH: usize = 8;

/// An engine whose cache is full, as a generator of messages.
struct Engine {
    number: u64,
    /// Stores so far.
    stores: u64,
    held: VecDeque<u64>,
}

impl Engine {
    fn new(number: u64) -> Self {
        Self { number, stores: 0, held: VecDeque::new() }
    }

    fn hashes(&self, store: u64) -> Vec<u64> {
        (0..EVENT as u64).map(|block| mixed(self.number << 40 | store << 8 | block)).collect()
    }

    /// The payload of a message with this many events.
    fn message(&mut self, events: usize) -> Vec<u8> {
        let mut list = Vec::new();
        while list.len() < events {
            if self.held.len() * EVENT >= CAPACITY {
                // The tail of the oldest conversation; all of a conversation are stored before the next one.
                let oldest = self.held[0] / CONVERSATION;
                let last = self.held.iter().take_while(|store| *store / CONVERSATION == oldest).count() - 1;
                let tail = self.held.remove(last).unwrap();
                list.push(removed(&self.hashes(tail)));
            }
            let store = self.stores;
            self.stores += 1;
            self.held.push_back(store);
            let parent = (!store.is_multiple_of(CONVERSATION)).then(|| self.hashes(store - 1)[EVENT - 1]);
            list.push(stored(&self.hashes(store), parent, &tokens(self.number, store)));
        }
        list.truncate(events);
        let mut payload = Vec::new();
        let batch = Value::Array(vec![1e9.into(), Value::Array(list), Value::Nil]);
        rmpv::encode::write_value(&mut payload, &batch).unwrap();
        payload
    }
}

/// Token ids as of a vocabulary of 128,000: most take five bytes.
fn tokens(engine: u64, store: u64) -> Vec<u32> {
    let count = EVENT as u64 * u64::from(TOKENS.get());
    (0..count).map(|token| (mixed(engine << 44 | store << 16 | token) % 128_000) as u32).collect()
}

fn numbers<T: Into<Value> + Copy>(values: &[T]) -> Value {
    Value::Array(values.iter().map(|value| (*value).into()).collect())
}

fn stored(hashes: &[u64], parent: Option<u64>, tokens: &[u32]) -> Value {
    Value::Array(vec![
        "BlockStored".into(),
        numbers(hashes),
        parent.map_or(Value::Nil, Value::from),
        numbers(tokens),
        TOKENS.get().into(),
        Value::Nil,
        "GPU".into(),
        Value::Nil,
    ])
}

fn removed(hashes: &[u64]) -> Value {
    Value::Array(vec!["BlockRemoved".into(), numbers(hashes), "GPU".into()])
}

/// Engines, and what applies their events, as a picker's subscriber does once a message is read.
struct World {
    engines: Vec<Engine>,
    sources: Vec<SourceId>,
    slots: HashMap<SourceId, Arc<Slot>>,
    residency: Residency,
    model: Chain,
}

impl World {
    fn new(snapshot: &Snapshot, bytes: usize) -> Self {
        let settings = ResidencySettings { block_tokens: TOKENS, bytes, ..ResidencySettings::default() };
        let mut residency = Residency::new(settings, Media::default());
        let sources: Vec<SourceId> = snapshot.endpoints().iter().map(|_| residency.add_source()).collect();
        let slots = snapshot.endpoints().iter().map(|endpoint| Arc::clone(endpoint.slot()));
        let slots = sources.iter().copied().zip(slots).collect();
        let engines = (0..sources.len() as u64).map(Engine::new).collect();
        Self { engines, sources, slots, residency, model: Chain::of_model(b"m") }
    }

    fn message(&mut self, engine: usize, events: usize) -> (SourceId, Vec<u8>) {
        (self.sources[engine], self.engines[engine].message(events))
    }

    /// Applies a message, and returns the number of its events.
    fn apply(&mut self, index: &EngineIndex, source: SourceId, payload: &[u8]) -> usize {
        let batch = Batch::decode(payload, Dialect::Vllm).unwrap();
        let mut pending = Vec::with_capacity(2 * EVENT);
        for event in batch.events() {
            let mut write = |Change { source, key, tier }: Change| {
                pending.push((&*self.slots[&source], key, tier.map(|tier| tier.number())));
            };
            self.residency.apply(source, 0, self.model, event, &mut write).unwrap();
            index.set_all(&pending);
            pending.clear();
        }
        batch.len()
    }

    fn fill(&mut self, index: &EngineIndex) {
        for engine in 0..self.engines.len() {
            for _ in 0..CAPACITY / EVENT / BATCH {
                let (source, payload) = self.message(engine, BATCH);
                self.apply(index, source, &payload);
            }
        }
    }

    /// Messages of this many events together, of all engines in turns.
    fn messages(&mut self, events: usize) -> Vec<(SourceId, Vec<u8>)> {
        let count = self.engines.len();
        (0..events / BATCH).map(|turn| self.message(turn % count, BATCH)).collect()
    }
}

const ROOM: usize = 1 << 30;

/// Events per second of CPU time on one thread.
pub(super) fn events() {
    const EVENTS: usize = 40_000;
    let snapshot = pool(100);
    let index = EngineIndex::new();
    let mut world = World::new(&snapshot, ROOM);
    world.fill(&index);
    println!("{} blocks of 100 engines", world.residency.blocks());
    let mut rates = Vec::new();
    for _ in 0..9 {
        let messages = world.messages(EVENTS);
        let before = cpu_time();
        let applied: usize =
            messages.iter().map(|(source, payload)| world.apply(&index, *source, payload)).sum();
        rates.push(applied as f64 / (cpu_time() - before) * 1e9);
    }
    println!("{:.0} events of {EVENT} hashes per second of CPU time, half of them stores", median(rates));
}

/// Work beside the look-ups.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Beside {
    Nothing,
    ApplyElsewhere,
    ApplyHere,
}

/// CPU time of a look-up of 256 blocks among 100 engines, in nanoseconds, beside events at a rate; and the events per
/// second that there were.
fn lookups(
    beside: Beside,
    [here, elsewhere]: [&EngineIndex; 2],
    [world, other]: [&mut World; 2],
    snapshot: &Arc<Snapshot>,
) -> (f64, f64) {
    const RATE: f64 = 100_000.0;
    const EVENTS: usize = 50_000;
    let prompts: Vec<Blocks> = (0..64).map(|which| prompt(&world.engines[which])).collect();
    let (index, world) = match beside {
        Beside::ApplyHere => (here, world),
        _ => (elsewhere, other),
    };
    let messages = if beside == Beside::Nothing { Vec::new() } else { world.messages(EVENTS) };
    let (start, done) = (Barrier::new(2), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (start, done) = (&start, &done);
        let applying = scope.spawn(move || {
            start.wait();
            let (started, mut applied) = (Instant::now(), 0);
            for (source, payload) in &messages {
                let due = Duration::from_secs_f64(applied as f64 / RATE);
                std::thread::sleep(due.saturating_sub(started.elapsed()));
                applied += world.apply(index, *source, payload);
            }
            let rate = applied as f64 / started.elapsed().as_secs_f64();
            std::thread::sleep(
                Duration::from_secs_f64(EVENTS as f64 / RATE).saturating_sub(started.elapsed()),
            );
            done.store(true, Relaxed);
            rate
        });
        let (candidates, weights, mut matched) = (snapshot.all(), TierWeights::default(), Vec::new());
        start.wait();
        let (before, mut count) = (cpu_time(), 0);
        while !done.load(Relaxed) {
            let which = count % prompts.len();
            here.find(&prompts[which], candidates.view(), &weights, &mut matched);
            assert_eq!(matched[which].blocks as usize, prompts[which].len());
            count += 1;
        }
        ((cpu_time() - before) / count as f64, applying.join().unwrap())
    })
}

/// The newest conversation of an engine that is whole.
fn prompt(engine: &Engine) -> Blocks {
    let newest = engine.stores / CONVERSATION - 1;
    let stores = newest * CONVERSATION..(newest + 1) * CONVERSATION;
    let ids: Vec<u32> = stores.flat_map(|store| tokens(engine.number, store)).collect();
    let mut keys = Vec::new();
    prompt_keys(Chain::of_model(b"m"), &ids, TOKENS, [], &mut keys);
    Blocks::from_prompts([keys])
}

/// Rounds in turns; medians.
pub(super) fn beside() {
    const ROUNDS: usize = 15;
    let snapshot = pool(100);
    let (here, elsewhere) = (EngineIndex::new(), EngineIndex::new());
    let (mut world, mut other) = (World::new(&snapshot, ROOM), World::new(&snapshot, ROOM));
    world.fill(&here);
    other.fill(&elsewhere);
    let modes = [Beside::Nothing, Beside::ApplyElsewhere, Beside::ApplyHere];
    let mut rounds = modes.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (beside, rounds) in modes.into_iter().zip(&mut rounds) {
            rounds.push(lookups(beside, [&here, &elsewhere], [&mut world, &mut other], &snapshot));
        }
    }
    println!("look-ups of 256 blocks that an engine of 100 holds, beside a thread that applies events");
    for (beside, rounds) in modes.into_iter().zip(rounds) {
        let (cpu, rate): (Vec<f64>, Vec<f64>) = rounds.into_iter().unzip();
        println!(
            "{beside:?}: {:.2} µs of CPU each; {:.0} events per second",
            median(cpu) / 1e3,
            median(rate)
        );
    }
}

/// Ten million blocks of 1,000 engines, and as many again, in the room for the first.
pub(super) fn ten_million() {
    const BLOCKS: usize = 10_000_000;
    const EACH: usize = 2 * BLOCKS / 1000 / EVENT;
    let snapshot = pool(1000);
    let index = EngineIndex::new();
    let before = memory()[0];
    let room = BLOCKS * ResidencySettings::BYTES_PER_BLOCK;
    let mut world = World::new(&snapshot, room);
    let (mut most, mut spent) = (0, 0.0);
    for _ in 0..EACH / BATCH {
        for engine in 0..1000 {
            let (source, payload) = world.message(engine, BATCH);
            let started = cpu_time();
            world.apply(&index, source, &payload);
            spent += cpu_time() - started;
            most = most.max(world.residency.bytes());
        }
    }
    let stored = EACH / BATCH * BATCH * EVENT * 1000;
    println!(
        "{stored} blocks stored, {:.0} ns each; {} held",
        spent / stored as f64,
        world.residency.blocks()
    );
    println!("{most} bytes at most of {room} for blocks, {} for the index", index.bytes());
    println!("{before} KiB of memory before, {} at most", memory()[1]);
}
