//! How much of a prompt each candidate holds.

use std::cell::RefCell;

use crate::endpoints::View;
use crate::prefix::Blocks;

use super::key::Key;
use super::shards::Tables;

thread_local! {
    /// Kept between look-ups, so that they need no memory; as large as the pool has slots.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

#[derive(Debug, Default)]
struct Scratch {
    /// The candidates' slots, as a bit map.
    candidates: Vec<u64>,
    /// Those that hold all blocks so far.
    running: Vec<u64>,
    /// Those that hold the next one.
    held: Vec<u64>,
    /// Blocks that each candidate holds, by its slot.
    counts: Vec<u32>,
}

/// Does what [`PrefixIndex::find`](super::PrefixIndex::find) says.
pub(super) fn find(tables: &Tables, blocks: &Blocks, candidates: View<'_>, matched: &mut Vec<u32>) {
    let slots = candidates.snapshot().slots();
    matched.clear();
    matched.resize(slots.len(), 0);
    if candidates.is_empty() || blocks.is_empty() {
        return;
    }
    SCRATCH.with_borrow_mut(|scratch| {
        let candidates = || candidates.indices().iter().map(|&position| position as usize);
        let slot_of = |position: usize| slots.get(position).map(|slot| *slot as usize);
        scratch.start(candidates().filter_map(slot_of));
        for prompt in blocks.prompts() {
            scratch.prompt(tables, prompt);
        }
        for position in candidates() {
            let count = slot_of(position).and_then(|slot| scratch.counts.get(slot));
            if let (Some(matched), Some(count)) = (matched.get_mut(position), count) {
                *matched = *count;
            }
        }
    });
}

impl Scratch {
    /// Forgets the last look-up, and takes the slots of the candidates of this one.
    fn start(&mut self, slots: impl Iterator<Item = usize> + Clone) {
        let in_index = slots.filter(|slot| *slot < usize::from(super::MAX_SLOTS));
        let Some(most) = in_index.clone().max() else { return self.candidates.clear() };
        let words = most / 64 + 1;
        self.candidates.clear();
        self.candidates.resize(words, 0);
        self.held.resize(words, 0);
        self.counts.clear();
        self.counts.resize(words * 64, 0);
        in_index.for_each(|slot| self.candidates[slot / 64] |= 1 << (slot % 64));
    }

    /// Adds the blocks of a prompt to the counts of those that hold them.
    fn prompt(&mut self, tables: &Tables, prompt: &[u64]) {
        let Self { candidates, running, held, counts } = self;
        running.clone_from(candidates);
        // Words of `running` that are not 0.
        let (mut first, mut end) = (0, running.len());
        for (before, &hash) in (0u32..).zip(prompt) {
            let key = Key::of(hash);
            let held = &mut held[first..end];
            let Some(table) = tables.get(key.shard()) else { return };
            if !table.held(key.tag(), first, held) {
                held.fill(0);
            }
            let mut left = false;
            let counts = counts.chunks_exact_mut(64).skip(first);
            for ((running, held), counts) in running[first..end].iter_mut().zip(held).zip(counts) {
                let lost = *running & !*held;
                if lost != 0 {
                    *running &= *held;
                    count(lost, before, counts);
                    left = true;
                }
            }
            if left {
                let some = |word: &u64| *word != 0;
                let Some(from) = running[first..end].iter().position(some) else { return };
                first += from;
                end = running[..end].iter().rposition(some).map_or(first, |last| last + 1);
            }
        }
        let counts = counts.chunks_exact_mut(64);
        running.iter().zip(counts).for_each(|(running, counts)| count(*running, prompt.len() as u32, counts));
    }
}

/// Adds to the counts of those whose bits are set.
fn count(mut slots: u64, blocks: u32, counts: &mut [u32]) {
    while slots != 0 {
        if let Some(count) = counts.get_mut(slots.trailing_zeros() as usize) {
            *count += blocks;
        }
        slots &= slots - 1;
    }
}
