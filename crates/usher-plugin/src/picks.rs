//! The result of a picker.

use rand::{Rng, RngExt};
use smallvec::SmallVec;

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
pub struct Ranked {
    /// Total that it is ranked by, the highest first.
    pub total: f64,
    /// Random, so that equals come in random order.
    pub lot: u64,
    /// Position in the view.
    pub position: u32,
}

impl Picks {
    /// Adds the next best candidate.
    #[inline]
    pub fn push(&mut self, position: u32) {
        self.positions.push(position);
    }

    /// Positions of the picked candidates, best first.
    #[inline]
    pub fn positions(&self) -> &[u32] {
        &self.positions
    }

    /// Adds the best `count` of some candidates: selects them in linear time and sorts
    /// only those.
    pub fn take_best(&mut self, count: usize, candidates: impl Iterator<Item = Ranked>) {
        let Self { positions, ranking, .. } = self;
        ranking.clear();
        ranking.extend(candidates);
        let first = |a: &Ranked, b: &Ranked| b.total.total_cmp(&a.total).then(a.lot.cmp(&b.lot));
        if count < ranking.len() {
            ranking.select_nth_unstable_by(count, first);
            ranking.truncate(count);
        }
        ranking.sort_unstable_by(first);
        positions.extend(ranking.iter().map(|ranked| ranked.position));
    }

    /// Adds `count` of the positions below `candidates`, every choice and order equally likely.
    pub fn take_any(&mut self, count: usize, candidates: usize, rng: &mut dyn Rng) {
        let Self { positions, order, .. } = self;
        order.clear();
        order.extend((0u32..).take(candidates));
        let count = count.min(candidates);
        // The first steps of a Fisher-Yates shuffle.
        for place in 0..count {
            order.swap(place, rng.random_range(place..candidates));
        }
        positions.extend_from_slice(&order[..count]);
    }

    /// Forgets what was picked, and keeps the room for it.
    #[inline]
    pub fn clear(&mut self) {
        self.positions.clear();
    }
}
