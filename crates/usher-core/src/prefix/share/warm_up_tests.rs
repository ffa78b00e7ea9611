//! Hits of a replica that starts beside those that ran on, where caches are small and the stream has lost its beginning.

use std::net::Ipv4Addr;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::endpoints::{EndpointSpec, Snapshot, Store};
use crate::prefix::share::Fingerprint;
use crate::prefix::{Blocks, IndexWriter, Limits, OriginId, PrefixIndex};

const ENDPOINTS: u16 = 4;
/// Blocks that an endpoint holds.
const CAPACITY: usize = 2000;
/// Room for eight times what all endpoints hold.
const STREAM: u64 = 512 << 10;
/// Time between two requests. A cache is new after some 15 s.
const PACE_MS: u64 = 50;

/// Prompts that begin with one of forty system prompts, few of which are most, and go on with a conversation.
struct Traffic {
    random: StdRng,
    /// Blocks of conversations, the oldest first.
    conversations: Vec<Vec<u64>>,
    next: u64,
}

impl Traffic {
    fn new(seed: u64) -> Self {
        Self { random: StdRng::seed_from_u64(seed), conversations: Vec::new(), next: 1 << 32 }
    }

    /// A number below `end`, low ones more often.
    fn low(&mut self, end: usize) -> usize {
        let part: f64 = self.random.random();
        ((end as f64).powf(part) - 1.0) as usize
    }

    fn prompt(&mut self) -> Vec<u64> {
        let goes_on = !self.conversations.is_empty() && self.random.random_bool(0.6);
        let mut prompt = if goes_on {
            let back = self.low(self.conversations.len().min(300));
            self.conversations.remove(self.conversations.len() - 1 - back)
        } else {
            let system = self.low(40) as u64;
            (0..16 + system % 5 * 8).map(|block| system << 16 | block).collect()
        };
        let turn = self.random.random_range(4..24);
        prompt.extend(self.next..self.next + turn);
        self.next += turn;
        if prompt.len() < 200 {
            self.conversations.push(prompt.clone());
        }
        prompt.iter().map(|block| (block + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
    }
}

struct Replica {
    exchange: Exchange,
    index: Arc<PrefixIndex>,
}

impl Replica {
    fn new(number: u8, snapshot: &Arc<Snapshot>, now_ms: u64) -> Self {
        let (index, budget) = (Arc::new(PrefixIndex::new(Limits::default())), Arc::default());
        let writer = Arc::new(IndexWriter::inline(Arc::clone(&index), IndexWriter::share(&budget)));
        let mut exchange = Exchange::new(OriginId([number; 16]), Exchange::TTL, STREAM, &budget);
        exchange.set_members(&[(Fingerprint(7), writer)], now_ms);
        exchange.discover(snapshot, now_ms);
        Self { exchange, index }
    }

    /// Leading blocks of a prompt at each endpoint.
    fn found(&self, prompt: &[u64], snapshot: &Arc<Snapshot>) -> Vec<u32> {
        let mut matched = Vec::new();
        self.index.find(&Blocks::from_prompts([prompt]), snapshot.all().view(), &mut matched);
        matched
    }

    /// Most of a prompt that an endpoint has.
    fn best(&self, prompt: &[u64], snapshot: &Arc<Snapshot>) -> u64 {
        self.found(prompt, snapshot).into_iter().max().unwrap_or_default().into()
    }
}

/// Three replicas, and the stream between them.
struct World {
    snapshot: Arc<Snapshot>,
    replicas: Vec<Replica>,
    stream: Vec<(EntryId, Vec<u8>)>,
    /// Entries that there have been.
    entries: u64,
    now_ms: u64,
}

impl World {
    fn new() -> Self {
        let store = Store::default();
        let spec = |port: u16| EndpointSpec::new(port.to_string(), (Ipv4Addr::LOCALHOST, port));
        store.replace((0..ENDPOINTS).map(spec).collect());
        let snapshot = store.snapshot();
        let replicas = (1..=3).map(|number| Replica::new(number, &snapshot, 0)).collect();
        Self { snapshot, replicas, stream: Vec::new(), entries: 0, now_ms: 0 }
    }

    /// Sends a prompt to the endpoint that has most of it, now and then to another one.
    fn decide(&mut self, traffic: &mut Traffic) {
        let prompt = traffic.prompt();
        let replica = &self.replicas[traffic.random.random_range(0..self.replicas.len())];
        let random = traffic.random.random_range(0..usize::from(ENDPOINTS));
        let found = replica.found(&prompt, &self.snapshot);
        let is_spread = traffic.random.random_bool(0.1);
        let best = (0..found.len()).max_by_key(|at| (found[*at], (*at + random) % found.len()));
        let endpoint = if is_spread { random } else { best.unwrap_or_default() };
        replica.index.add(&self.snapshot.endpoints()[endpoint], &prompt, CAPACITY);
        self.now_ms += PACE_MS;
        if self.now_ms.is_multiple_of(100) {
            self.exchange();
        }
    }

    fn exchange(&mut self) {
        let now_ms = self.now_ms;
        let batches: Vec<_> = self
            .replicas
            .iter_mut()
            .flat_map(|replica| std::iter::from_fn(|| replica.exchange.poll(now_ms)))
            .collect();
        for batch in batches {
            self.entries += 1;
            let id = EntryId { ms: self.entries, seq: 0 };
            for replica in &mut self.replicas {
                replica.exchange.receive(id, &batch, now_ms);
            }
            self.stream.push((id, batch));
        }
        for replica in &mut self.replicas {
            replica.index.sweep(&self.snapshot, now_ms);
            if let Some(oldest) = replica.exchange.trim() {
                self.stream.retain(|(id, _)| *id >= oldest);
            }
        }
    }

    /// A replica that has read the stream.
    fn start(&self) -> Replica {
        let mut replica = Replica::new(9, &self.snapshot, self.now_ms);
        let mut warm_up = WarmUp::default();
        let entries = self.stream.iter().rev().map(|(id, batch)| (*id, batch.as_slice()));
        warm_up.page(&mut replica.exchange, entries, self.now_ms);
        replica
    }
}

#[test]
fn started_replica_has_the_hits_of_one_that_ran_on() {
    for seed in [1, 3] {
        let (mut world, mut traffic) = (World::new(), Traffic::new(seed));
        (0..10_000).for_each(|_| world.decide(&mut traffic));
        let first = world.stream.first().map(|(id, _)| id.ms);
        assert!(first.is_some_and(|first| first > world.entries / 4), "the stream has lost its beginning");
        let started = world.start();
        let (mut hits, mut of_started, mut blocks) = (0, 0, 0);
        for _ in 0..2000 {
            let prompt = traffic.prompt();
            hits += world.replicas[0].best(&prompt, &world.snapshot);
            of_started += started.best(&prompt, &world.snapshot);
            blocks += prompt.len() as u64;
        }
        assert!(hits * 3 > blocks, "{hits} of {blocks} blocks");
        assert!(of_started * 100 >= hits * 98, "{of_started} of {hits} hits");
    }
}
