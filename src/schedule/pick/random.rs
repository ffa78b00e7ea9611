//! `random-picker`: any candidates, whatever their totals.

use std::num::NonZeroUsize;

use rand::{Rng, RngExt};

use super::Picks;
use crate::endpoints::View;
use crate::schedule::{Context, Picker};

/// Takes candidates at random, each at most once, every choice equally likely.
#[derive(Clone, Copy, Debug)]
pub struct RandomPicker {
    count: NonZeroUsize,
}

impl RandomPicker {
    /// Takes up to `count` candidates.
    pub fn new(count: NonZeroUsize) -> Self {
        Self { count }
    }
}

impl Picker for RandomPicker {
    fn pick(
        &self,
        _cx: &Context<'_>,
        candidates: View<'_>,
        _totals: &[f64],
        rng: &mut dyn Rng,
        picks: &mut Picks,
    ) {
        let count = self.count.get().min(candidates.len());
        if count == 1 {
            picks.push(rng.random_range(0..candidates.len()) as u32);
            return;
        }
        // The first steps of a Fisher-Yates shuffle.
        picks.order.clear();
        picks.order.extend((0u32..).take(candidates.len()));
        for place in 0..count {
            let chosen = rng.random_range(place..picks.order.len());
            picks.order.swap(place, chosen);
        }
        let Picks { positions, order, .. } = picks;
        positions.extend_from_slice(&order[..count]);
    }
}
