//! `weighted-random-picker`: the higher a total, the likelier the pick.

use std::num::NonZeroUsize;

use rand::{Rng, RngExt};
use usher_core::config::ConfigError;
use usher_core::endpoints::View;
use usher_plugin::{
    Build, BuildContext, Context, Kind, Picker, Picks, PluginParts, PluginType, Ranked, beta,
};

use super::PickerParams;

/// `weighted-random-picker` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("weighted-random-picker", &[Kind::Picker],
    "Picks at random, endpoints with a higher total more often in proportion.",
    Build::Reading(build)).takes::<PickerParams>()
    .when("To spread requests over all good endpoints instead of sending them all to the best.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    super::build(cx, WeightedRandomPicker::new, &TYPE)
}

/// Takes candidates at random, each at most once: of those that are left, each with a
/// probability in proportion to its total. Totals of 0 and below come last, in random
/// order.
///
/// Algorithm A-Res of Efraimidis and Spirakis, "Weighted random sampling with a
/// reservoir" (2006): the largest `U^(1/total)` for a random `U` per candidate. The
/// logarithms are compared, as small totals would make the powers all 0.
#[derive(Clone, Copy, Debug)]
pub struct WeightedRandomPicker {
    count: NonZeroUsize,
}

impl WeightedRandomPicker {
    /// Takes up to `count` candidates.
    pub fn new(count: NonZeroUsize) -> Self {
        Self { count }
    }
}

impl Picker for WeightedRandomPicker {
    fn pick(
        &self,
        _cx: &Context<'_>,
        _candidates: View<'_>,
        totals: &[f64],
        rng: &mut dyn Rng,
        picks: &mut Picks,
    ) {
        let ranked = (0u32..).zip(totals).map(|(position, &total)| {
            // In (0, 1], as 0 has no logarithm.
            let drawn = 1.0 - rng.random::<f64>();
            let key = if total > 0.0 { drawn.ln() / total } else { f64::NEG_INFINITY };
            Ranked { total: key, lot: rng.next_u64(), position }
        });
        picks.take_best(self.count.get(), ranked);
    }
}
