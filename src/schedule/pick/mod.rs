//! Pickers, one file per kind.

mod max_score;
mod random;

use smallvec::SmallVec;

pub use max_score::MaxScorePicker;
pub use random::RandomPicker;

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

    pub(super) fn clear(&mut self) {
        self.positions.clear();
    }
}
