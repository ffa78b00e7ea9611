//! One decision, as it is kept.

use std::mem::size_of;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};

use smallvec::{Array, SmallVec};
use usher_core::endpoints::EndpointName;
use usher_core::prefix::EngineStatus;
use usher_plugin::LatencyEstimate;

use super::outcome::Outcome;
use super::request_names::RequestNames;
use super::row::Row;
use super::trace::{Shape, Step};

/// State of an endpoint's KV cache, as of its events, when a decision was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineKnown {
    /// State of the knowledge about its engine's cache.
    pub status: EngineStatus,
    /// Tokens of the prompt that the engine holds; `None` if it isn't heard, or the prompt's tokens weren't known.
    pub cached_tokens: Option<u32>,
}

/// Scored endpoints of a large pool: with few picks they take no allocation.
const SCORED: usize = 16;

/// A profile's run in a record. Endpoints are positions in [`DecisionRecord::rows`].
#[derive(Debug)]
pub struct ProfileRecord {
    /// Names of its plugins.
    pub shape: Arc<Shape>,
    /// `true` if it picked the destination that the gateway got.
    pub is_primary: bool,
    /// Candidates that each filter left.
    pub steps: SmallVec<[Step; 2]>,
    /// Filter that dropped an endpoint, and the endpoint.
    pub dropped: SmallVec<[(u16, u16); 4]>,
    /// Number of candidates that the filters left.
    pub survivors: u32,
    /// Recorded ones of them.
    pub scored: SmallVec<[u16; SCORED]>,
    /// Score of each by the first scorer, then by the second, and so on.
    pub(super) scores: Box<[f32]>,
    /// Picks, best first; empty where the filters left nothing.
    pub picks: SmallVec<[u16; 4]>,
    /// The best candidate that isn't the first pick.
    pub runner_up: Option<u16>,
    /// Latency that a scorer expected of the first pick and of the runner-up.
    pub estimates: SmallVec<[(u16, LatencyEstimate); 2]>,
}

impl ProfileRecord {
    /// Score of the scored endpoint at a place by each scorer.
    pub fn scores(&self, place: usize) -> impl Iterator<Item = f32> {
        let columns = self.scores.chunks_exact(self.scored.len().max(1));
        columns.map(move |column| column.get(place).copied().unwrap_or_default())
    }

    /// Total of the scored endpoint at a place.
    pub fn total(&self, place: usize) -> f64 {
        self.shape.total(self.scores(place))
    }

    /// Bytes that it takes besides itself.
    fn size(&self) -> usize {
        heap_bytes(&self.steps)
            + heap_bytes(&self.dropped)
            + heap_bytes(&self.scored)
            + heap_bytes(&self.picks)
            + heap_bytes(&self.estimates)
            + size_of_val(&*self.scores)
            + ALLOCATION
    }
}

/// Bytes that a vector takes besides itself.
fn heap_bytes<A: Array>(vector: &SmallVec<A>) -> usize {
    if vector.spilled() { vector.capacity() * size_of::<A::Item>() + ALLOCATION } else { 0 }
}

/// Reason why a request went nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// Value of the header with the reason, if there is one.
    pub reason: Option<&'static str>,
    /// Message to the client.
    pub message: Box<str>,
}

/// Reason why a record is kept longer than ordinary ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeepReason {
    /// The request went nowhere.
    Refusal,
    /// No good response.
    Failure,
    /// Good response, late.
    Slowness,
}

/// A decision and its outcome.
#[derive(Debug)]
pub struct DecisionRecord {
    /// Order of the decisions, from 1.
    pub number: u64,
    /// Number of the last change of any record when this one changed last.
    pub(super) sequence: AtomicU64,
    /// Models and id of the request.
    pub(super) request_names: RequestNames,
    /// Time of the decision, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Seconds from the request's headers to the decision; `None` where that isn't known.
    pub waited: Option<f64>,
    /// Priority.
    pub priority: i32,
    /// The client wanted a stream.
    pub is_stream: bool,
    /// Bytes of the body, as far as it was read.
    pub body_bytes: u64,
    /// Tokens of the prompt, as estimated; `None` where no plugin counts them.
    pub input_tokens: Option<u64>,
    /// The client's limit on generated tokens.
    pub max_output_tokens: Option<u64>,
    /// Endpoints that the request might go to.
    pub endpoints: u32,
    /// Endpoints among which the profiles chose: neither ejected nor set aside by a screener.
    pub candidates: u32,
    /// Names of the pool's endpoints, which decisions share; of a large pool only those of the rows.
    pub(super) names: Arc<[EndpointName]>,
    /// Recorded endpoints: all, or the best of a large pool.
    pub rows: Box<[Row]>,
    /// Knowledge from KV events of each of the rows; empty where no plugin follows them.
    pub(super) kv_events: Box<[Option<EngineKnown>]>,
    /// Runs of profiles, in the order in which they ran.
    pub profiles: SmallVec<[ProfileRecord; 1]>,
    /// Reason why it went nowhere.
    pub refusal: Option<Refusal>,
    pub(super) outcome: OnceLock<Outcome>,
    pub(super) is_slow: AtomicBool,
    /// Set if it is kept longer than ordinary ones.
    pub(super) kept_for: OnceLock<KeepReason>,
    pub(super) held: Held,
}

impl DecisionRecord {
    /// Id of the request; empty if it came without and was refused.
    pub fn request_id(&self) -> &str {
        self.request_names.id()
    }

    /// Model that the client named.
    pub fn model(&self) -> &str {
        self.request_names.model()
    }

    /// Model that was asked for upstream, if it is another.
    pub fn target_model(&self) -> Option<&str> {
        self.request_names.target()
    }

    /// Number of its last change, which grows with every change of any record.
    pub fn sequence(&self) -> u64 {
        self.sequence.load(Relaxed)
    }

    /// Outcome; `None` while it is under way, and for a request that went nowhere.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.get()
    }

    /// Returns `true` if its request is under way.
    pub(super) fn is_under_way(self: &Arc<Self>) -> bool {
        // The request's stream keeps a weak reference.
        self.outcome.get().is_none() && Arc::weak_count(self) > 0
    }

    /// Returns `true` if it was refused, or got no good response.
    pub fn is_failed(&self) -> bool {
        self.refusal.is_some() || self.outcome().is_some_and(Outcome::is_failed)
    }

    /// Returns `true` if its first token, or a response that doesn't come token by token, took longer than nearly
    /// all before it.
    pub fn is_slow(&self) -> bool {
        self.is_slow.load(Relaxed)
    }

    /// The run whose picks the gateway got.
    pub fn primary(&self) -> Option<&ProfileRecord> {
        self.profiles.iter().find(|profile| profile.is_primary)
    }

    /// The endpoint at a position of the rows.
    pub fn row(&self, position: u16) -> Option<&Row> {
        self.rows.get(usize::from(position))
    }

    /// Names of the endpoint of a row.
    ///
    /// # Panics
    /// On a row of another record.
    pub fn name(&self, row: &Row) -> &EndpointName {
        &self.names[usize::from(row.name)]
    }

    /// Latency that was expected of the first pick.
    pub fn estimate(&self) -> Option<&LatencyEstimate> {
        let primary = self.primary()?;
        let first = primary.picks.first()?;
        primary.estimates.iter().find(|(row, _)| row == first).map(|(_, estimate)| estimate)
    }

    /// State by KV events of the endpoint at a position of the rows; `None` where no plugin follows them, and of what a
    /// screener set aside.
    pub fn kv_events(&self, position: u16) -> Option<&EngineKnown> {
        self.kv_events.get(usize::from(position))?.as_ref()
    }

    /// Tokens of the prompt that the first pick's engine held by its KV events. `None` where usage isn't about the
    /// same: another profile sent the prompt elsewhere before.
    pub fn held_tokens(&self) -> Option<u32> {
        let others = self.profiles.iter().filter(|profile| !profile.is_primary);
        if others.into_iter().any(|profile| !profile.picks.is_empty()) {
            return None;
        }
        self.kv_events(*self.primary()?.picks.first()?)?.cached_tokens
    }

    /// Bytes that it takes, with shared names: once membership has changed they may be its own.
    pub(super) fn size(&self) -> u64 {
        let refusal = self.refusal.as_ref().map_or(0, |refusal| refusal.message.len());
        let profiles: usize = self.profiles.iter().map(ProfileRecord::size).sum();
        let all =
            size_of::<Self>() + self.request_names.size() + refusal + size_of_val(&*self.rows) + profiles;
        let all =
            all + heap_bytes(&self.profiles) + size_of_val(&*self.kv_events) + size_of_val(&*self.names);
        (all + 6 * ALLOCATION) as u64
    }
}

/// A record that a response will complete.
#[derive(Debug)]
pub(super) enum RecordRef {
    /// The ring has it, until others take its place.
    InRing(Weak<DecisionRecord>),
    /// Sampled out: it enters the ring only if the request fails or is slow.
    Alone(Arc<DecisionRecord>),
}

/// Bytes that an allocation takes besides its content.
const ALLOCATION: usize = 16;

/// Bytes of a record, counted until it is dropped.
#[derive(Debug, Default)]
pub(super) struct Held {
    total: Arc<AtomicU64>,
    bytes: u64,
}

impl Held {
    pub(super) fn new(total: &Arc<AtomicU64>, bytes: u64) -> Self {
        total.fetch_add(bytes, Relaxed);
        Self { total: Arc::clone(total), bytes }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Relaxed);
    }
}
