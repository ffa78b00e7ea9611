//! Shares of indexes of prefixes in the memory that is theirs.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::Budget;

/// Share of an index in what all may take together, by its weight, until this is dropped.
#[derive(Debug)]
pub struct IndexShare {
    budget: Arc<Budget>,
    weight: u64,
}

impl IndexShare {
    /// A share beside those that there are, which become smaller.
    pub fn new(budget: &Arc<Budget>, weight: u32) -> Self {
        let weight = u64::from(weight);
        budget.index_weights.fetch_add(weight, Relaxed);
        Self { budget: Arc::clone(budget), weight }
    }

    /// Bytes that the index may take.
    pub fn bytes(&self) -> u64 {
        let all = u128::from(self.budget.index_weights.load(Relaxed).max(1));
        let share = u128::from(self.budget.prefix_index()) * u128::from(self.weight) / all;
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    /// Returns `true` if the index may grow, which has about so many bytes.
    pub fn may_grow(&self, bytes: u64) -> bool {
        let is_alone = self.budget.index_weights.load(Relaxed) == self.weight;
        self.budget.has_room_for_prefixes() && (is_alone || bytes < self.bytes())
    }

    /// The budget.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }
}

impl Drop for IndexShare {
    fn drop(&mut self) {
        self.budget.index_weights.fetch_sub(self.weight, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use crate::memory::{Kind, Reservation};

    use super::*;

    #[test]
    fn indexes_share_their_memory_by_weight() {
        let budget = Arc::new(Budget::new(u64::MAX, 1000));
        let one = IndexShare::new(&budget, 1);
        assert_eq!(one.bytes(), 1000);
        assert!(one.may_grow(5000), "what is counted decides");
        let three = IndexShare::new(&budget, 3);
        assert_eq!((one.bytes(), three.bytes()), (250, 750));
        assert!(one.may_grow(249) && !one.may_grow(250) && three.may_grow(749));
        let mut held = Reservation::new(&budget, Kind::PrefixIndex);
        held.set(1000);
        assert!(!one.may_grow(0) && !three.may_grow(0));
        drop((one, held));
        assert!(three.bytes() == 1000 && three.may_grow(750));
    }
}
