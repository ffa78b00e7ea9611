//! `precise-prefix-cache-scorer`: the older form of a prefix cache scorer with a producer that knows what engines hold.

use std::sync::Arc;

use usher_core::config::ConfigError;
use usher_plugin::params::PREFIX_PRODUCER;
use usher_plugin::{Build, BuildContext, Kind, PluginParts, PluginType, beta};

use crate::produce::precise_prefix;
use crate::produce::precise_prefix::PrecisePrefixParams;

use super::prefix_cache::{PrefixCacheScorer, PrefixCacheScorerParams};

/// `precise-prefix-cache-scorer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("precise-prefix-cache-scorer", &[Kind::Scorer, Kind::DataProducer, Kind::PreRequest, Kind::Extractor],
    "The more of a prompt an endpoint has in its KV cache by its engine's events, the better: all of it scores 1.",
    Build::Reading(build)).takes::<PrecisePrefixParams>().instead("precise-prefix-cache-producer")
    .behind(&[precise_prefix::TYPE.name, PREFIX_PRODUCER])
    .when("Not in new configurations: prefix-cache-scorer reads what precise-prefix-cache-producer says.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = PrefixCacheScorerParams::default();
    let producers: Vec<&str> = cx.built(precise_prefix::TYPE.name).collect();
    // A producer that is declared beside it is the one with the parameters: the only one, or the one with no other name.
    let producer = match &producers[..] {
        [producer] => Some(*producer),
        several => several.iter().copied().find(|name| *name == precise_prefix::TYPE.name),
    };
    let is_bare = cx.parameters.entries().is_empty();
    let note = (is_bare && producers.len() > 1).then(|| chosen(cx.name, producer, &producers));
    let notes: Vec<String> = note.into_iter().collect();
    if let Some(producer) = producer.filter(|_| is_bare) {
        let scorer = PrefixCacheScorer::new(&params, cx.reads(producer));
        let parts = PluginParts::bare().with_summary(format!("Scores by what {producer} says."));
        return Ok(PluginParts { scorer: Some(Arc::new(scorer)), notes, ..parts });
    }
    let (parts, prefix) = precise_prefix::build_as(cx, TYPE.name)?;
    let parts = precise_prefix::with_scorer(parts, Arc::new(PrefixCacheScorer::new(&params, prefix)));
    Ok(PluginParts { notes, ..parts })
}

/// Note on the producer, of several, that a scorer without parameters reads.
fn chosen(name: &str, producer: Option<&str>, producers: &[&str]) -> String {
    let several = producers.join("', '");
    let scores = match producer {
        Some(producer) => format!("'{name}' scores by '{producer}', which has the name of its type"),
        None => format!("'{name}' scores by none of them and follows KV events by itself, with the defaults"),
    };
    format!(
        "there are several producers, '{several}': {scores}; a prefix-cache-scorer with prefixMatchInfoProducerName names its own"
    )
}
