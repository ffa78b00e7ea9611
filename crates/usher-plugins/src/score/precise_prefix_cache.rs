//! `precise-prefix-cache-scorer`: the older form of a prefix cache scorer with a producer that knows what engines hold.

use std::sync::Arc;

use usher_core::config::ConfigError;
use usher_plugin::{Build, BuildContext, Kind, PluginParts, PluginType, beta};

use crate::produce::precise_prefix;
use crate::produce::precise_prefix::PrecisePrefixParams;

use super::prefix_cache::{PrefixCacheScorer, PrefixCacheScorerParams};

/// `precise-prefix-cache-scorer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("precise-prefix-cache-scorer", &[Kind::Scorer, Kind::DataProducer, Kind::PreRequest, Kind::Extractor],
    "The more of a prompt an endpoint has in its KV cache by its engine's events, the better: all of it scores 1.",
    Build::Reading(build)).takes::<PrecisePrefixParams>().instead("precise-prefix-cache-producer")
    .when("Not in new configurations: prefix-cache-scorer reads what precise-prefix-cache-producer says.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let producer = precise_prefix::TYPE.name;
    let params = PrefixCacheScorerParams::default();
    // A producer that is declared before it is the one with the parameters.
    if cx.is_built(producer) && cx.parameters.entries().is_empty() {
        let scorer = PrefixCacheScorer::new(&params, cx.reads(producer));
        let parts = PluginParts::bare().with_summary(format!("Scores by what {producer} says."));
        return Ok(PluginParts { scorer: Some(Arc::new(scorer)), ..parts });
    }
    let (parts, prefix) = precise_prefix::build_as(cx, TYPE.name)?;
    Ok(precise_prefix::with_scorer(parts, Arc::new(PrefixCacheScorer::new(&params, prefix))))
}
