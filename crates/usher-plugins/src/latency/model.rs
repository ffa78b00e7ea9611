//! Bookings and learned state of all endpoints.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use usher_core::endpoints::{Clock, Endpoint, Slot, Snapshot};
use usher_core::request::Request;

use super::accuracy::Prediction;
use super::arrivals::Arrivals;
use super::backlog::Backlog;
use super::groups::Groups;
use super::hits::Hits;
use super::lengths::{Kind, Lengths};
use super::link::Transfers;
use super::mean::Mean;
use super::predicted::Accuracies;
use super::scale::TokenScale;
use super::targets::Recent;
use super::time::millis;

/// Tokens of a response that are expected before any was seen.
const OUTPUT: f64 = 200.0;

/// Times that a second before a first token counts for, where first tokens and responses take equally long,
/// and most of what their ratio adds; see [`cost`](super::cost).
const URGENT: f64 = 2.0;
const MOST_URGENT: f64 = 20.0;

/// Backlogs and speeds of all endpoints that requests were sent to.
#[derive(Debug)]
pub struct Model {
    pub(super) clock: Clock,
    /// Tokens that endpoints are taken to compute per second before anything is learned, as
    /// `f64` bits.
    initial_rate: AtomicU64,
    /// Fingerprint of the configured transfers, of which learned ones are multiples; 0: they are not known.
    transfers: AtomicU64,
    pub(super) entries: ArcSwap<Vec<Option<Entry>>>,
    pub(super) groups: Groups,
    pub(super) traffic: Traffic,
    /// Mean tokens of a response.
    pub(super) mean_output: Mean,
    /// Mean seconds to a first token, and from it to the last.
    pub(super) mean_first: Mean,
    pub(super) mean_response: Mean,
    accuracies: Accuracies,
    hits: Hits,
    scale: TokenScale,
    pub(super) lengths: Lengths,
    pub(super) recent: Recent,
    // Taken when an endpoint is looked at first, and when one goes.
    writer: Mutex<()>,
}

/// A reference to a model whose holders are counted apart from those of the model.
#[derive(Debug)]
pub(super) struct OwnCount(pub(super) Arc<Model>);

impl Deref for OwnCount {
    type Target = Model;

    fn deref(&self) -> &Model {
        &self.0
    }
}

/// Requests that come. Every booking writes all of this, so that it has a cache line to itself: what
/// decisions read beside it stays in the caches of all threads.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Traffic {
    /// Means per request: tokens to compute, and tokens of a prompt.
    pub(super) mean_uncached: Mean,
    pub(super) mean_prompt: Mean,
    /// Prompts, and the seconds that they take where they are sent.
    pub(super) arrivals: Arrivals,
}

/// An endpoint's backlog. Holds its slot, so that the number stays its own.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    slot: Arc<Slot>,
    /// Identifier of the endpoint.
    pub(super) endpoint: Arc<str>,
    pub(super) backlog: Arc<Backlog>,
}

impl Model {
    /// A model that knows nothing. `initial_rate` is in tokens per second, above 0.
    pub fn new(initial_rate: f64, clock: Clock) -> Self {
        Self {
            clock,
            initial_rate: AtomicU64::new(initial_rate.to_bits()),
            transfers: AtomicU64::new(0),
            entries: ArcSwap::default(),
            groups: Groups::new(initial_rate),
            traffic: Traffic::default(),
            mean_output: Mean::expected(OUTPUT),
            mean_first: Mean::default(),
            mean_response: Mean::default(),
            accuracies: Accuracies::default(),
            hits: Hits::default(),
            scale: TokenScale::default(),
            lengths: Lengths::default(),
            recent: Recent::default(),
            writer: Mutex::default(),
        }
    }

    /// Expects this rate from now on where nothing was learned, in tokens per second, above
    /// 0: a configuration may say something else than the one before it.
    pub fn starts_at(&self, rate: f64) {
        if self.initial_rate() == rate {
            return;
        }
        self.initial_rate.store(rate.to_bits(), Relaxed);
        self.groups.expect(rate);
    }

    /// Expects these transfers from now on, and forgets how many times as long as in an earlier configuration they took.
    pub(super) fn moves_at(&self, transfers: &Transfers) {
        let now = transfers.fingerprint();
        if self.transfers() == now {
            return;
        }
        let before = self.transfers.swap(now, Relaxed);
        if before == 0 || before == now {
            return;
        }
        self.entries.load().iter().flatten().for_each(|entry| entry.backlog.link().forget());
        self.groups.all().iter().for_each(|(_, group)| group.forget_transfers());
    }

    /// Fingerprint of the configured transfers; 0: they are not known.
    pub(super) fn transfers(&self) -> u64 {
        self.transfers.load(Relaxed)
    }

    /// Returns `true` if these transfers are the configured ones, which they are taken to be before the first decision.
    pub(super) fn has_transfers(&self, theirs: u64) -> bool {
        self.transfers
            .compare_exchange(0, theirs, Relaxed, Relaxed)
            .map_or_else(|ours| ours == theirs, |_| true)
    }

    /// Tokens per second that endpoints are configured to compute.
    pub(super) fn initial_rate(&self) -> f64 {
        f64::from_bits(self.initial_rate.load(Relaxed))
    }

    /// Accuracy of what the latest decisions predicted.
    pub fn prediction(&self) -> Prediction {
        Prediction { ttft: self.accuracies.first.bands(), tpot: self.accuracies.step.bands() }
    }

    pub(super) fn hits(&self) -> &Hits {
        &self.hits
    }

    /// Tokens as engines count them.
    pub(super) fn scale(&self) -> &TokenScale {
        &self.scale
    }

    pub(super) fn accuracies(&self) -> &Accuracies {
        &self.accuracies
    }

    /// The clock that bookings are measured with.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The model and flow of a request.
    pub fn kind(&self, request: &Request) -> Kind {
        self.lengths.kind(&request.target_model, request.fairness_id())
    }

    /// A response had so many tokens.
    pub(super) fn note_output(&self, kind: Kind, tokens: u64, now: Duration) {
        self.lengths.note(kind, tokens as f64, self.mean_output(), millis(now));
        self.mean_output.note_clipped(tokens as f64);
    }

    /// A stream took so long to its first token, and from there to its end.
    pub(super) fn note_times(&self, first: Duration, response: Duration) {
        self.mean_first.note_clipped(first.as_secs_f64());
        self.mean_response.note_clipped(response.as_secs_f64());
    }

    /// Twice the geometric mean of 1 and the ratio of mean responses to mean times to a first token.
    pub(super) fn urgency(&self) -> f64 {
        let (first, response) = (self.mean_first.get(), self.mean_response.get());
        let ratio = if first > 0.0 { response / first } else { 1.0 };
        URGENT * ratio.sqrt().clamp(1.0, MOST_URGENT)
    }

    pub(super) fn mean_output(&self) -> f64 {
        self.mean_output.get()
    }

    /// The endpoint's backlog; an empty one when it is looked at first.
    pub(super) fn backlog(&self, endpoint: &Endpoint) -> Arc<Backlog> {
        let number = endpoint.slot().number() as usize;
        if let Some(Some(entry)) = self.entries.load().get(number) {
            return Arc::clone(&entry.backlog);
        }
        self.entry(endpoint, None)
    }

    /// The endpoint's backlog, an empty one unless there is one. `before`: that of the engine before it started anew, which goes.
    fn entry(&self, endpoint: &Endpoint, before: Option<&Arc<Backlog>>) -> Arc<Backlog> {
        let _writing = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let number = endpoint.slot().number() as usize;
        let mut entries = Vec::clone(&self.entries.load());
        if entries.len() <= number {
            entries.resize(number + 1, None);
        }
        let goes = |entry: &Entry| before.is_some_and(|before| Arc::ptr_eq(&entry.backlog, before));
        let kept = entries[number].take().filter(|entry| !goes(entry));
        let entry = kept.unwrap_or_else(|| {
            let group = self.groups.of(endpoint, self.initial_rate());
            let backlog = match before {
                // Its last page is the first of the new process.
                Some(before) => Backlog::restarted(group, before.started(), millis(self.clock.elapsed())),
                None => Backlog::new(group),
            };
            let (slot, id) = (Arc::clone(endpoint.slot()), Arc::clone(endpoint.id()));
            Entry { slot, endpoint: id, backlog: Arc::new(backlog) }
        });
        let backlog = Arc::clone(&entry.backlog);
        entries[number] = Some(entry);
        self.entries.store(Arc::new(entries));
        backlog
    }

    /// Learns from the times that the endpoint has measured itself. If they say that it is
    /// another process, what was learned of the endpoint alone is forgotten; its group's
    /// times stay.
    pub(super) fn watch(&self, endpoint: &Endpoint) {
        let backlog = self.backlog(endpoint);
        if !backlog.read_times(endpoint.load(), self.mean_output(), &self.clock) {
            tracing::info!(endpoint = %endpoint.id(), "engine restarted; relearning its endpoint's latency");
            self.entry(endpoint, Some(&backlog));
        }
    }

    /// Learns from the times that the pool's endpoints have measured themselves, and forgets those
    /// that are gone.
    pub(super) fn follow(&self, snapshot: &Snapshot) {
        for endpoint in snapshot.endpoints() {
            // One that is never chosen might be, if it weren't taken for the one before.
            if self.entries.load().get(endpoint.slot().number() as usize).is_some_and(Option::is_some) {
                self.watch(endpoint);
            }
        }
        let _writing = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let listed: std::collections::HashSet<u32> =
            snapshot.endpoints().iter().map(|endpoint| endpoint.slot().number()).collect();
        let entries = self.entries.load();
        let is_gone =
            |entry: &Option<Entry>| entry.as_ref().is_some_and(|e| !listed.contains(&e.slot.number()));
        if entries.iter().any(is_gone) {
            let kept = entries.iter().map(|entry| entry.clone().filter(|_| !is_gone(entry)));
            self.entries.store(Arc::new(kept.collect()));
        }
    }
}
