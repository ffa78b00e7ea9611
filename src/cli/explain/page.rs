//! The page of decisions of an admin port.

use serde::Deserialize;
use serde_json::Value;

/// The page. Its decisions are kept as they came, so that JSON is printed whole.
#[derive(Debug, Deserialize)]
pub(super) struct Page {
    pub(super) version: u32,
    pub(super) recording: bool,
    #[serde(default)]
    pub(super) kept: usize,
    pub(super) kept_since_unix_ms: Option<u64>,
    #[serde(default)]
    pub(super) sampled_out: u64,
    #[serde(default)]
    pub(super) sequence: u64,
    pub(super) decisions: Vec<Value>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Decision {
    pub(super) request_id: String,
    pub(super) decided_unix_ms: u64,
    pub(super) waited: Option<f64>,
    pub(super) model: String,
    pub(super) target_model: String,
    pub(super) priority: i32,
    pub(super) stream: bool,
    pub(super) body_bytes: u64,
    pub(super) input_tokens: Option<u64>,
    pub(super) max_output_tokens: Option<u64>,
    pub(super) endpoints: u32,
    pub(super) candidates: u32,
    pub(super) detailed: Vec<Endpoint>,
    pub(super) profiles: Vec<Profile>,
    pub(super) refusal: Option<Refusal>,
    pub(super) slow: bool,
    pub(super) outcome: Option<Outcome>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Endpoint {
    pub(super) id: String,
    pub(super) address: String,
    pub(super) waiting: Option<f64>,
    pub(super) running: Option<f64>,
    pub(super) kv_usage: Option<f64>,
    pub(super) age_ms: Option<u64>,
    pub(super) in_flight: u32,
    pub(super) cached_tokens: Option<u64>,
    pub(super) kv_events: Option<KvEvents>,
    pub(super) hidden_by: Option<String>,
}

/// State of an endpoint's KV events, and the cached tokens that they announced.
#[derive(Debug, Deserialize)]
pub(super) struct KvEvents {
    pub(super) state: String,
    pub(super) cached_tokens: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Profile {
    pub(super) profile: String,
    pub(super) primary: bool,
    pub(super) filters: Vec<Filter>,
    pub(super) survivors: u32,
    pub(super) scorers: Vec<Scorer>,
    pub(super) picker: String,
    pub(super) scored: Vec<Scored>,
    pub(super) picks: Vec<String>,
    pub(super) runner_up: Option<String>,
    pub(super) margin: Option<f64>,
    pub(super) expected: Vec<Expected>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Filter {
    pub(super) filter: Option<String>,
    pub(super) left: u32,
    pub(super) dropped: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Scorer {
    pub(super) scorer: String,
    pub(super) weight: f64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Scored {
    pub(super) address: String,
    pub(super) scores: Vec<f64>,
    pub(super) total: Option<f64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Expected {
    pub(super) address: String,
    pub(super) first_token: f64,
    pub(super) slot_wait: f64,
    pub(super) queued: f64,
    pub(super) prefill: f64,
    pub(super) per_token: f64,
    pub(super) uncached_tokens: f64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Refusal {
    pub(super) status: u16,
    pub(super) reason: Option<String>,
    pub(super) message: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Outcome {
    pub(super) ending: String,
    pub(super) status: Option<u16>,
    pub(super) grpc_status: Option<u32>,
    pub(super) served_by: Option<String>,
    pub(super) first_token: Option<f64>,
    pub(super) total: f64,
    pub(super) per_token: Option<f64>,
    pub(super) prompt_tokens: Option<u64>,
    pub(super) output_tokens: Option<u64>,
    pub(super) cached_tokens: Option<u64>,
    pub(super) first_token_error: Option<f64>,
    pub(super) cached_tokens_error: Option<i64>,
}

impl Decision {
    /// The endpoint of an address.
    pub(super) fn endpoint(&self, address: &str) -> Option<&Endpoint> {
        self.detailed.iter().find(|each| each.address == address)
    }

    /// Returns `true` if a plugin followed KV events.
    pub(super) fn has_kv_events(&self) -> bool {
        self.detailed.iter().any(|each| each.kv_events.is_some())
    }

    /// The profile whose picks the gateway got.
    pub(super) fn primary(&self) -> Option<&Profile> {
        self.profiles.iter().find(|profile| profile.primary)
    }
}

impl Profile {
    /// Latency that was expected of an endpoint.
    pub(super) fn expected_of(&self, address: &str) -> Option<&Expected> {
        self.expected.iter().find(|expected| expected.address == address)
    }

    /// Name of the filter that dropped an endpoint.
    pub(super) fn dropped_by(&self, address: &str) -> Option<&str> {
        let dropped = |filter: &&Filter| filter.dropped.iter().any(|dropped| dropped == address);
        self.filters.iter().find(dropped)?.filter.as_deref()
    }
}
