//! Everything that is booked and learned about all endpoints.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};

use crate::endpoints::{Clock, Endpoint, Load, Slot, Snapshot};
use crate::request::Request;
use crate::schedule::Kept;

use super::accuracy::Prediction;
use super::arrivals::Arrivals;
use super::backlog::Backlog;
use super::booking::{Booked, Work};
use super::cost::{Ask, Cost, Pool, Speed, State};
use super::group::{Group, GroupKey};
use super::hits::Hits;
use super::lengths::{Kind, Lengths};
use super::predicted::Accuracies;
use super::residuals::Residuals;
use super::targets::Recent;

/// Share of a mean's weight that remains after another observation.
const KEEP_MEAN: f64 = 0.98;

/// Tokens of an answer that are expected before any was seen.
const OUTPUT: f64 = 200.0;

/// Times that a second before a first token counts for, where first tokens and answers take equally long,
/// and most of what their ratio adds; see [`cost`](super::cost).
const URGENT: f64 = 2.0;
const MOST_URGENT: f64 = 20.0;

/// KV cache usage from which on it counts as full.
const FULL: f64 = 0.95;

/// Groups at most; further endpoints share the last.
const MOST_GROUPS: usize = 256;

/// Backlogs and speeds of all endpoints that requests were sent to.
#[derive(Debug)]
pub struct Model {
    clock: Clock,
    /// Tokens that endpoints are taken to compute per second before anything is learned, as
    /// `f64` bits.
    initial_rate: AtomicU64,
    entries: ArcSwap<Vec<Option<Entry>>>,
    groups: Mutex<HashMap<GroupKey, Arc<Group>>>,
    /// The first group, whose speed stands for the pool's.
    default: Arc<Group>,
    /// Means per request, as `f64` bits: tokens to compute, tokens of a prompt, tokens of an
    /// answer.
    mean_uncached: AtomicU64,
    mean_prompt: AtomicU64,
    mean_output: AtomicU64,
    /// Mean seconds to a first token, and from it to the last, as `f64` bits.
    mean_first: AtomicU64,
    mean_answer: AtomicU64,
    arrivals: Arrivals,
    accuracies: Accuracies,
    hits: Hits,
    pub(super) lengths: Lengths,
    pub(super) recent: Recent,
    // Taken when an endpoint is looked at first, and when one goes.
    writer: Mutex<()>,
}

/// An endpoint's backlog. Holds its slot, so that the number stays its own.
#[derive(Clone, Debug)]
struct Entry {
    slot: Arc<Slot>,
    /// Which of the servers that had the endpoint's name.
    incarnation: u64,
    backlog: Arc<Backlog>,
}

impl Entry {
    fn is_of(&self, endpoint: &Endpoint) -> bool {
        self.incarnation == endpoint.incarnation()
    }
}

/// The model as one decision reads it.
#[derive(Debug)]
pub struct Table<'a> {
    entries: Guard<Arc<Vec<Option<Entry>>>>,
    pub(super) model: &'a Model,
    pub(super) now: Duration,
    default: Speed,
    mean_uncached: f64,
    mean_prompt: f64,
}

/// An endpoint's own numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reported {
    /// Requests waiting there.
    pub waiting: f64,
    /// Requests running there.
    pub running: f64,
    /// Share of its KV cache in use, 0..=1; `None`: it doesn't say.
    pub kv_usage: Option<f64>,
}

impl Model {
    /// A model that knows nothing. `initial_rate` is in tokens per second, above 0.
    pub fn new(initial_rate: f64, clock: Clock) -> Self {
        Self {
            clock,
            initial_rate: AtomicU64::new(initial_rate.to_bits()),
            entries: ArcSwap::default(),
            groups: Mutex::default(),
            default: Arc::new(Group::new(initial_rate)),
            mean_uncached: AtomicU64::new(0),
            mean_prompt: AtomicU64::new(0),
            mean_output: AtomicU64::new(OUTPUT.to_bits()),
            mean_first: AtomicU64::new(0),
            mean_answer: AtomicU64::new(0),
            arrivals: Arrivals::default(),
            accuracies: Accuracies::default(),
            hits: Hits::default(),
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
        self.default.expect(rate);
        self.groups
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .for_each(|group| group.expect(rate));
    }

    /// The model as it is now.
    pub fn read(&self) -> Table<'_> {
        Table {
            entries: self.entries.load(),
            model: self,
            now: self.clock.elapsed(),
            default: self.default.speed(),
            mean_uncached: f64::from_bits(self.mean_uncached.load(Relaxed)),
            mean_prompt: f64::from_bits(self.mean_prompt.load(Relaxed)),
        }
    }

    /// Tokens per second that endpoints are configured to compute.
    pub(super) fn initial_rate(&self) -> f64 {
        f64::from_bits(self.initial_rate.load(Relaxed))
    }

    /// All groups.
    pub(super) fn groups(&self) -> Vec<(GroupKey, Arc<Group>)> {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.iter().map(|(key, group)| (key.clone(), Arc::clone(group))).collect()
    }

    /// Accuracy of what the latest decisions predicted.
    pub fn prediction(&self) -> Prediction {
        Prediction { ttft: self.accuracies.first.bands(), tpot: self.accuracies.step.bands() }
    }

    pub(super) fn hits(&self) -> &Hits {
        &self.hits
    }

    pub(super) fn accuracies(&self) -> &Accuracies {
        &self.accuracies
    }

    /// The clock that bookings are measured with.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Books a request: its prompt with the endpoint that computes it until the first token
    /// is there, its answer with the endpoint that decodes.
    pub fn book(self: &Arc<Self>, work: &Work<'_>) -> Booked {
        let now = self.clock.elapsed();
        let tokens = self.hits.likely(work.tokens, work.prompt);
        note(&self.mean_uncached, tokens as f64);
        note(&self.mean_prompt, work.prompt as f64);
        self.arrivals.add(tokens, now);
        [work.prefill, work.decode].into_iter().for_each(|endpoint| self.watch(endpoint));
        if let Some(target) = work.tpot {
            self.recent.note(target, now);
        }
        Booked::new(Arc::clone(self), work, now)
    }

    /// The model and flow of a request.
    pub fn kind(&self, request: &Request) -> Kind {
        self.lengths.kind(&request.target_model, request.fairness_id())
    }

    /// An answer had so many tokens.
    pub(super) fn note_output(&self, kind: Kind, tokens: u64) {
        note(&self.mean_output, tokens as f64);
        self.lengths.note(kind, tokens);
    }

    /// A stream took so long to its first token, and from there to its end.
    pub(super) fn note_times(&self, first: Duration, answer: Duration) {
        note(&self.mean_first, first.as_secs_f64());
        note(&self.mean_answer, answer.as_secs_f64());
    }

    /// Twice the geometric mean of 1 and the ratio of mean answers to mean times to a first token.
    fn urgency(&self) -> f64 {
        let mean = |bits: &AtomicU64| f64::from_bits(bits.load(Relaxed));
        let (first, answer) = (mean(&self.mean_first), mean(&self.mean_answer));
        let ratio = if first > 0.0 { answer / first } else { 1.0 };
        URGENT * ratio.sqrt().clamp(1.0, MOST_URGENT)
    }

    pub(super) fn mean_output(&self) -> f64 {
        f64::from_bits(self.mean_output.load(Relaxed))
    }

    /// The endpoint's backlog; an empty one when it is looked at first.
    pub(super) fn backlog(&self, endpoint: &Endpoint) -> Arc<Backlog> {
        let number = endpoint.slot().number() as usize;
        if let Some(Some(entry)) = self.entries.load().get(number)
            && entry.is_of(endpoint)
        {
            return Arc::clone(&entry.backlog);
        }
        self.entry(endpoint, |entry| entry.is_of(endpoint))
    }

    /// The endpoint's backlog, an empty one unless there is one that stays.
    fn entry(&self, endpoint: &Endpoint, stays: impl Fn(&Entry) -> bool) -> Arc<Backlog> {
        let _writing = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let number = endpoint.slot().number() as usize;
        let mut entries = Vec::clone(&self.entries.load());
        if entries.len() <= number {
            entries.resize(number + 1, None);
        }
        let kept = entries[number].take().filter(stays);
        let entry = kept.unwrap_or_else(|| Entry {
            slot: Arc::clone(endpoint.slot()),
            incarnation: endpoint.incarnation(),
            backlog: Arc::new(Backlog::new(self.group(endpoint))),
        });
        let backlog = Arc::clone(&entry.backlog);
        entries[number] = Some(entry);
        self.entries.store(Arc::new(entries));
        backlog
    }

    /// Learns from the times that the endpoint has measured itself. If they say that it is
    /// another process, what was learned of the endpoint alone is forgotten; its group's
    /// times stay.
    fn watch(&self, endpoint: &Endpoint) {
        let backlog = self.backlog(endpoint);
        if !backlog.read_times(endpoint.load()) {
            tracing::info!(endpoint = %endpoint.id(), "engine has restarted; what its endpoint differs by is learned anew");
            self.entry(endpoint, |entry| !Arc::ptr_eq(&entry.backlog, &backlog));
        }
    }

    /// The group that an endpoint belongs to.
    fn group(&self, endpoint: &Endpoint) -> Arc<Group> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let (key, rate) = (GroupKey::of(endpoint), self.initial_rate());
        match groups.len() {
            0 => Arc::clone(groups.entry(key).or_insert_with(|| Arc::clone(&self.default))),
            MOST_GROUPS.. => groups.get(&key).map_or_else(|| Arc::clone(&self.default), Arc::clone),
            _ => Arc::clone(groups.entry(key).or_insert_with(|| Arc::new(Group::new(rate)))),
        }
    }
}

fn note(mean: &AtomicU64, value: f64) {
    let _ = mean.fetch_update(Relaxed, Relaxed, |bits| {
        let mean = f64::from_bits(bits);
        let next = if bits == 0 { value } else { mean * KEEP_MEAN + value * (1.0 - KEEP_MEAN) };
        Some(next.to_bits())
    });
}

impl Table<'_> {
    /// Seconds until the first token of a request of which the endpoint has to compute so
    /// many tokens.
    pub fn ttft(&self, endpoint: &Endpoint, uncached: u64, reported: &Reported) -> f64 {
        let (state, speed) = self.look(endpoint, uncached as f64, reported);
        speed.first_token(&state, uncached as f64)
    }

    /// Seconds until the endpoint has a slot, and room in its KV cache, for another request with
    /// a prompt of so many tokens; 0 while it has.
    pub fn slot_wait(&self, endpoint: &Endpoint, prompt: u64, reported: &Reported) -> f64 {
        self.look(endpoint, prompt as f64, reported).0.slot_wait
    }

    /// The cost of a request at an endpoint.
    pub fn cost(&self, endpoint: &Endpoint, ask: &Ask, pool: &Pool, reported: &Reported) -> Cost {
        let (state, speed) = self.look(endpoint, ask.prompt, reported);
        speed.cost(&state, ask, pool)
    }

    /// Mean seconds from one token of the answer to the next at an endpoint.
    pub fn tpot(&self, endpoint: &Endpoint, ask: &Ask, reported: &Reported) -> f64 {
        let (state, speed) = self.look(endpoint, ask.prompt, reported);
        speed.per_output_token(&state, ask)
    }

    /// Share of its capacity that an endpoint's requests take, 0..=1; the load of
    /// [`Residuals`].
    pub fn load(&self, endpoint: &Endpoint, reported: &Reported) -> f64 {
        self.load_of(endpoint, &self.look(endpoint, 0.0, reported).0)
    }

    pub(super) fn load_of(&self, endpoint: &Endpoint, state: &State) -> f64 {
        self.known(endpoint).map_or(0.0, |backlog| backlog.load(state.requests))
    }

    /// Measured over predicted times to a first token, of endpoints as fast as this one.
    pub fn first_token_residuals(&self, endpoint: &Endpoint) -> &Residuals {
        self.group(endpoint).first_residuals()
    }

    /// Measured over predicted times per output token, of endpoints as fast as this one.
    pub fn tpot_residuals(&self, endpoint: &Endpoint) -> &Residuals {
        self.group(endpoint).step_residuals()
    }

    /// The endpoint's group; the first of all while nothing was sent there.
    fn group(&self, endpoint: &Endpoint) -> &Group {
        self.known(endpoint).map_or(&*self.model.default, Backlog::group)
    }

    /// Weight of a second before a first token, of a second of an answer being 1.
    pub fn urgency(&self) -> f64 {
        self.model.urgency()
    }

    /// A pool of so many endpoints.
    pub fn pool(&self, endpoints: usize) -> Pool {
        let (requests, tokens) = self.model.arrivals.rates(self.now);
        let endpoints = endpoints.max(1) as f64;
        let (arrivals, busy) = (requests / endpoints, tokens * self.default.per_token / endpoints);
        Pool { arrivals, busy, urgency: self.urgency() }
    }

    /// An endpoint's state, for a request with a prompt of so many tokens, and its speed.
    pub(super) fn look(&self, endpoint: &Endpoint, prompt: f64, reported: &Reported) -> (State, Speed) {
        let Reported { waiting, running, kv_usage } = *reported;
        let load = endpoint.load();
        let made;
        let backlog = match self.known(endpoint) {
            Some(backlog) => backlog,
            None => {
                // The first look at it; from now on it has the speed of its group.
                made = self.model.backlog(endpoint);
                &made
            }
        };
        let (speed, hold) = (backlog.speed(), backlog.hold());
        let prompts = backlog.queued() as f64;
        // An endpoint that only computes prompts for others' answers has none of its own in
        // flight.
        let own = (load.in_flight() as f64).max(prompts);
        let unseen = load.unseen() as f64;
        let requests = (waiting + running + unseen).max(own);
        let seen = (own - unseen).max(0.0);
        let of_others = (waiting + running - seen).min(waiting).max(0.0);
        let coming = backlog.link().tokens().max(self.unseen_tokens(load));
        let cached = self.cached(load, kv_usage, requests, coming);
        let full = kv_usage.is_some_and(|usage| usage >= FULL);
        let capacity = load.kv_capacity() * FULL;
        let short = if kv_usage.is_some() && capacity > 0.0 && cached > 0.0 {
            let needed = ((requests - running) * self.mean_prompt - coming).max(0.0) + prompt;
            // Tokens leave at the rate at which requests end, as long as it stays full.
            ahead(requests, running, backlog.slots(), false).max((cached + needed - capacity) / cached)
        } else {
            ahead(requests, running, backlog.slots(), full)
        };
        let slot_wait = short.max(0.0) * hold;
        let queued = backlog.tokens_at(1.0 / speed.per_token, self.now) + of_others * self.mean_uncached;
        (State { queued, requests, cached, slot_wait, prompts }, speed)
    }

    /// Tokens in the cache of requests under way, with those that aren't there yet.
    fn cached(&self, load: &Load, kv_usage: Option<f64>, requests: f64, coming: f64) -> f64 {
        let capacity = load.kv_capacity();
        match kv_usage.filter(|_| capacity > 0.0) {
            Some(usage) => usage * capacity + coming,
            None => requests * self.mean_prompt,
        }
    }

    /// Tokens of the prompts that an endpoint's numbers don't show yet.
    pub(super) fn unseen_tokens(&self, load: &Load) -> f64 {
        load.unseen() as f64 * self.mean_prompt
    }

    pub(super) fn now(&self) -> Duration {
        self.now
    }

    pub(super) fn known(&self, endpoint: &Endpoint) -> Option<&Backlog> {
        let entry = self.entries.get(endpoint.slot().number() as usize)?.as_ref();
        let entry = entry.filter(|entry| entry.is_of(endpoint))?;
        entry.backlog.expire(self.now);
        Some(&entry.backlog)
    }
}

/// Requests that have to end before there is a slot, or room in a full KV cache, by those that
/// run: a share of them.
fn ahead(requests: f64, running: f64, slots: f64, full: bool) -> f64 {
    let ahead = if requests >= slots {
        requests - slots + 1.0
    } else if full {
        (requests - running).max(0.0) + 1.0
    } else {
        0.0
    };
    ahead / running.max(1.0)
}

impl Kept for Model {
    fn sweep(&self, snapshot: &Snapshot, _now_ms: u64) {
        self.tell_constants();
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
