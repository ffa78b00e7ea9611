//! Share of its capacity that an endpoint keeps for prefixes, learned from responses.
//!
//! Engines share the KV cache between cached blocks and running requests, and other pickers
//! may send there, too. So the reported or configured capacity overstates what stays cached,
//! and the index predicts hits that don't happen. A response's usage says how many tokens were
//! cached. Each endpoint has a factor of its capacity, which follows by additive increase and
//! multiplicative decrease, as TCP's window does (RFC 5681): once per window of responses, by
//! the predicted tokens that were not cached. Responses to requests that were decided before the
//! last change say nothing about the factor that it led to, and don't count.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use usher_core::endpoints::{Endpoint, Slot, Snapshot};
use usher_core::prefix::Blocks;
use usher_core::request::Api;
use usher_core::request::usage::{CacheReports, Usage};
use usher_plugin::Persistent;

/// The smallest factor: some prefixes stay however full a cache is, and a factor of 0 would
/// never see a prediction again.
const LEAST: f64 = 0.05;
/// Responses that a change of a factor is based on: enough that a single miss is less than what
/// is cut at most.
const WINDOW: u32 = 16;
/// Share of the predicted tokens of a window that may be missing without a change. The
/// estimate of tokens is no better.
const TOLERATED: f64 = 0.03;
/// The most that a window takes from a factor, as a share of it. A window may have been
/// unlucky; one of misses only is followed by others.
const MOST_CUT: f64 = 0.3;
/// Added to a factor by a window without misses: half of the range takes 50 windows, so that
/// probing for more costs few misses.
const STEP: f64 = 0.01;
/// Share of a prediction that has to be missing before a response counts as a miss. Tokens of
/// a prompt's head may be longer than those of its tail, by as much.
const CLEAR: f64 = 0.25;
/// Requests without a response that are remembered for an endpoint.
const MOST_UNANSWERED: usize = 64;
/// Weight that the mean length of tokens keeps when another response is blended in.
const KEEP: f64 = 0.95;

/// Factors of all endpoints, and the mean length of tokens.
#[derive(Debug, Default)]
pub(super) struct Capacities {
    // Written when an endpoint gets its first request and when one goes.
    by_slot: RwLock<HashMap<u32, Arc<Capacity>>>,
    /// Tokens as engines count them, per estimated token, as `f64` bits; 0 before the first
    /// response.
    tokens: AtomicU64,
}

impl Capacities {
    /// Blocks that an endpoint keeps which has room for so many; at least one, if it has any.
    pub(super) fn effective(&self, endpoint: &Endpoint, capacity: usize) -> usize {
        let by_slot = self.by_slot.read().unwrap_or_else(PoisonError::into_inner);
        let factor = by_slot.get(&endpoint.slot().number()).map_or(1.0, |capacity| capacity.factor());
        // Rounds down, as casts from floats do.
        ((capacity as f64 * factor) as usize).max(capacity.min(1))
    }

    /// Mean factor of the endpoints; 1 without any.
    pub(super) fn mean_factor(&self) -> f64 {
        let by_slot = self.by_slot.read().unwrap_or_else(PoisonError::into_inner);
        let sum: f64 = by_slot.values().map(|capacity| capacity.factor()).sum();
        if by_slot.is_empty() { 1.0 } else { sum / by_slot.len() as f64 }
    }

    /// Tokens as engines count them, per estimated token; `None` before the first response.
    pub(super) fn tokens_per_estimate(&self) -> Option<f64> {
        Some(f64::from_bits(self.tokens.load(Relaxed))).filter(|tokens| *tokens > 0.0)
    }

    /// Notes what is predicted of a request to an endpoint: that it has the first `matched`
    /// blocks of `block` tokens each. `None` for a request of several prompts: its usage doesn't
    /// tell them apart.
    pub(super) fn forecast(
        &self,
        endpoint: &Endpoint,
        api: Api,
        blocks: &Blocks,
        (matched, block): (u32, u32),
    ) -> Option<Forecast> {
        if blocks.prompts().count() != 1 {
            return None;
        }
        let capacity = self.of(endpoint.slot());
        let mut learning = capacity.learning();
        let certain = learning.answered(blocks.hashes(), matched);
        let window = learning.window;
        let new = blocks.hashes().get(matched as usize).copied();
        if let Some(hash) = new {
            learning.note(matched, hash);
        }
        drop(learning);
        let unanswered = new.map(|hash| Unanswered { capacity: Arc::clone(&capacity), hash });
        Some(Forecast { capacity, unanswered, api, window, block, matched, certain, tokens: blocks.tokens() })
    }

    /// Compares a prediction with a response. `None` where the response doesn't say enough.
    pub(super) fn compare(&self, forecast: &Forecast, usage: &Usage) -> Option<Compared> {
        let prompt = usage.prompt_tokens.filter(|tokens| *tokens > 0)?;
        // Anthropic's input tokens are those that were not cached; servers that speak its API
        // differ in that. Of both readings this is the smaller one.
        let cached = usage.cached_tokens.unwrap_or(0);
        let prompt = prompt.max(cached) as f64;
        let whole = forecast.tokens.filter(|tokens| *tokens > 0);
        // Better than the mean, as prompts differ.
        let own = whole.map(|tokens| prompt / tokens as f64);
        if let Some(own) = own.filter(|_| forecast.api != Api::Messages) {
            self.learn_tokens(own);
        }
        forecast.capacity.reports.cached(forecast.api, usage)?;
        let scale = own.or_else(|| self.tokens_per_estimate())?;
        let block = f64::from(forecast.block) * scale;
        let tokens = |blocks: u32| (f64::from(blocks) * block).min(prompt);
        let compared = Compared { predicted: tokens(forecast.matched) as u64, cached };
        let mut learning = forecast.capacity.learning();
        if learning.window == forecast.window {
            let change = learning.note_response(tokens(forecast.certain), cached as f64, block);
            if let Some(change) = change {
                forecast.capacity.change(change);
            }
        }
        Some(compared)
    }

    fn of(&self, slot: &Arc<Slot>) -> Arc<Capacity> {
        let number = slot.number();
        let by_slot = self.by_slot.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(capacity) = by_slot.get(&number) {
            return Arc::clone(capacity);
        }
        drop(by_slot);
        let mut by_slot = self.by_slot.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(by_slot.entry(number).or_insert_with(|| Arc::new(Capacity::new(Arc::clone(slot)))))
    }

    fn learn_tokens(&self, tokens: f64) {
        let mean = self.tokens_per_estimate().map_or(tokens, |mean| KEEP * mean + (1.0 - KEEP) * tokens);
        // Of two at once one is lost, which does no harm.
        self.tokens.store(mean.to_bits(), Relaxed);
    }
}

impl Persistent for Capacities {
    fn sweep(&self, snapshot: &Snapshot, _now_ms: u64) {
        let mut slots = snapshot.slots().to_vec();
        slots.sort_unstable();
        let mut by_slot = self.by_slot.write().unwrap_or_else(PoisonError::into_inner);
        by_slot.retain(|slot, _| slots.binary_search(slot).is_ok());
    }
}

/// Tokens of a prompt that were predicted to be cached, and that were, as the engine counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Compared {
    pub(super) predicted: u64,
    pub(super) cached: u64,
}

/// Factor of an endpoint's capacity.
#[derive(Debug)]
struct Capacity {
    /// Keeps the number from being given to another endpoint.
    _slot: Arc<Slot>,
    /// In 0.05..=1, as `f64` bits.
    factor: AtomicU64,
    reports: CacheReports,
    // Taken by each request when it is decided, when its response begins and when that ends.
    learning: Mutex<Learning>,
}

impl Capacity {
    fn new(slot: Arc<Slot>) -> Self {
        Self {
            _slot: slot,
            factor: AtomicU64::new(1f64.to_bits()),
            reports: CacheReports::default(),
            learning: Mutex::default(),
        }
    }

    fn factor(&self) -> f64 {
        f64::from_bits(self.factor.load(Relaxed))
    }

    fn learning(&self) -> MutexGuard<'_, Learning> {
        self.learning.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Only one changes it at a time: who has the lock.
    fn change(&self, change: Change) {
        let factor = match change {
            Change::Cut(share) => self.factor() * (1.0 - share),
            Change::Add => self.factor() + STEP,
        };
        self.factor.store(factor.clamp(LEAST, 1.0).to_bits(), Relaxed);
    }
}

/// A change of a factor.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    /// By this share of it.
    Cut(f64),
    Add,
}

#[derive(Debug, Default)]
struct Learning {
    /// Number of the window; then the sums of its responses so far.
    window: u32,
    responses: u32,
    predicted: f64,
    missed: f64,
    /// The first new block of each request without a response, and its position in the prompt.
    unanswered: VecDeque<(u32, u64)>,
}

impl Learning {
    /// Number of leading blocks, of those that match, that no unanswered request was the first
    /// to bring: an engine has only what it has computed.
    fn answered(&self, hashes: &[u64], matched: u32) -> u32 {
        let is_ours = |(at, hash): &&(u32, u64)| hashes.get(*at as usize) == Some(hash);
        let ours = self.unanswered.iter().filter(is_ours).map(|(at, _)| *at);
        ours.fold(matched, u32::min)
    }

    fn note(&mut self, at: u32, hash: u64) {
        if self.unanswered.len() == MOST_UNANSWERED {
            self.unanswered.pop_front();
        }
        self.unanswered.push_back((at, hash));
    }

    fn forget(&mut self, hash: u64) {
        if let Some(at) = self.unanswered.iter().position(|(_, noted)| *noted == hash) {
            self.unanswered.remove(at);
        }
    }

    /// Takes a response: tokens that were predicted and that were cached. Returns what follows
    /// at the end of a window.
    fn note_response(&mut self, predicted: f64, cached: f64, block: f64) -> Option<Change> {
        if predicted.max(cached) <= block {
            return None;
        }
        let missed = predicted - cached;
        let is_clear = missed > block && missed > CLEAR * predicted;
        self.responses += 1;
        self.predicted += predicted;
        self.missed += if is_clear { missed } else { 0.0 };
        if self.responses < WINDOW {
            return None;
        }
        let share = self.missed / self.predicted.max(1.0);
        self.window = self.window.wrapping_add(1);
        (self.responses, self.predicted, self.missed) = (0, 0.0, 0.0);
        Some(if share > TOLERATED { Change::Cut(share.min(MOST_CUT)) } else { Change::Add })
    }
}

/// Prediction for one request. Its size doesn't depend on the prompt: streams are many,
/// and prompts long.
#[derive(Debug)]
pub(super) struct Forecast {
    capacity: Arc<Capacity>,
    /// `None` once the response has begun.
    unanswered: Option<Unanswered>,
    api: Api,
    window: u32,
    /// Estimated tokens of a block.
    block: u32,
    /// Blocks that the endpoint was taken to hold, and those of them that belong to answered
    /// prompts.
    matched: u32,
    certain: u32,
    /// Estimated tokens of the prompt, if all of it was read.
    tokens: Option<u64>,
}

impl Forecast {
    /// The prompt is computed.
    pub(super) fn first_token(&mut self) {
        self.unanswered = None;
    }
}

/// A prompt that an endpoint was sent and may not have computed yet.
#[derive(Debug)]
struct Unanswered {
    capacity: Arc<Capacity>,
    hash: u64,
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.capacity.learning().forget(self.hash);
    }
}

#[cfg(test)]
#[path = "capacity_tests.rs"]
mod tests;
