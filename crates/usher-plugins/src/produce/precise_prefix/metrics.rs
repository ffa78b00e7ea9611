//! Metrics of cached tokens: predicted against reported by engines.

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use usher_core::metrics::{Legacy, register};

const LABELS: [&str; 2] = ["plugin_name", "plugin_type"];

/// The families, shared by all producers.
#[derive(Debug)]
pub(super) struct PreciseFamilies {
    predicted: IntCounterVec,
    cached: IntCounterVec,
    approximate: IntCounterVec,
    lookups: IntCounter,
    hits: IntCounter,
}

/// Counts of one producer.
#[derive(Debug)]
pub(super) struct PreciseCounts {
    pub(super) predicted: IntCounter,
    pub(super) cached: IntCounter,
    /// Requests whose tokens are not known.
    pub(super) approximate: IntCounter,
    /// Look-ups of prompts, and leading blocks that the best endpoint of each holds.
    pub(super) lookups: IntCounter,
    pub(super) hits: IntCounter,
}

impl PreciseFamilies {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let family = |name: &str, help: &str| {
            register(registry, IntCounterVec::new(Opts::new(name, help), &LABELS)?, None)
        };
        let count = |name: &str, help: &str, older| {
            let older = Legacy { name: older, labels: &[] };
            register(registry, IntCounter::with_opts(Opts::new(name, help))?, Some(older))
        };
        Ok(Self {
            lookups: count(
                "llm_d_epp_kv_cache_index_lookup_requests_total",
                "[ALPHA] Requests whose prompt blocks were looked up in the index of KV events.",
                "kvcache_index_lookup_requests_total",
            )?,
            hits: count(
                "llm_d_epp_kv_cache_index_lookup_hits_total",
                "[ALPHA] Leading prompt blocks held by the best-matching engine, over all look-ups.",
                "kvcache_index_lookup_hits_total",
            )?,
            predicted: family(
                "usher_precise_prefix_predicted_tokens_total",
                "Prompt tokens cached at the chosen endpoint by its KV events, of requests whose response reports cached tokens.",
            )?,
            cached: family(
                "usher_precise_prefix_cached_tokens_total",
                "Cached prompt tokens by the responses' usage, of the requests in usher_precise_prefix_predicted_tokens_total.",
            )?,
            approximate: family(
                "usher_precise_prefix_without_tokens_total",
                "Requests without prompt token ids; scored by the approximate prefix match, if there is one.",
            )?,
        })
    }

    pub(super) fn counts(&self, name: &str, plugin_type: &str) -> PreciseCounts {
        let of = |family: &IntCounterVec| family.with_label_values(&[name, plugin_type]);
        PreciseCounts {
            predicted: of(&self.predicted),
            cached: of(&self.cached),
            approximate: of(&self.approximate),
            lookups: self.lookups.clone(),
            hits: self.hits.clone(),
        }
    }
}
