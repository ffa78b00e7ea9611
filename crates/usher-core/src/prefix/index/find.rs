//! Finds how much of a prompt each candidate holds.

use std::cell::RefCell;

use crate::endpoints::View;
use crate::prefix::Blocks;

use super::key::Key;
use super::set::MAX_SLOTS;
use super::shards::Tables;

thread_local! {
    /// Kept between look-ups, so that they need no memory; as large as the pool has slots.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

#[derive(Debug, Default)]
struct Scratch {
    /// The candidates' slots, as a bit map.
    candidates: Vec<u64>,
    /// Slots of the candidates that hold all blocks so far, as a bit map.
    running: Vec<u64>,
    /// Slots that hold the next block, as a bit map.
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
        scratch.start(slots, candidates.indices());
        for prompt in blocks.prompts() {
            scratch.prompt(tables, prompt);
        }
        for &position in candidates.indices() {
            let at = position as usize;
            let count = slots.get(at).and_then(|slot| scratch.counts.get(*slot as usize));
            if let (Some(matched), Some(count)) = (matched.get_mut(at), count) {
                *matched = *count;
            }
        }
    });
}

/// Blocks that are looked up together. Each waits for memory twice, for its place and for
/// its set, and a processor waits for some ten things at a time.
const TOGETHER: usize = 16;

impl Scratch {
    /// Forgets the last look-up, and takes the candidates of this one, by their positions.
    fn start(&mut self, slots: &[u32], candidates: &[u32]) {
        self.candidates.clear();
        // The word under way is kept apart, as neighbours tend to be in the same one.
        let (mut at, mut word) = (0, 0);
        for &position in candidates {
            let Some(&slot) = slots.get(position as usize) else { continue };
            if slot >= u32::from(MAX_SLOTS) {
                continue;
            }
            if slot as usize / 64 != at {
                self.put(at, word);
                (at, word) = (slot as usize / 64, 0);
            }
            word |= 1 << (slot % 64);
        }
        self.put(at, word);
        self.held.resize(self.candidates.len(), 0);
        self.counts.clear();
        self.counts.resize(self.candidates.len() * 64, 0);
    }

    fn put(&mut self, at: usize, word: u64) {
        if at >= self.candidates.len() {
            self.candidates.resize(at + 1, 0);
        }
        self.candidates[at] |= word;
    }

    /// Adds the blocks of a prompt to the counts of those that hold them.
    fn prompt(&mut self, tables: &Tables, prompt: &[u64]) {
        let Self { candidates, running, held, counts } = self;
        let Some(nowhere) = tables.first().map(|table| table.look_up(Key::of(0).tag())) else { return };
        let mut look_ups = [nowhere; TOGETHER];
        running.clone_from(candidates);
        let mut before = 0;
        // Words of `running` that are not 0.
        let mut range = 0..running.len();
        for together in prompt.chunks(TOGETHER) {
            for (look_up, &hash) in look_ups.iter_mut().zip(together) {
                let key = Key::of(hash);
                *look_up = tables.get(key.shard()).map_or(nowhere, |table| table.look_up(key.tag()));
            }
            let look_ups = &mut look_ups[..together.len()];
            std::hint::black_box(look_ups.iter_mut().fold(0, |read, look_up| read ^ look_up.find()));
            for look_up in look_ups {
                if !look_up.held_by_all(&running[range.clone()], range.start) {
                    look_up.held(range.start, &mut held[range.clone()]);
                    for at in range.clone() {
                        let lost = running[at] & !held[at];
                        running[at] &= held[at];
                        // Nothing to add for those that lack the first block: most.
                        if before > 0 {
                            count(lost, before, &mut counts[at * 64..]);
                        }
                    }
                    let some = |word: &u64| *word != 0;
                    let Some(first) = running.iter().position(some) else { return };
                    range = first..running.iter().rposition(some).map_or(first, |last| last + 1);
                }
                before += 1;
            }
        }
        for (running, counts) in running.iter().zip(counts.chunks_exact_mut(64)) {
            count(*running, before, counts);
        }
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
