//! `max-score-picker`: the candidates with the highest totals.

use std::cmp::Ordering;
use std::num::NonZeroUsize;

use rand::{Rng, RngExt};
use usher_core::config::ConfigError;
use usher_core::endpoints::View;
use usher_plugin::{
    Build, BuildContext, Context, Kind, Picker, Picks, PluginParts, PluginType, Ranked, beta,
};

use super::PickerParams;

/// `max-score-picker` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("max-score-picker", &[Kind::Picker],
    "Picks the endpoints with the highest totals; equals in random order.",
    Build::Reading(build)).takes::<PickerParams>()
    .when("The usual choice, and the default.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    super::build(cx, MaxScorePicker::new, &TYPE)
}

/// Takes the best totals. Among equal totals every order is equally likely.
#[derive(Clone, Copy, Debug)]
pub struct MaxScorePicker {
    count: NonZeroUsize,
}

impl MaxScorePicker {
    /// Takes up to `count` candidates.
    pub fn new(count: NonZeroUsize) -> Self {
        Self { count }
    }
}

impl Picker for MaxScorePicker {
    fn pick(
        &self,
        _cx: &Context<'_>,
        _candidates: View<'_>,
        totals: &[f64],
        rng: &mut dyn Rng,
        picks: &mut Picks,
    ) {
        if self.count.get() == 1 {
            if let Some(best) = best(totals, rng) {
                picks.push(best);
            }
        } else {
            best_many(totals, self.count.get(), rng, picks);
        }
    }
}

/// One pass: the n-th of equal totals replaces the one before it with
/// probability 1/n, which leaves each with the same chance.
fn best(totals: &[f64], rng: &mut dyn Rng) -> Option<u32> {
    let mut best: Option<(u32, f64)> = None;
    let mut equals = 1u32;
    for (position, &total) in (0u32..).zip(totals) {
        match best.map_or(Ordering::Greater, |(_, top)| total.total_cmp(&top)) {
            Ordering::Greater => {
                best = Some((position, total));
                equals = 1;
            }
            Ordering::Equal => {
                equals += 1;
                if rng.random_range(0..equals) == 0 {
                    best = Some((position, total));
                }
            }
            Ordering::Less => {}
        }
    }
    best.map(|(position, _)| position)
}

fn best_many(totals: &[f64], count: usize, rng: &mut dyn Rng, picks: &mut Picks) {
    let ranked =
        (0u32..).zip(totals).map(|(position, &total)| Ranked { total, lot: rng.next_u64(), position });
    picks.take_best(count, ranked);
}
