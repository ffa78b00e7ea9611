//! `mm-embeddings-cache-scorer`: the more of a request's images, videos and clips an
//! endpoint has encoded already, the better.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::View;
use usher_plugin::data::EncoderCacheMatch;
use usher_plugin::{Build, Built, Context, Key, Kind, PluginType, Scorer, Site, beta, parameter};

/// `mm-embeddings-cache-scorer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("mm-embeddings-cache-scorer", &[Kind::Scorer],
    "The more of a request's images, videos and clips an endpoint has encoded already, the better.",
    &[parameter("producerName", "mm-embeddings-cache-producer", "", "The producer that knows what is encoded.")],
    Build::Reading(build))
    .when("Images, videos or clips that come again, as in a conversation about them.");

fn build(site: &mut Site<'_>) -> Result<Built, ConfigError> {
    let params = MmEmbeddingsCacheParams::decode(site.parameters)?;
    let scorer = Arc::new(MmEmbeddingsCacheScorer::new(site.reads(&params.producer_name)));
    Ok(Built { scorer: Some(scorer), ..Built::with(&params)? })
}

/// Parameters of `mm-embeddings-cache-scorer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MmEmbeddingsCacheParams {
    /// The producer that knows what is encoded. Default `mm-embeddings-cache-producer`.
    pub producer_name: String,
}

impl MmEmbeddingsCacheParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// Unknown keys and wrong types, with their place.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Written {
            producer_name: Option<String>,
        }
        let Written { producer_name } = node.decode()?;
        let name = producer_name.filter(|name| !name.is_empty());
        Ok(Self { producer_name: name.unwrap_or_else(|| "mm-embeddings-cache-producer".to_owned()) })
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
