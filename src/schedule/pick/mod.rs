//! Pickers, one file per kind.

mod max_score;
mod random;
mod weighted_random;

use smallvec::SmallVec;

pub use max_score::MaxScorePicker;
pub use random::RandomPicker;
pub use weighted_random::WeightedRandomPicker;

/// The chosen candidates, as positions in the view that the picker was given,
/// best first; and room for a picker to sort in.
#[derive(Debug, Default)]
pub struct Picks {
    positions: SmallVec<[u32; 2]>,
    ranking: Vec<Ranked>,
    order: Vec<u32>,
}

/// A candidate on its way through a picker.
#[derive(Clone, Copy, Debug)]
struct Ranked {
    total: f64,
    /// Random, so that equals come in random order.
    lot: u64,
    position: u32,
}

impl Picks {
    /// Adds the next best candidate.
    pub fn push(&mut self, position: u32) {
        self.positions.push(position);
    }

    /// What was picked, best first.
    pub fn positions(&self) -> &[u32] {
        &self.positions
    }

    /// Takes the best `count` of the ranking: selects them in linear time and sorts
    /// only those.
    fn take_best(&mut self, count: usize) {
        let Self { positions, ranking, .. } = self;
        let first = |a: &Ranked, b: &Ranked| b.total.total_cmp(&a.total).then(a.lot.cmp(&b.lot));
        if count < ranking.len() {
            ranking.select_nth_unstable_by(count, first);
            ranking.truncate(count);
        }
        ranking.sort_unstable_by(first);
        positions.extend(ranking.iter().map(|ranked| ranked.position));
    }

    pub(super) fn clear(&mut self) {
        self.positions.clear();
    }
}
