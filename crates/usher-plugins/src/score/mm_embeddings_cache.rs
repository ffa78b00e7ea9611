//! `mm-embeddings-cache-scorer`: the more of a request's images, videos and clips an
//! endpoint has encoded already, the better.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::View;
use usher_plugin::data::EncoderCacheMatch;
use usher_plugin::params::or_default;
use usher_plugin::{Build, BuildContext, Context, Key, Kind, PluginParts, PluginType, Scorer, beta};

/// `mm-embeddings-cache-scorer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("mm-embeddings-cache-scorer", &[Kind::Scorer],
    "The more of a request's images, videos and clips an endpoint has encoded already, the better.",
    Build::Reading(build)).takes::<MmEmbeddingsCacheParams>()
    .when("Images, videos or clips that come again, as in a conversation about them.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = MmEmbeddingsCacheParams::decode(cx.parameters)?;
    let scorer = Arc::new(MmEmbeddingsCacheScorer::new(cx.reads(&params.producer_name)));
    Ok(PluginParts { scorer: Some(scorer), ..PluginParts::with(&params)? })
}

/// Parameters of `mm-embeddings-cache-scorer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MmEmbeddingsCacheParams {
    /// The producer that knows what is encoded.
    pub producer_name: String,
}

const PRODUCER: &str = "mm-embeddings-cache-producer";

impl Default for MmEmbeddingsCacheParams {
    fn default() -> Self {
        Self { producer_name: PRODUCER.to_owned() }
    }
}

impl MmEmbeddingsCacheParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys and wrong types.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let mut params: Self = node.decode()?;
        or_default(&mut params.producer_name, PRODUCER);
        Ok(params)
    }
}

/// Scores the share of the request's items that an endpoint has; 0 without any.
#[derive(Clone, Copy, Debug)]
pub struct MmEmbeddingsCacheScorer {
    items: Key<EncoderCacheMatch>,
}

impl MmEmbeddingsCacheScorer {
    /// A scorer by the match under `items`.
    pub fn new(items: Key<EncoderCacheMatch>) -> Self {
        Self { items }
    }
}

impl Scorer for MmEmbeddingsCacheScorer {
    fn score(&self, cx: &Context<'_>, candidates: View<'_>, out: &mut [f32]) {
        let Some(known) = cx.facts.get(self.items).filter(|known| !known.items.is_empty()) else { return };
        let all = known.items.len() as f32;
        for (score, position) in out.iter_mut().zip(candidates.indices()) {
            *score = known.items_at(*position) as f32 / all;
        }
    }
}
