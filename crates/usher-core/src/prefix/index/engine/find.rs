//! Finds how much of a prompt each candidate's engine holds, in which tiers.

use std::cell::RefCell;
use std::sync::Arc;

use arc_swap::Guard;

use crate::endpoints::View;
use crate::prefix::Blocks;
use crate::prefix::index::key::Key;
use crate::prefix::index::set::MAX_SLOTS;
use crate::prefix::index::shards::Tables;

/// Part of a prompt that an endpoint holds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineMatch {
    /// Leading blocks that it holds, in whichever tier.
    pub blocks: u32,
    /// The same, each weighted by its tier.
    pub weighted: f64,
}

/// Tables of a tier, with the weight of its blocks.
pub(super) type Tier = (Guard<Arc<Tables>>, f64);

thread_local! {
    /// Kept between look-ups, so that they need no memory; as large as the pool has slots.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Bit maps have a word for 64 slots each.
#[derive(Debug, Default)]
struct Scratch {
    candidates: Vec<u64>,
    /// Candidates that hold all blocks so far.
    running: Vec<u64>,
    /// Holders of the next block in any tier, and in one.
    held: Vec<u64>,
    of_tier: Vec<u64>,
    /// By slot.
    found: Vec<EngineMatch>,
}

/// Does what [`EngineIndex::find`] says.
pub(super) fn find(tiers: &[Tier], blocks: &Blocks, candidates: View<'_>, matched: &mut Vec<EngineMatch>) {
    let slots = candidates.snapshot().slots();
    matched.clear();
    matched.resize(slots.len(), EngineMatch::default());
    if tiers.is_empty() {
        return;
    }
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.start(slots, candidates.indices());
        blocks.prompts().for_each(|prompt| scratch.prompt(tiers, prompt));
        for &position in candidates.indices() {
            let at = position as usize;
            let found = slots.get(at).and_then(|slot| scratch.found.get(*slot as usize));
            if let (Some(matched), Some(found)) = (matched.get_mut(at), found) {
                *matched = *found;
            }
        }
    });
}

/// Blocks that are looked up together, as memory answers several at a time.
const TOGETHER: usize = 8;

impl Scratch {
    fn start(&mut self, slots: &[u32], candidates: &[u32]) {
        self.candidates.clear();
        for &position in candidates {
            let Some(&slot) = slots.get(position as usize) else { continue };
            if slot < u32::from(MAX_SLOTS) {
                let word = slot as usize / 64;
                if word >= self.candidates.len() {
                    self.candidates.resize(word + 1, 0);
                }
                self.candidates[word] |= 1 << (slot % 64);
            }
        }
        let words = self.candidates.len();
        self.held.resize(words, 0);
        self.of_tier.resize(words, 0);
        self.found.clear();
        self.found.resize(words * 64, EngineMatch::default());
    }

    fn prompt(&mut self, tiers: &[Tier], prompt: &[u64]) {
        self.running.clone_from(&self.candidates);
        for together in prompt.chunks(TOGETHER) {
            for (tables, _) in tiers {
                // Brings them into the processor's caches.
                let touch = together.iter().filter_map(|hash| {
                    let key = Key::of(*hash);
                    tables.get(key.shard()).map(|table| table.look_up(key.tag()).find())
                });
                std::hint::black_box(touch.fold(0, |read, found| read ^ found));
            }
            for hash in together {
                self.block(tiers, Key::of(*hash));
                if self.running.iter().all(|word| *word == 0) {
                    return;
                }
            }
        }
    }

    /// Counts one block for those that hold it and all before it.
    fn block(&mut self, tiers: &[Tier], key: Key) {
        let Self { running, held, of_tier, found, .. } = self;
        held.fill(0);
        for (tables, weight) in tiers {
            let Some(table) = tables.get(key.shard()) else { continue };
            let mut look_up = table.look_up(key.tag());
            look_up.find();
            look_up.held(0, of_tier);
            let words = running.iter().zip(&*of_tier).zip(held.iter_mut()).zip(found.chunks_exact_mut(64));
            for (((running, of_tier), held), found) in words {
                let mut new = running & of_tier & !*held;
                *held |= new;
                while new != 0 {
                    if let Some(found) = found.get_mut(new.trailing_zeros() as usize) {
                        found.blocks += 1;
                        found.weighted += weight;
                    }
                    new &= new - 1;
                }
            }
        }
        running.clone_from_slice(held);
    }
}
