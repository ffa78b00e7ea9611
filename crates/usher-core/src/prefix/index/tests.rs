//! The index compared with a list of blocks per endpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use proptest::prelude::*;

use super::key::SHARDS;
use super::table::Block;
use super::*;
use crate::endpoints::{EndpointSpec, Store};

/// A pool whose endpoints can come and go.
pub(super) struct Pool {
    store: Store,
    names: BTreeSet<u32>,
    pub(super) snapshot: Arc<Snapshot>,
}

impl Pool {
    pub(super) fn of(names: impl IntoIterator<Item = u32>) -> Self {
        let store = Store::default();
        let mut pool = Self { snapshot: store.snapshot(), store, names: names.into_iter().collect() };
        pool.publish();
        pool
    }

    fn publish(&mut self) {
        let spec = |name: &u32| EndpointSpec::new(name.to_string(), (Ipv4Addr::from(*name), 8000));
        self.store.replace(self.names.iter().map(spec).collect());
        self.snapshot = self.store.snapshot();
    }

    pub(super) fn endpoint(&self, name: u32) -> Option<&Arc<Endpoint>> {
        let position = self.names.iter().position(|known| *known == name)?;
        self.snapshot.endpoints().get(position)
    }
}

/// Blocks that an endpoint holds, the most recent first, with their sources.
#[derive(Clone, Debug, Default)]
struct Listed {
    capacity: usize,
    blocks: Vec<(u64, u16)>,
}

/// The index as it should be, by slot.
#[derive(Clone, Debug)]
struct Reference {
    limits: Limits,
    listed: BTreeMap<u32, Listed>,
    /// Bits and expiry of the origins, by name.
    origins: BTreeMap<u8, (u16, u64)>,
    /// Blocks that were not published, with their endpoints.
    updates: Vec<(EndpointId, u64)>,
    /// New blocks for which none was republished, before this prompt and of it; blocks of it that are republished.
    credit: i64,
    new: i64,
    again: i64,
    crowded_out: usize,
}

/// Blocks in the queue at most.
const ROOM: usize = 64;

impl Reference {
    fn entries(&self) -> usize {
        self.listed.values().map(|listed| listed.blocks.len()).sum()
    }

    fn add(&mut self, endpoint: &Endpoint, hashes: &[u64], source: u16, capacity: Option<usize>) {
        if !hashes.is_empty() {
            self.place(endpoint, hashes, source, capacity);
        }
        let (new, again) = (std::mem::take(&mut self.new), std::mem::take(&mut self.again));
        if new + again > 0 {
            self.credit = (self.credit + new).min(ROOM as i64) - 2 * again;
        }
    }

    fn place(&mut self, endpoint: &Endpoint, hashes: &[u64], source: u16, capacity: Option<usize>) {
        let (is_own, may_republish) = (source & OWN != 0, self.credit > 0);
        let (slot, capacity_of_others) = (endpoint.slot().number(), self.limits.capacity);
        let new = || Listed { capacity: capacity_of_others, ..Listed::default() };
        let listed = self.listed.entry(slot).or_insert_with(new);
        listed.capacity = capacity.unwrap_or(listed.capacity);
        let capacity = listed.capacity;
        listed.blocks.truncate(capacity);
        // Where the next block comes; those from there on are earlier ones.
        let mut next = 0;
        for (index, hash) in hashes.iter().enumerate() {
            let listed = self.listed.get_mut(&slot).unwrap();
            let had = listed.blocks.iter().position(|(held, _)| held == hash);
            let before = had.map_or(0, |at| listed.blocks.remove(at).1);
            if had.is_some_and(|at| at < next) {
                next -= 1;
            }
            if had.is_none() && listed.blocks.len() == capacity {
                if next == listed.blocks.len() {
                    return;
                }
                listed.blocks.pop();
            }
            if had.is_none() && self.entries() == self.limits.entries {
                let listed = self.listed.get_mut(&slot).unwrap();
                if next < listed.blocks.len() {
                    listed.blocks.pop();
                    self.crowded_out += 1;
                } else if !self.evict_from_largest((hashes.len() - index).min(holders::AT_ONCE), slot) {
                    return;
                }
            }
            let stays = is_own && had.is_some() && !may_republish;
            let sources = before | if stays { source & !PUBLISHED } else { source };
            self.listed.get_mut(&slot).unwrap().blocks.insert(next, (*hash, sources));
            next += 1;
            if is_own && before & PUBLISHED == 0 && !stays {
                *(if had.is_some() { &mut self.again } else { &mut self.new }) += 1;
                self.updates.push((EndpointId::of(endpoint), *hash));
            }
        }
    }

    /// Adds what is older than all that is held, as far as there is room.
    fn restore(&mut self, endpoint: &Endpoint, hashes: &[u64]) {
        let (slot, capacity) = (endpoint.slot().number(), self.limits.capacity);
        for hash in hashes {
            let (entries, most) = (self.entries(), self.limits.entries);
            let new = || Listed { capacity, ..Listed::default() };
            let listed = self.listed.entry(slot).or_insert_with(new);
            let has_room = listed.blocks.len() < listed.capacity && entries < most;
            match listed.blocks.iter_mut().find(|(held, _)| held == hash) {
                Some((_, sources)) => *sources |= lru::RESTORED,
                None if has_room => listed.blocks.push((*hash, lru::RESTORED)),
                None => return,
            }
        }
    }

    /// Makes room for an endpoint, unless it has the most itself.
    fn evict_from_largest(&mut self, count: usize, by: u32) -> bool {
        let size = |(slot, listed): &(&u32, &mut Listed)| (listed.blocks.len(), std::cmp::Reverse(**slot));
        let Some((slot, largest)) = self.listed.iter_mut().max_by_key(size) else { return false };
        if *slot == by || largest.blocks.is_empty() {
            return false;
        }
        let left = largest.blocks.len().saturating_sub(count);
        self.crowded_out += largest.blocks.drain(left..).count();
        true
    }

    /// Blocks that an endpoint holds, one prompt after the other.
    fn matched(&self, slot: u32, prompts: &[Vec<u64>]) -> u32 {
        let holds = |hash: &&u64| {
            self.listed.get(&slot).is_some_and(|listed| listed.blocks.iter().any(|(held, _)| held == *hash))
        };
        prompts.iter().map(|prompt| prompt.iter().take_while(holds).count() as u32).sum()
    }

    /// Bit of an origin; a new one has the lowest that is free.
    fn source_of(&mut self, name: u8, expires_ms: u64) -> u16 {
        let taken = self.origins.values().fold(0, |all, (bit, _)| all | bit);
        let free = (3..16).map(|bit| 1 << bit).find(|bit| taken & bit == 0).unwrap();
        let origin = self.origins.entry(name).or_insert((free, 0));
        origin.1 = expires_ms;
        origin.0
    }

    fn retire(&mut self, sources: u16) {
        let blocks = self.listed.values_mut().flat_map(|listed| &mut listed.blocks);
        for (_, had) in blocks.filter(|(_, had)| had & sources != 0) {
            *had &= !sources;
            *had |= if *had & !PUBLISHED == 0 { lru::RESTORED } else { 0 };
        }
    }
}

/// Checks that the blocks of the holders and those in the shards are the same, and are counted right: no
/// entry is dead, and none is missing.
pub(super) fn check(index: &PrefixIndex) {
    let Holders { shards, .. } = &index.holders;
    let mut held = BTreeSet::new();
    for holder in index.holders.all() {
        for (key, _) in holder.lock().recent.iter() {
            assert!(held.insert((key.shard(), key.tag().bits(), holder.slot_number())));
        }
    }
    assert_eq!(held.len(), index.entries());
    let mut found = BTreeSet::new();
    for (shard, table) in shards.tables().iter().enumerate() {
        for place in &table.blocks {
            let Some(block) = Block::from_bits(place.load(Relaxed)) else { continue };
            let mut words = vec![0; 1024];
            let mut look_up = table.look_up(block.tag());
            look_up.find();
            look_up.held(0, &mut words);
            // The last bit is set by the free lanes of lists; no candidate's is there.
            words[1023] &= !(1 << 63);
            let bits = |word: u64| (0..64u32).filter(move |bit| word >> bit & 1 == 1);
            let slots = (0u32..)
                .zip(words)
                .filter(|(_, word)| *word != 0)
                .flat_map(|(at, word)| bits(word).map(move |bit| at * 64 + bit));
            found.extend(slots.map(|slot| (shard, block.tag().bits(), slot)));
        }
    }
    assert_eq!(found, held);
    let tables: usize = shards.tables().iter().map(|table| table.bytes()).sum();
    let recents: usize = index.holders.all().iter().map(|holder| holder.lock().recent.bytes()).sum();
    let fixed = index.bytes() - index.updates.bytes() - tables - recents;
    assert!(fixed < SHARDS * 200 + index.holders.all().len() * 300 + 1000, "{fixed} bytes");
}

#[derive(Clone, Debug)]
enum Step {
    /// Endpoint, prompts, capacity.
    Add(u32, Vec<Vec<u64>>, usize),
    Remove(u32),
    /// An endpoint leaves the pool or comes back.
    Toggle(u32),
    Sweep(u64),
    Import(u8, Vec<(u32, Vec<u64>)>, u64),
    Restore(u32, Vec<u64>),
    TakeUpdates(usize),
    Republish,
    /// Prompts, and which of the endpoints are candidates.
    Find(Vec<Vec<u64>>, u32),
}

/// Prompts begin like others: the blocks of one of a few families, and an end of their own.
pub(super) fn prompt() -> impl Strategy<Value = Vec<u64>> {
    (0..4u64, 0..14u64, prop::option::of(0..3u64)).prop_map(|(family, blocks, own)| {
        let shared = (0..blocks).map(|block| family * 1000 + block);
        shared.chain(own.into_iter().flat_map(|own| [10_000 + own, 20_000 + own])).collect()
    })
}

fn prompts() -> impl Strategy<Value = Vec<Vec<u64>>> {
    prop::collection::vec(prompt(), 1..4)
}

/// Names of endpoints; half of them have slots beyond the first word of a map.
pub(super) const NAMES: [u32; 8] = [1, 2, 3, 4, 101, 102, 103, 104];

pub(super) fn name() -> impl Strategy<Value = u32> {
    prop::sample::select(&NAMES)
}

fn step() -> impl Strategy<Value = Step> {
    let report = prop::collection::vec((name(), prompt()), 0..3);
    prop_oneof![
        12 => (name(), prompts(), prop_oneof![8 => 20..40usize, 1 => 0..20usize])
            .prop_map(|(name, prompts, capacity)| Step::Add(name, prompts, capacity)),
        12 => (prompts(), any::<u32>()).prop_map(|(prompts, candidates)| Step::Find(prompts, candidates)),
        3 => (0..4u8, report, 1..50u64).prop_map(|(origin, report, ttl)| Step::Import(origin, report, ttl)),
        1 => name().prop_map(Step::Remove),
        2 => name().prop_map(Step::Toggle),
        2 => (0..20u64).prop_map(Step::Sweep),
        2 => (name(), prompt()).prop_map(|(name, prompt)| Step::Restore(name, prompt)),
        1 => (0..30usize).prop_map(Step::TakeUpdates),
        1 => Just(Step::Republish),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
    #[test]
    fn index_matches_reference_model(
        steps in prop::collection::vec(step(), 0..120),
        entries in prop_oneof![30..200usize, Just(1000)],
    ) {
        // The endpoints that nobody asks for take the slots in between.
        let mut pool = Pool::of(0..120);
        let limits = Limits { entries, capacity: 30 };
        let index = PrefixIndex::new(limits);
        index.keep_updates(ROOM);
        let mut reference = Reference {
            limits,
            listed: BTreeMap::new(),
            origins: BTreeMap::new(),
            updates: Vec::new(),
            credit: 0,
            new: 0,
            again: 0,
            crowded_out: 0,
        };
        let mut now_ms = 1;
        for step in steps {
            match step {
                Step::Add(name, prompts, capacity) => {
                    let Some(endpoint) = pool.endpoint(name) else { continue };
                    prompts.iter().for_each(|prompt| index.add(endpoint, prompt, capacity));
                    for prompt in &prompts {
                        reference.add(endpoint, prompt, OWN | PUBLISHED, Some(capacity));
                    }
                }
                Step::Remove(name) => {
                    let Some(endpoint) = pool.endpoint(name) else { continue };
                    index.remove(endpoint);
                    reference.listed.remove(&endpoint.slot().number());
                }
                Step::Toggle(name) => {
                    if !pool.names.remove(&name) {
                        pool.names.insert(name);
                    }
                    pool.publish();
                    if let Some(back) = pool.endpoint(name) {
                        let slot = back.slot().number();
                        prop_assert!(!reference.listed.contains_key(&slot), "{} still holds something", slot);
                    }
                }
                Step::Sweep(ms) => {
                    now_ms += ms;
                    index.sweep(&pool.snapshot, now_ms);
                    reference.listed.retain(|slot, _| pool.snapshot.slots().contains(slot));
                    let expired = reference.origins.values().filter(|(_, at)| *at <= now_ms);
                    let bits = expired.fold(0, |bits, (bit, _)| bits | bit);
                    reference.origins.retain(|_, (_, at)| *at > now_ms);
                    reference.retire(bits);
                }
                Step::Import(name, report, ttl) => {
                    let known = |(name, hashes): &(u32, Vec<u64>)| {
                        let endpoint = pool.endpoint(*name)?;
                        let held = EndpointBlocks { endpoint: EndpointId::of(endpoint), capacity: 0, hashes: hashes.clone() };
                        Some((Arc::clone(endpoint), held))
                    };
                    let held: Vec<_> = report.iter().filter_map(known).collect();
                    let origin = OriginId([name; 16]);
                    prop_assert!(index.import(origin, &held, now_ms, Duration::from_millis(ttl)));
                    let source = reference.source_of(name, now_ms + ttl);
                    for (endpoint, held) in &held {
                        reference.add(endpoint, &held.hashes, source | PUBLISHED, None);
                    }
                }
                Step::Restore(name, hashes) => {
                    let Some(endpoint) = pool.endpoint(name) else { continue };
                    let held = EndpointBlocks { endpoint: EndpointId::of(endpoint), capacity: 0, hashes };
                    index.restore(endpoint, &held);
                    reference.restore(endpoint, &held.hashes);
                }
                Step::TakeUpdates(max) => {
                    let taken = index.take_updates(max);
                    let over = reference.updates.len().saturating_sub(ROOM);
                    reference.updates.drain(..over);
                    let updates: Vec<_> = reference.updates.drain(..max.min(reference.updates.len())).collect();
                    prop_assert!(taken.dropped >= over as u64);
                    for EndpointBlocks { endpoint, hashes, .. } in &taken.held {
                        let of_endpoint = updates.iter().filter(|(of, _)| of == endpoint).map(|(_, hash)| *hash);
                        prop_assert_eq!(&of_endpoint.collect::<Vec<_>>(), hashes);
                    }
                    let blocks: usize = taken.held.iter().map(|held| held.hashes.len()).sum();
                    prop_assert_eq!(blocks, updates.len());
                    prop_assert_eq!(index.pending_updates(), reference.updates.len());
                }
                Step::Republish => {
                    index.republish(Some(3));
                    reference.credit = (reference.credit + 6).min(ROOM as i64);
                    let blocks = reference.listed.values_mut().flat_map(|listed| &mut listed.blocks);
                    blocks.for_each(|(_, sources)| *sources &= !PUBLISHED);
                }
                Step::Find(prompts, candidates) => {
                    let chosen = (0u32..).zip(&pool.names).filter(|(_, name)| {
                        NAMES.iter().position(|known| known == *name).is_some_and(|at| candidates >> at & 1 == 1)
                    });
                    let indices: Vec<u32> = chosen.map(|(position, _)| position).collect();
                    let mut matched = Vec::new();
                    index.find(&Blocks::from_prompts(&prompts), View::new(&pool.snapshot, &indices), &mut matched);
                    let mut want = vec![0; pool.names.len()];
                    for position in indices {
                        let slot = pool.snapshot.slots()[position as usize];
                        want[position as usize] = reference.matched(slot, &prompts);
                    }
                    prop_assert_eq!(matched, want);
                }
            }
            prop_assert_eq!(index.entries(), reference.entries());
            prop_assert!(index.entries() <= entries);
            prop_assert_eq!(index.crowded_out(), reference.crowded_out);
        }
        check(&index);
    }
}

#[test]
fn a_smaller_index_takes_no_more_than_it_was_asked_to() {
    let pool = Pool::of(0..20);
    let index = PrefixIndex::new(Limits::default());
    let empty = index.bytes();
    for (count, endpoint) in (1u64..).zip(pool.snapshot.endpoints()) {
        let hashes: Vec<u64> = (0..count * 200).collect();
        index.add(endpoint, &hashes, 31_250);
    }
    assert_eq!(index.entries(), 42_000);
    let full = index.bytes();
    for share in [9, 5, 2] {
        let bytes = full / 10 * share;
        let now = index.shrink_to(bytes);
        assert_eq!(now, index.bytes());
        assert!(now <= bytes && now > bytes / 10 * 9, "{now} of {bytes}");
        check(&index);
    }
    // The largest had to give; the smallest has what it had.
    let mut matched = Vec::new();
    let blocks = Blocks::from_prompts([(0..400).collect::<Vec<u64>>()]);
    index.find(&blocks, pool.snapshot.all().view(), &mut matched);
    assert_eq!(matched[0], 200);
    let longest = index.holders.get(pool.snapshot.endpoints()[19].slot()).unwrap();
    let left = longest.lock().recent.len() as u32;
    assert!(left < 4000 && matched[19] == left.min(400), "{left} are left, {} of them match", matched[19]);
    index.shrink_to(0);
    assert_eq!(index.entries(), 0);
    assert!(index.bytes() < empty + 20 * 500, "{} and {empty} when it was new", index.bytes());
}

/// Sets grow and shrink, blocks move and tables are made anew while others look: whoever
/// holds a prompt all the time is always found with all of it, and who never had it never.
#[test]
fn concurrent_lookups_find_unchanged_prompts() {
    const BLOCKS: u64 = 1000;
    let pool = Pool::of(0..140);
    let endpoints = pool.snapshot.endpoints();
    let index = PrefixIndex::new(Limits { entries: 20_000, ..Limits::default() });
    let prompt: Vec<u64> = (0..BLOCKS).collect();
    let (holds, never, changing) = (&endpoints[3], &endpoints[70], &endpoints[100..140]);
    index.add(holds, &prompt, BLOCKS as usize);
    let blocks = Blocks::from_prompts([prompt.as_slice()]);
    let left = std::sync::atomic::AtomicUsize::new(3);
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (index, prompt, left) = (&index, &prompt, &left);
            scope.spawn(move || {
                for turn in 0..120u64 {
                    let at = (turn * 7 + thread * 13) as usize % changing.len();
                    let endpoint = &changing[at];
                    let from = (turn * 37 % 500) as usize;
                    let own: Vec<u64> = (0..300).map(|block| 10_000 + turn * 1000 + block).collect();
                    index.add(endpoint, &prompt[from..from + 400], 450);
                    index.add(endpoint, &own, 450);
                    match turn % 8 {
                        3 => index.remove(endpoint),
                        5 => index.remove(&changing[(at + 1) % changing.len()]),
                        _ => {}
                    }
                }
                left.fetch_sub(1, Relaxed);
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                let mut matched = Vec::new();
                let candidates = pool.snapshot.all();
                let mut lookups = 0;
                while left.load(Relaxed) > 0 || lookups == 0 {
                    index.find(&blocks, candidates.view(), &mut matched);
                    assert_eq!((matched[3], matched[70]), (BLOCKS as u32, 0));
                    lookups += 1;
                }
            });
        }
    });
    assert!(index.holders.get(never.slot()).is_none());
    check(&index);
    index.sweep(&Store::default().snapshot(), 1);
    assert_eq!((index.entries(), index.holders.all().len()), (0, 0));
    check(&index);
}

/// Adding to an endpoint while it is removed leaves nothing behind that is not counted, and
/// the slot is free in the end.
#[test]
fn endpoints_removed_during_additions_leave_no_blocks() {
    let pool = Pool::of(0..3);
    let index = PrefixIndex::new(Limits { entries: 250, ..Limits::default() });
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (index, endpoints) = (&index, pool.snapshot.endpoints());
            scope.spawn(move || {
                for turn in 0..300u64 {
                    let endpoint = &endpoints[((turn + thread) % 3) as usize];
                    let from = turn * 7 % 90;
                    index.add(endpoint, &(from..from + 60).collect::<Vec<u64>>(), 100);
                    if turn % 3 == thread % 3 {
                        index.remove(endpoint);
                    }
                    assert!(index.entries() <= 250);
                }
            });
        }
    });
    check(&index);
    let slot = Arc::clone(pool.snapshot.endpoints()[0].slot());
    index.sweep(&Store::default().snapshot(), 1);
    check(&index);
    drop(pool);
    assert_eq!((index.entries(), Arc::strong_count(&slot)), (0, 1));
}
