//! An engine whose cache is known, for tests.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use rmpv::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::chain::Chain;

/// Number of the tier of a block; lower is faster.
type Tier = u8;

/// Blocks by their hashes: their sequence, and the copies in each tier.
#[derive(Debug, Default)]
struct Cache(BTreeMap<u64, (Vec<u32>, [u16; 2])>);

/// An engine with one data parallel rank.
#[derive(Debug)]
pub(super) struct Engine {
    /// Tokens of its blocks.
    pub(super) size: usize,
    cache: Cache,
    /// Number of the next message.
    pub(super) sequence: u64,
    /// Last messages.
    pub(super) buffer: VecDeque<(u64, Bytes)>,
    keep: usize,
    time: f64,
    is_map: bool,
}

/// Step of a model engine.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Computes a sequence, a number per block.
    Compute(Vec<u8>),
    /// Evicts a copy of a block.
    Evict(usize, Tier),
    /// Copies a block to the host's memory.
    Offload(usize),
    /// Drops everything, and says so.
    Clear,
}

fn hash(tokens: &[u32]) -> u64 {
    xxh3_64(&tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<_>>())
}

fn best(copies: &[u16; 2]) -> Option<Tier> {
    copies.iter().position(|copies| *copies > 0).map(|tier| tier as Tier)
}

fn list(values: impl IntoIterator<Item = Value>) -> Value {
    Value::Array(values.into_iter().collect())
}

const MEDIA: [&str; 2] = ["GPU", "CPU"];

impl Engine {
    pub(super) fn new(size: usize, keep: usize, is_map: bool) -> Self {
        Self { size, cache: Cache::default(), sequence: 0, buffer: VecDeque::new(), keep, time: 1e9, is_map }
    }

    /// Another process takes over.
    pub(super) fn restart(&mut self) {
        self.cache = Cache::default();
        self.sequence = 0;
        self.buffer.clear();
    }

    /// Drops everything without a word.
    pub(super) fn sleep(&mut self) {
        self.cache = Cache::default();
    }

    /// Carries out a step, and returns the message about it.
    pub(super) fn step(&mut self, step: &Step) -> Option<(u64, Bytes)> {
        let event = match step {
            Step::Compute(path) => self.compute(path)?,
            Step::Evict(at, tier) => self.evict(*at, *tier)?,
            Step::Offload(at) => self.offload(*at)?,
            Step::Clear => {
                self.cache = Cache::default();
                self.event(&[("type", "AllBlocksCleared".into())])
            }
        };
        Some(self.publish(event))
    }

    /// Carries out a step whose message is lost for good.
    pub(super) fn discard(&mut self, step: &Step) {
        if let Some((sequence, _)) = self.step(step) {
            self.buffer.retain(|(kept, _)| *kept != sequence);
        }
    }

    fn event(&self, fields: &[(&str, Value)]) -> Value {
        if self.is_map {
            Value::Map(fields.iter().map(|(name, value)| ((*name).into(), value.clone())).collect())
        } else {
            list(fields.iter().map(|(_, value)| value.clone()))
        }
    }

    fn publish(&mut self, event: Value) -> (u64, Bytes) {
        self.time += 0.25;
        let mut payload = Vec::new();
        let batch = list([self.time.into(), list([event]), Value::Nil]);
        rmpv::encode::write_value(&mut payload, &batch).unwrap();
        let message = (self.sequence, Bytes::from(payload));
        self.sequence += 1;
        self.buffer.push_back(message.clone());
        if self.buffer.len() > self.keep {
            self.buffer.pop_front();
        }
        message
    }

    /// Stores what the cache doesn't begin with.
    fn compute(&mut self, path: &[u8]) -> Option<Value> {
        let tokens: Vec<u32> = path
            .iter()
            .flat_map(|number| (0..self.size as u32).map(|at| u32::from(*number) * 1000 + at))
            .collect();
        let ends: Vec<usize> = (1..=path.len()).map(|blocks| blocks * self.size).collect();
        let is_held =
            |end: &usize| self.cache.0.get(&hash(&tokens[..*end])).is_some_and(|(_, [gpu, _])| *gpu > 0);
        let held = ends.iter().take_while(|end| is_held(end)).count();
        let new = &ends[held..];
        let start = held * self.size;
        let parent = if held > 0 { hash(&tokens[..start]).into() } else { Value::Nil };
        let hashes = list(new.iter().map(|end| hash(&tokens[..*end]).into()));
        new.first()?;
        for end in new {
            let sequence = tokens[..*end].to_vec();
            self.cache.0.entry(hash(&sequence)).or_insert((sequence, [0, 0])).1[0] += 1;
        }
        Some(self.event(&[
            ("type", "BlockStored".into()),
            ("block_hashes", hashes),
            ("parent_block_hash", parent),
            ("token_ids", list(tokens[start..].iter().map(|token| (*token).into()))),
            ("block_size", self.size.into()),
            ("lora_id", Value::Nil),
            ("medium", MEDIA[0].into()),
        ]))
    }

    /// One of the blocks that a tier has.
    fn pick(&self, at: usize, tier: Tier) -> Option<u64> {
        let held =
            |(hash, (_, copies)): (&u64, &(_, [u16; 2]))| (copies[usize::from(tier)] > 0).then_some(*hash);
        let held: Vec<u64> = self.cache.0.iter().filter_map(held).collect();
        held.get(at % held.len().max(1)).copied()
    }

    fn evict(&mut self, at: usize, tier: Tier) -> Option<Value> {
        let hash = self.pick(at, tier)?;
        let (_, copies) = self.cache.0.get_mut(&hash)?;
        copies[usize::from(tier)] -= 1;
        let medium = MEDIA[usize::from(tier)].into();
        Some(self.event(&[
            ("type", "BlockRemoved".into()),
            ("block_hashes", list([hash.into()])),
            ("medium", medium),
        ]))
    }

    fn offload(&mut self, at: usize) -> Option<Value> {
        let hash = self.pick(at, 0)?;
        let (_, copies) = self.cache.0.get_mut(&hash)?;
        if copies[1] > 0 {
            return None;
        }
        copies[1] = 1;
        Some(self.event(&[
            ("type", "BlockStored".into()),
            ("block_hashes", list([hash.into()])),
            ("parent_block_hash", Value::Nil),
            ("token_ids", list([])),
            ("block_size", 0.into()),
            ("lora_id", Value::Nil),
            ("medium", MEDIA[1].into()),
        ]))
    }

    /// Keys of all blocks of ours that the cache has as a whole, with the slowest tier of the fastest of each part.
    pub(super) fn keys(&self, model: Chain, block_tokens: usize) -> BTreeMap<u64, Tier> {
        let mut keys = BTreeMap::new();
        for (tokens, copies) in self.cache.0.values() {
            let start = tokens.len() - self.size;
            for end in (start + 1..=tokens.len()).filter(|end| end % block_tokens == 0) {
                let first = (end - block_tokens) / self.size;
                let parts = (first + 1..tokens.len() / self.size).map(|blocks| blocks * self.size);
                let tier_of = |end| best(&self.cache.0.get(&hash(&tokens[..end]))?.1);
                let tiers: Option<Vec<Tier>> = parts.map(tier_of).chain([best(copies)]).collect();
                let mut chain = model;
                tokens[..end].iter().for_each(|token| chain.push(*token));
                if let Some(tier) = tiers.and_then(|tiers| tiers.into_iter().max()) {
                    keys.insert(chain.key(), tier);
                }
            }
        }
        keys
    }
}
