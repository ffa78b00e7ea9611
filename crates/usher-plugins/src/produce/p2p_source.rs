//! `p2p-source-producer`: from which other pod the one that computes a prompt can take
//! what that has cached of it.

use std::sync::Arc;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use usher_core::config::{ConfigError, Node};
use usher_core::endpoints::{Endpoint, View};
use usher_plugin::data::PrefixMatch;
use usher_plugin::params::{PREFIX_PRODUCER, or_default, refused};
use usher_plugin::{
    Build, BuildContext, Context, Decision, Effects, Key, Kind, PluginParts, PluginType, PreRequest, beta,
};

/// `p2p-source-producer` in a configuration.
#[rustfmt::skip]
pub static TYPE: PluginType = beta("p2p-source-producer", &[Kind::DataProducer, Kind::PreRequest],
    "Names in the header x-kv-cache-source-host-port the pod from which the prefill pod can fetch cached blocks of the prompt.",
    Build::Reading(build)).takes::<P2pSourceParams>().alpha()
    .when("Pods that can take cached blocks from each other faster than they compute them.");

fn build(cx: &mut BuildContext<'_>) -> Result<PluginParts, ConfigError> {
    let params = P2pSourceParams::decode(cx.parameters)?;
    let plugin = Arc::new(P2pSource::new(&params, cx.reads(&params.prefix_match_info_producer_name)));
    let profiles = params.prefill_profile_name.iter().map(|name| ("prefillProfileName", name.clone()));
    Ok(PluginParts { pre_request: Some(plugin), profiles: profiles.collect(), ..PluginParts::with(&params)? })
}

/// Parameters of `p2p-source-producer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct P2pSourceParams {
    /// The producer that knows what is cached.
    pub prefix_match_info_producer_name: String,
    /// Number of tokens that the other pod has to have cached more, at least 1.
    #[schemars(extend("x-unit" = "tokens"))]
    pub min_cached_token_delta: i64,
    /// The profile whose first pick computes the prompt, where it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "the profile handler's"))]
    pub prefill_profile_name: Option<String>,
}

impl Default for P2pSourceParams {
    fn default() -> Self {
        Self {
            prefix_match_info_producer_name: PREFIX_PRODUCER.to_owned(),
            min_cached_token_delta: 1,
            prefill_profile_name: None,
        }
    }
}

impl P2pSourceParams {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `ConfigError` with line and column for unknown keys, wrong types, and a delta below 1.
    pub fn decode(node: &Node) -> Result<Self, ConfigError> {
        let mut params: Self = node.decode()?;
        if params.min_cached_token_delta < 1 {
            return Err(refused(node, "minCachedTokenDelta", params.min_cached_token_delta)
                .hint("1 or more; the default is 1"));
        }
        or_default(&mut params.prefix_match_info_producer_name, PREFIX_PRODUCER);
        params.prefill_profile_name = params.prefill_profile_name.filter(|name| !name.is_empty());
        Ok(params)
    }
}

/// Sets `x-kv-cache-source-host-port` to a candidate that has cached more of the prompt than
/// the pod that computes it: one of those within a block of the most, the more likely the
/// fewer requests wait there. The request's id says which, so that a retry asks the same
/// one. What a client wrote into the header is removed anyway.
#[derive(Clone, Debug)]
pub struct P2pSource {
    delta: u64,
    prefill: Option<String>,
    prefix: Key<PrefixMatch>,
    header: Arc<str>,
}

impl P2pSource {
    /// A writer by the match under `prefix`.
    pub fn new(params: &P2pSourceParams, prefix: Key<PrefixMatch>) -> Self {
        Self {
            delta: params.min_cached_token_delta.unsigned_abs(),
            prefill: params.prefill_profile_name.clone(),
            prefix,
            header: "x-kv-cache-source-host-port".into(),
        }
    }
}

impl PreRequest for P2pSource {
    fn decided(&self, cx: &Context<'_>, decision: &Decision, effects: &mut Effects) {
        let Some(known) = cx.facts.get(self.prefix) else { return };
        let computing = match &self.prefill {
            Some(profile) => decision.run(profile),
            None => decision.prefill(),
        };
        let computing = computing.unwrap_or_else(|| decision.primary());
        let Some(computing) = computing.picks.first() else { return };
        let candidates = decision.candidates().view();
        let Some(source) = source(cx, known, candidates) else { return };
        let more = known.blocks_at(source).saturating_sub(known.blocks_at(*computing));
        let tokens = u64::from(more) * u64::from(known.block_size);
        // The computing pod itself has no more than itself.
        if tokens < self.delta {
            return;
        }
        if let Some(endpoint) = candidates.snapshot().endpoints().get(source as usize) {
            effects.set_header(&self.header, Bytes::copy_from_slice(endpoint.authority().as_bytes()));
        }
    }
}

/// One of the candidates that have the most cached, as a position in the snapshot; `None`
/// if no endpoint has any.
fn source(cx: &Context<'_>, known: &PrefixMatch, candidates: View<'_>) -> Option<u32> {
    let blocks = |position: &u32| known.blocks_at(*position);
    let most = candidates.indices().iter().map(blocks).max().filter(|most| *most > 0)?;
    let peers = || {
        let pairs = candidates.indices().iter().zip(candidates.iter());
        pairs.filter(|(position, _)| blocks(position) > 0 && blocks(position) + 1 >= most)
    };
    let waiting = |endpoint: &Endpoint| {
        let fresh = endpoint.load().waiting.fresh(cx.now_ms, cx.max_age);
        fresh.filter(|waiting| waiting.is_finite()).map(|waiting| waiting.max(0.0))
    };
    // Whom nobody hears from is no better than the worst of the others.
    let worst = peers().filter_map(|(_, endpoint)| waiting(endpoint)).fold(0.0, f64::max);
    let weight = |endpoint: &Endpoint| 1.0 / (1.0 + waiting(endpoint).unwrap_or(worst));
    let mut left = share(cx) * peers().map(|(_, endpoint)| weight(endpoint)).sum::<f64>();
    let mut last = None;
    for (position, endpoint) in peers() {
        last = Some(*position);
        left -= weight(endpoint);
        if left < 0.0 {
            break;
        }
    }
    // The last one, should rounding have left a rest.
    last
}

/// A number in 0..1 that the request's id decides; without one, the time.
fn share(cx: &Context<'_>) -> f64 {
    let id = cx.request.headers.get("x-request-id").unwrap_or_default();
    let hash = if id.is_empty() { fnv1a(&cx.now_ms.to_le_bytes()) } else { fnv1a(id) };
    f64::from(hash) / (f64::from(u32::MAX) + 1.0)
}

/// FNV-1a with 32 bits.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a() {
        let table = [("", 0x811c_9dc5), ("a", 0xe40c_292c), ("foobar", 0xbf9c_f968)];
        for (text, hash) in table {
            assert_eq!(fnv1a(text.as_bytes()), hash, "{text}");
        }
    }
}
