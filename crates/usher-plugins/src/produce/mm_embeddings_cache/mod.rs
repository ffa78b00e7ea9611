//! `mm-embeddings-cache-producer`: which images, videos and clips each endpoint has encoded.
//! Learns from its own decisions: media are encoded where they are sent.

mod caches;
mod metrics;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::{Candidates, Endpoint};
use usher_core::request::estimate::{self, Medium};
use usher_plugin::data::EncoderCacheMatch;
use usher_plugin::params::refused;
use usher_plugin::{
    Build, BuildContext, Context, DataProducer, Decision, Effects, Facts, Key, Kind, PluginParts, PluginType,
    PreRequest, RequestContext, ResponseObserver, beta,
};

pub use caches::EncoderCaches;
pub use metrics::EncoderFamilies;

/// `mm-embeddings-cache-producer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("mm-embeddings-cache-producer", &[Kind::DataProducer, Kind::PreRequest],
    "Remembers which images, videos and clips each endpoint has encoded.",
    Build::Reading(build)).takes::<MmEmbeddingsCacheProducerParams>()
    .when("Added by itself for mm-embeddings-cache-scorer; declare it for encoder caches of another size.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = MmEmbeddingsCacheProducerParams::decode(cx.parameters)?;
    let families = cx.family(EncoderFamilies::register)?;
    let caches = cx.state.of(cx.name, || EncoderCaches::new(families, cx.name));
    let plugin = Arc::new(MmEmbeddingsCacheProducer::new(&params, caches, cx.produces()));
    let parts = PluginParts::with(&params)?;
    Ok(PluginParts { producer: Some(Arc::clone(&plugin) as _), pre_request: Some(plugin), ..parts })
}

/// Size of an encoded item in a server's cache, in MB.
const MB_PER_ITEM: i64 = 2;

/// Items of a request that are looked at. Models take some hundreds at most, and what a
/// request records is recorded while others wait.
const MAX_ITEMS: usize = 1024;

/// Parameters of `mm-embeddings-cache-producer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MmEmbeddingsCacheProducerParams {
    /// Size of an endpoint's encoder cache; an item takes 2.
    #[serde(rename = "cacheSizeInMBPerServer")]
    #[schemars(extend("x-unit" = "MB"))]
    pub cache_size_mb: i64,
}

impl Default for MmEmbeddingsCacheProducerParams {
    fn default() -> Self {
        Self { cache_size_mb: 4096 }
    }
}

impl MmEmbeddingsCacheProducerParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys, wrong types, and a size without room for an item.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let params: Self = node.decode()?;
        if params.cache_size_mb < MB_PER_ITEM {
            return Err(refused(node, "cacheSizeInMBPerServer", params.cache_size_mb)
                .hint(format!("an item takes {MB_PER_ITEM}; the default is 4096")));
        }
        Ok(params)
    }
}

/// Estimates how many of a request's items each endpoint has, and records them at the first
/// endpoint of every profile once that is decided.
#[derive(Clone, Debug)]
pub struct MmEmbeddingsCacheProducer {
    /// Items that an endpoint's cache holds.
    capacity: usize,
    caches: Arc<EncoderCaches>,
    items: Key<EncoderCacheMatch>,
}

impl MmEmbeddingsCacheProducer {
    /// A producer that keeps what it knows in `caches`.
    pub fn new(
        params: &MmEmbeddingsCacheProducerParams,
        caches: Arc<EncoderCaches>,
        items: Key<EncoderCacheMatch>,
    ) -> Self {
        let capacity = usize::try_from(params.cache_size_mb / MB_PER_ITEM).unwrap_or(usize::MAX);
        Self { capacity, caches, items }
    }
}

impl DataProducer for MmEmbeddingsCacheProducer {
    fn produce(&self, cx: &RequestContext<'_>, candidates: &Candidates, facts: &mut Facts) {
        let mut media: Vec<Medium> = estimate::media(cx.request).take(MAX_ITEMS).collect();
        if media.is_empty() {
            return;
        }
        media.sort_unstable_by_key(|medium| medium.hash);
        media.dedup_by_key(|medium| medium.hash);
        let matched = self.caches.find(&media, candidates);
        let items = media.iter().map(|medium| medium.hash).collect();
        facts.set(self.items, EncoderCacheMatch { items, matched });
    }
}

impl PreRequest for MmEmbeddingsCacheProducer {
    fn decided(&self, cx: &Context<'_>, decision: &Decision, effects: &mut Effects) {
        let Some(known) = cx.facts.get(self.items) else { return };
        for run in decision.runs() {
            if let Some(endpoint) = decision.endpoints_of(run).next() {
                self.caches.record(endpoint, &known.items, self.capacity);
            }
        }
        let caches = Arc::clone(&self.caches);
        effects.observe(Encoded { caches, items: known.items.clone(), capacity: self.capacity });
    }
}

/// The items of a request under way.
struct Encoded {
    caches: Arc<EncoderCaches>,
    items: Vec<u64>,
    capacity: usize,
}

impl ResponseObserver for Encoded {
    fn rerouted(&mut self, to: &Arc<Endpoint>) {
        self.caches.record(to, &self.items, self.capacity);
    }
}
