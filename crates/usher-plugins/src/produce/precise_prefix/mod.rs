//! `precise-prefix-cache-producer`: what of a prompt each endpoint has in its KV cache, by its engine's
//! events.
//!
//! Needs the tokens of prompts, from a `token-producer` that asks an engine for them or from requests that
//! have them. Without them, or for an endpoint whose engine was not heard or may hold more than its events
//! say, the match of `approx-prefix-cache-producer` counts.

mod agreement;
mod caches;
mod comparison;
mod keys;
mod lacking;
mod metrics;
mod params;

use std::sync::Arc;
use std::time::Duration;

use usher_core::config::ConfigError;
use usher_core::endpoints::{Candidates, Clock, Endpoint};
use usher_core::prefix::{EngineIndex, EngineStatus, TierWeights};
use usher_core::request::usage::Usage;
use usher_plugin::data::{KvEventsMatch, PrefixMatch, PromptBlocks, PromptTokenIds};
use usher_plugin::params::PREFIX_PRODUCER;
use usher_plugin::{
    Attribute, Build, BuildContext, Context, DataProducer, Decision, Effects, Facts, Key, Kind, PluginParts,
    PluginType, PreRequest, RequestContext, ResponseObserver, Scorer, beta,
};

use super::tokens::TokenSource;
pub use agreement::Agreement;
pub use caches::EngineCaches;
use comparison::{Comparison, are_alike};
use lacking::lacks_blocks;
use metrics::{PreciseCounts, PreciseFamilies};
use params::Settings;
pub use params::{KvEventsSettings, PrecisePrefixParams};

/// `precise-prefix-cache-producer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("precise-prefix-cache-producer", &[Kind::DataProducer, Kind::PreRequest, Kind::Extractor],
    "Reports how much of a prompt each endpoint has in its KV cache, from its engine's KV events.",
    Build::Reading(build)).takes::<PrecisePrefixParams>().behind(&[PREFIX_PRODUCER])
    .when("Engines that publish KV events, with a token-producer that has their tokens.");

/// Source of KV events that the host subscribes to.
#[derive(Clone, Debug)]
pub struct KvEventsSource {
    /// Name of the plugin.
    pub name: String,
    /// Sockets and forms.
    pub settings: KvEventsSettings,
    /// Caches that the events are applied to.
    pub caches: Arc<EngineCaches>,
    /// Model of engines that don't say theirs.
    pub tokens: TokenSource,
    counts: Arc<PreciseCounts>,
}

impl KvEventsSource {
    /// Tokens of prompts that engines held by their events, and that were cached, of responses that say it.
    pub fn tokens_counted(&self) -> (u64, u64) {
        (self.counts.predicted.get(), self.counts.cached.get())
    }
}

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let (parts, _) = build_as(cx, TYPE.name)?;
    Ok(parts)
}

/// Builds a producer under a plugin's name, whatever its type.
///
/// # Errors
/// `ConfigError` if the parameters are not valid.
pub(crate) fn build_as(
    cx: &mut BuildContext<'_>,
    plugin_type: &str,
) -> Result<(PluginParts, Key<PrefixMatch>), ConfigError> {
    let (params, settings) = PrecisePrefixParams::decode(cx.parameters)?;
    let budget = Arc::clone(cx.state.budget());
    let caches = cx.state.of(cx.name, || EngineCaches::new(&budget));
    let families = cx.family(PreciseFamilies::register)?;
    let counts = Arc::new(families.counts(cx.name, plugin_type));
    let tokens = cx.shared::<TokenSource>();
    let source = KvEventsSource {
        name: cx.name.to_owned(),
        settings: settings.events.clone(),
        caches: Arc::clone(&caches),
        tokens: tokens.clone(),
        counts: Arc::clone(&counts),
    };
    // So that it comes first, whoever it is in the end.
    let _: Key<PromptTokenIds> = cx.may_read("token-producer");
    let approximate = approximate(cx);
    let prefix = cx.produces();
    let plugin = Arc::new(PrecisePrefixProducer {
        prefix,
        blocks: cx.produces(),
        explained: cx.produces(),
        approximate,
        tokens,
        caches,
        weights: settings.weights,
        speculative: settings.speculative,
        clock: cx.state.clock().clone(),
        counts,
        settings,
    });
    let summary = PrecisePrefixParams::summary(&plugin.settings);
    let parts = PluginParts::with(&params)?.with_summary(summary).with_extra(source);
    let parts = PluginParts { producer: Some(Arc::clone(&plugin) as _), pre_request: Some(plugin), ..parts };
    Ok((parts, prefix))
}

/// Approximate match of the declared producer, of several that with its type's name; without any, one is added.
fn approximate(cx: &mut BuildContext<'_>) -> Key<PrefixMatch> {
    let producers: Vec<&str> = cx.built(PREFIX_PRODUCER).collect();
    let own = producers.iter().find(|name| **name == PREFIX_PRODUCER);
    let producer = own.or(producers.first()).copied().unwrap_or(PREFIX_PRODUCER);
    cx.reads(producer)
}

/// A scorer beside a producer, in one plugin.
pub(crate) fn with_scorer(parts: PluginParts, scorer: Arc<dyn Scorer>) -> PluginParts {
    PluginParts { scorer: Some(scorer), ..parts }
}

/// Finds how many of a prompt's first blocks each candidate's engine holds, each weighted by its tier.
#[derive(Debug)]
pub struct PrecisePrefixProducer {
    prefix: Key<PrefixMatch>,
    blocks: Key<PromptBlocks>,
    /// For the explanation of a decision.
    explained: Key<KvEventsMatch>,
    approximate: Key<PrefixMatch>,
    tokens: TokenSource,
    caches: Arc<EngineCaches>,
    weights: TierWeights,
    /// Time for which the blocks of a decision count before the engine publishes them.
    speculative: Option<Duration>,
    clock: Clock,
    counts: Arc<PreciseCounts>,
    settings: Settings,
}

impl DataProducer for PrecisePrefixProducer {
    fn produce(&self, cx: &RequestContext<'_>, candidates: &Candidates, facts: &mut Facts) {
        let block_tokens = self.settings.events.block_tokens;
        let block_size = u32::from(block_tokens.get());
        let index = self.caches.index();
        let statuses = statuses(index, candidates);
        let ids = self.tokens.ids().and_then(|key| facts.get(key));
        let Some(blocks) = keys::blocks(cx.request, ids, block_tokens) else {
            self.counts.approximate.inc();
            if let Some(approximate) = facts.get(self.approximate).cloned() {
                facts.set(self.prefix, approximate);
            }
            facts.set(self.explained, KvEventsMatch { block_size, blocks: None, statuses });
            return;
        };
        if blocks.is_empty() {
            facts.set(self.explained, KvEventsMatch { block_size, blocks: Some(Vec::new()), statuses });
            return;
        }
        let mut found = Vec::new();
        index.find(&blocks, candidates.view(), &self.weights, &mut found);
        self.counts.lookups.inc();
        self.counts.hits.inc_by(found.iter().map(|found| u64::from(found.blocks)).max().unwrap_or(0));
        // Whole blocks count; sums of weights are a little off.
        let mut matched: Vec<u32> = found.iter().map(|found| (found.weighted + 1e-6) as u32).collect();
        let total = u32::try_from(blocks.len()).unwrap_or(u32::MAX);
        let approximate = facts.get(self.approximate).filter(|known| known.total > 0);
        let mut speculative = Vec::new();
        let is_unknown = |position: &u32| matches!(statuses.get(*position as usize), Some(Some(status)) if !status.is_heard());
        if candidates.indices().iter().any(is_unknown) {
            index.find_speculative(&blocks, candidates.view(), &mut speculative);
        }
        let decided = |at: usize| speculative.get(at).map_or(0, |found| found.blocks);
        for &position in candidates.indices() {
            let at = position as usize;
            let (Some(Some(status)), Some(matched)) = (statuses.get(at), matched.get_mut(at)) else {
                continue;
            };
            let about = || {
                approximate.map_or(0, |known| {
                    let share = f64::from(known.blocks_at(position)) / f64::from(known.total);
                    (share * f64::from(total)) as u32
                })
            };
            *matched = match status {
                EngineStatus::Complete => *matched,
                EngineStatus::Partial => (*matched).max(about()),
                // What it published may be out of date, and what was decided is not.
                EngineStatus::Unknown => decided(at).max(about()),
                // Decisions don't know that all was lost, but for those since.
                EngineStatus::Restarted => decided(at),
            };
        }
        let held = found.iter().map(|found| found.blocks).collect();
        facts.set(self.explained, KvEventsMatch { block_size, blocks: Some(held), statuses });
        facts.set(self.prefix, PrefixMatch { total, block_size, matched });
        facts.set(self.blocks, PromptBlocks(Arc::new(blocks)));
    }
}

/// States of the knowledge about candidates' caches, by position in the snapshot.
fn statuses(index: &EngineIndex, candidates: &Candidates) -> Vec<Option<EngineStatus>> {
    let slots = candidates.snapshot().slots();
    let mut statuses = vec![None; slots.len()];
    for &position in candidates.indices() {
        let at = position as usize;
        if let (Some(status), Some(slot)) = (statuses.get_mut(at), slots.get(at)) {
            *status = Some(index.status(*slot));
        }
    }
    statuses
}

impl PreRequest for PrecisePrefixProducer {
    fn decided(&self, cx: &Context<'_>, decision: &Decision, effects: &mut Effects) {
        let Some(PromptBlocks(blocks)) = cx.facts.get(self.blocks) else { return };
        let primary = decision.primary();
        let prefill = decision.prefill().filter(|run| !std::ptr::eq(*run, primary));
        for run in [Some(primary), prefill].into_iter().flatten() {
            let Some(endpoint) = decision.endpoints_of(run).next() else { continue };
            let known = cx.facts.get(self.prefix).zip(run.picks.first());
            let held = known.map_or(0, |(known, pick)| known.blocks_at(*pick));
            let ours = u32::from(self.settings.events.block_tokens.get());
            // Where no further block gets full, the engine has nothing to publish.
            if lacks_blocks(blocks, held, ours, self.caches.block_tokens(endpoint).unwrap_or(ours)) {
                self.caches.served(endpoint);
            }
            if let Some(ttl) = self.speculative {
                let now_ms = self.clock.now_ms();
                let until_ms = now_ms.saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
                self.caches.index().speculate(endpoint, blocks, now_ms, until_ms);
            }
        }
        // KV that comes from another endpoint may count as cached or not, and usage doesn't distinguish prompts.
        let Some(pick) = primary.picks.first() else { return };
        if let Some(known) = cx.facts.get(self.prefix)
            && prefill.is_none()
            && blocks.prompts().count() == 1
        {
            let predicted = u64::from(known.blocks_at(*pick)) * u64::from(known.block_size);
            let size = (known.blocks_at(*pick), known.block_size);
            let ids = self.tokens.ids().and_then(|key| cx.facts.get(key));
            let is_alike = |endpoint: &&Arc<Endpoint>| {
                are_alike(ids, self.caches.block_tokens(endpoint), known.block_size)
            };
            let compares = |endpoint| Comparison::begin(&self.caches, endpoint, blocks, size);
            let comparison = decision.endpoints_of(primary).next().filter(is_alike).and_then(compares);
            effects.observe(Sent {
                predicted: Some(predicted),
                comparison,
                counts: Arc::clone(&self.counts),
            });
        }
    }
}

/// A request under way.
struct Sent {
    /// Tokens that are predicted to be cached; `None` where the response would say nothing about that.
    predicted: Option<u64>,
    /// `None` where nothing is known of what the endpoint holds.
    comparison: Option<Comparison>,
    counts: Arc<PreciseCounts>,
}

impl ResponseObserver for Sent {
    fn rerouted(&mut self, _to: &Arc<Endpoint>) {
        (self.predicted, self.comparison) = (None, None);
    }

    fn response_complete(&mut self, usage: &Usage, _out: &mut Vec<Attribute>) {
        if let (Some(predicted), Some(cached)) = (self.predicted.take(), usage.cached_tokens) {
            let prompt = usage.prompt_tokens.map_or(predicted, |prompt| prompt.max(cached));
            self.counts.predicted.inc_by(predicted.min(prompt));
            self.counts.cached.inc_by(cached);
        }
        if let (Some(comparison), Some(cached)) = (self.comparison.take(), usage.cached_tokens) {
            comparison.end(cached);
        }
    }
}

#[cfg(test)]
mod tests;
