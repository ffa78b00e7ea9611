//! `random-picker`: any candidates, whatever their totals.

use std::num::NonZeroUsize;

use rand::{Rng, RngExt};
use usher_core::config::ConfigError;
use usher_core::endpoints::View;
use usher_plugin::{Build, BuildContext, Context, Kind, Picker, Picks, PluginParts, PluginType, beta};

use super::PickerParams;

/// `random-picker` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("random-picker", &[Kind::Picker],
    "Picks any endpoints that the filters left, whatever their totals.",
    Build::Reading(build)).takes::<PickerParams>()
    .when("To compare with, or when filters alone decide.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    super::build(cx, RandomPicker::new, &TYPE)
}

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
        } else {
            picks.take_any(count, candidates.len(), rng);
        }
    }
}
