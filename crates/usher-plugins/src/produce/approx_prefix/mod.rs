//! `approx-prefix-cache-producer`: what of a prompt each endpoint has in its prefix cache.
//! Learns from its own decisions: a prompt is cached where it is sent, until others take the room. The room
//! is learned from responses that report cached tokens.

mod caches;
mod capacity;
mod metrics;
mod params;

use std::num::NonZeroU32;
use std::sync::Arc;

use usher_core::config::ConfigError;
use usher_core::endpoints::{Candidates, Endpoint, Gauge};
use usher_core::prefix::Blocks;
use usher_core::request::usage::Usage;
use usher_plugin::data::{PrefixMatch, PromptBlocks};
use usher_plugin::{
    Attribute, Build, BuildContext, Context, DataProducer, Decision, Effects, Facts, Header, Key, Kind,
    PluginParts, PluginType, PreRequest, RequestContext, ResponseHead, ResponseObserver, beta,
};

use caches::KeptBlocks;
pub use caches::PrefixCaches;
use capacity::Forecast;
use metrics::Hits;
pub use metrics::PrefixFamilies;
pub use params::ApproxPrefixParams;

/// `approx-prefix-cache-producer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("approx-prefix-cache-producer", &[Kind::DataProducer, Kind::PreRequest],
    "Estimates how much of a prompt each endpoint has in its prefix cache, from the prompts sent to it.",
    Build::Reading(approx_prefix)).takes::<ApproxPrefixParams>()
    .when("Added by itself where a plugin reads what is cached; declare it for endpoints that don't report their cache's size, or for longer prompts.");

/// `multicluster-approx-prefix-cache-producer` in a configuration.
#[rustfmt::skip]
pub static MULTICLUSTER: PluginType = beta("multicluster-approx-prefix-cache-producer", &[Kind::DataProducer, Kind::PreRequest],
    "approx-prefix-cache-producer for endpoints that are clusters.",
    Build::Reading(multicluster_approx_prefix)).takes::<ApproxPrefixParams>().alpha()
    .when("A picker that chooses among clusters.");

fn approx_prefix(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    approx_prefix_of(cx, "approx-prefix-cache-producer")
}

fn multicluster_approx_prefix(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    approx_prefix_of(cx, "multicluster-approx-prefix-cache-producer")
}

fn approx_prefix_of(cx: &mut BuildContext<'_>, plugin_type: &str) -> Result<PluginParts, ConfigError> {
    let params = ApproxPrefixParams::decode(cx.parameters)?;
    let families = cx.family(PrefixFamilies::register)?;
    let fingerprint = params.fingerprint((plugin_type, cx.name));
    let caches = PrefixCaches::of(cx.state, cx.name, fingerprint).map_err(|error| {
        ConfigError::at(cx.at, format!("no thread can be started that fills its index: {error}")).temporary()
    })?;
    let keys = ApproxPrefixKeys { prefix: cx.produces(), blocks: cx.produces() };
    let names = (cx.name, plugin_type);
    let plugin = Arc::new(ApproxPrefixProducer::new(params, keys, caches, &families, names));
    let parts = PluginParts::with(&params)?;
    Ok(PluginParts { producer: Some(Arc::clone(&plugin) as _), pre_request: Some(plugin), ..parts })
}

/// Keys of what a producer found.
#[derive(Clone, Copy, Debug)]
pub struct ApproxPrefixKeys {
    /// Part of the prompt that each candidate holds.
    pub prefix: Key<PrefixMatch>,
    /// Blocks of the prompt, with which the caches are asked.
    pub blocks: Key<PromptBlocks>,
}

/// Estimates how many leading blocks of a prompt each candidate holds, and indexes them for the
/// endpoints that get the prompt: the first choices of the primary and the prefill profile, and
/// the endpoint that served instead.
#[derive(Debug)]
pub struct ApproxPrefixProducer {
    keys: ApproxPrefixKeys,
    learner: Arc<Learner>,
}

impl ApproxPrefixProducer {
    /// A producer of this name and type that keeps what it knows in `caches`.
    pub fn new(
        params: ApproxPrefixParams,
        keys: ApproxPrefixKeys,
        caches: Arc<PrefixCaches>,
        families: &PrefixFamilies,
        (name, plugin_type): (&str, &str),
    ) -> Self {
        caches.joined();
        families.show(name, plugin_type, &caches);
        let hits = families.hits(name, plugin_type);
        Self { keys, learner: Arc::new(Learner { params, caches, hits }) }
    }
}

impl Drop for ApproxPrefixProducer {
    fn drop(&mut self) {
        self.learner.caches.left();
    }
}

impl DataProducer for ApproxPrefixProducer {
    fn produce(&self, cx: &RequestContext<'_>, candidates: &Candidates, facts: &mut Facts) {
        let Learner { params, caches, .. } = &*self.learner;
        // As in llm-d-router the first candidate stands for all: blocks of several sizes
        // could not be compared.
        let first = candidates.view().iter().next();
        let block = params.block(first.and_then(|endpoint| reported(&endpoint.load().block_size)));
        let blocks = Blocks::of(cx.request, block, params.max_blocks(block));
        if blocks.is_empty() {
            return;
        }
        let mut matched = Vec::new();
        caches.index().find(&blocks, candidates.view(), &mut matched);
        let total = u32::try_from(blocks.len()).unwrap_or(u32::MAX);
        facts.set(self.keys.prefix, PrefixMatch { total, block_size: block.get(), matched });
        facts.set(self.keys.blocks, PromptBlocks(Arc::new(blocks)));
    }
}

impl PreRequest for ApproxPrefixProducer {
    fn decided(&self, cx: &Context<'_>, decision: &Decision, effects: &mut Effects) {
        let Some(PromptBlocks(blocks)) = cx.facts.get(self.keys.blocks) else { return };
        let Some(known) = cx.facts.get(self.keys.prefix) else { return };
        let block = NonZeroU32::new(known.block_size).unwrap_or(NonZeroU32::MIN);
        let primary = decision.primary();
        let prefill = decision.prefill().filter(|run| !std::ptr::eq(*run, primary));
        let mut forecast = None;
        if let Some(first) = primary.picks.first() {
            let matched = known.blocks_at(*first);
            self.learner.hits.request(known, matched);
            // KV that comes from another endpoint may count as cached or not.
            let computes = decision.endpoints_of(primary).next().filter(|_| prefill.is_none());
            forecast = computes.and_then(|endpoint| {
                let capacities = self.learner.caches.capacities();
                capacities.forecast(endpoint, cx.request.api, blocks, (matched, block.get()))
            });
        }
        for run in [Some(primary), prefill].into_iter().flatten() {
            if let Some(endpoint) = decision.endpoints_of(run).next() {
                self.learner.learn(endpoint, blocks, block);
            }
        }
        let Some(endpoint) = decision.endpoints_of(primary).next() else { return };
        effects.observe(Sent {
            learner: Arc::clone(&self.learner),
            endpoint: Arc::clone(endpoint),
            blocks: Some(Arc::clone(blocks)),
            kept: None,
            block,
            forecast,
        });
    }
}

/// State with which a producer and the requests that it follows learn.
#[derive(Debug)]
struct Learner {
    params: ApproxPrefixParams,
    caches: Arc<PrefixCaches>,
    hits: Hits,
}

impl Learner {
    fn learn(&self, endpoint: &Arc<Endpoint>, blocks: &Arc<Blocks>, block: NonZeroU32) {
        let load = endpoint.load();
        let capacity = self.params.capacity(reported(&load.num_blocks), reported(&load.block_size), block);
        let capacity = self.caches.capacities().effective(endpoint, capacity);
        self.caches.learn(endpoint, blocks, capacity);
    }
}

/// Last value that an endpoint reported; `None` unless it is above 0. The geometry of a cache
/// stays as it is, so age doesn't matter.
fn reported(gauge: &Gauge) -> Option<f64> {
    Some(gauge.last()).filter(|value| *value > 0.0)
}

/// A request in progress. If another endpoint than the first choice serves it, that one caches the
/// prompt, too. An engine holds a prompt's blocks while it responds, so the end of the response
/// counts as their last use.
struct Sent {
    learner: Arc<Learner>,
    /// Serving endpoint, or the first choice until it is known.
    endpoint: Arc<Endpoint>,
    /// Blocks of the prompt, until the serving endpoint is known.
    blocks: Option<Arc<Blocks>>,
    /// Blocks of the prompt after that, if there is memory for them.
    kept: Option<KeptBlocks>,
    block: NonZeroU32,
    /// Prediction of cached tokens, to compare with the response's usage; `None` if it can't be compared.
    forecast: Option<Forecast>,
}

impl ResponseObserver for Sent {
    fn rerouted(&mut self, to: &Arc<Endpoint>) {
        self.forecast = None;
        if let Some(blocks) = &self.blocks {
            self.learner.learn(to, blocks, self.block);
            self.endpoint = Arc::clone(to);
        }
    }

    fn response_headers(&mut self, _head: &ResponseHead<'_>, _out: &mut Vec<Header>) {
        self.kept = self.blocks.take().and_then(|blocks| self.learner.caches.keep(blocks));
    }

    fn first_token(&mut self) {
        if let Some(forecast) = &mut self.forecast {
            forecast.first_token();
        }
    }

    fn response_complete(&mut self, usage: &Usage, _out: &mut Vec<Attribute>) {
        let Learner { caches, hits, .. } = &*self.learner;
        let forecast = self.forecast.take();
        let compared = forecast.and_then(|forecast| caches.capacities().compare(&forecast, usage));
        if let Some(compared) = compared {
            hits.compared(compared);
        }
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        if let Some(kept) = &self.kept {
            self.learner.learn(&self.endpoint, kept.blocks(), self.block);
        }
    }
}
