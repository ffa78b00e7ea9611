//! One endpoint: prompts sent there that it has yet to compute, streams that it decodes,
//! and its speed.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use usher_core::endpoints::{Clock, Load};
use usher_core::request::usage::CacheReports;
use usher_plugin::{Import, MalformedRecord};

use super::arrivals::Arrivals;
use super::cost::Speed;
use super::evidence::Known;
use super::fit::Fit;
use super::group::Group;
use super::histograms::{Histograms, Met};
use super::link::Link;
use super::own_times::OwnTimes;
use super::targets::Targets;
use super::time::{millis, nanos};
use super::work_totals::WorkTotals;
use crate::record::{RecordReader, RecordWriter};

/// Time after which a prompt whose first token isn't seen leaves the backlog, as a multiple of its predicted time:
/// no endpoint is taken to be slower than that.
const PATIENCE: f64 = 10.0;

/// Shortest time after which such a prompt leaves.
const PATIENCE_AT_LEAST: Duration = Duration::from_secs(10);

/// Share that counts of what should be computed by now of a prompt whose first token hasn't come.
/// The prompt was sent as a number of tokens: the time that it takes, in chunks beside others and with
/// attention to all before, is known when it is over. The best of 0, 1/2 and 1; see [`cost`](super::cost)
/// for the measurement.
const PROGRESS: f64 = 0.5;

/// Streams with fewer steps say little about the time of a step.
const FEWEST_STEPS: f64 = 8.0;

/// One endpoint's backlog and speed.
#[derive(Debug)]
pub struct Backlog {
    tokens: AtomicI64,
    /// Prompts in the queue.
    queued: AtomicU64,
    /// Tokens of the prompt that is computed now: the one that was sent first.
    head: AtomicU64,
    /// Since when, in nanoseconds of the clock.
    head_since: AtomicU64,
    /// When the next prompt leaves whose first token isn't seen, in nanoseconds of the
    /// clock; at the end of all time while there is none.
    expires: AtomicU64,
    /// Until when, in nanoseconds of the clock, it computes the prompts whose first
    /// token can't be seen, as their responses come in one piece.
    unseen_until: AtomicU64,
    /// Times that a first token, and a step, takes as long as at the others of its group,
    /// as `f64` bits.
    first_factor: AtomicU64,
    step_factor: AtomicU64,
    /// Requests that it was seen to run at most although others waited, as `f64` bits;
    /// infinite while that isn't known.
    slots: AtomicU64,
    group: Arc<Group>,
    targets: Targets,
    /// Over which KV caches come that others have computed.
    link: Link,
    /// Prompts that are sent there.
    arrivals: Arrivals,
    /// Reports of how much of a prompt was cached.
    reports: CacheReports,
    /// Mean seconds from the first token to the last, as `f64` bits; 0: not known.
    hold: AtomicU64,
    /// Latest page of its histograms that was read.
    times_version: AtomicU64,
    // Taken when a prompt is booked, when it leaves, and about once a second.
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Prompts whose first token hasn't come, in the order in which they were sent.
    queue: VecDeque<Waiting>,
    next: u64,
    own: OwnTimes,
    totals: WorkTotals,
    histograms: Histograms,
}

/// A prompt whose first token hasn't come.
#[derive(Debug)]
struct Waiting {
    /// Number of the prompt.
    number: u64,
    tokens: u64,
    /// Time at which it leaves, whatever is seen.
    expires: Duration,
}

impl Backlog {
    pub(super) fn new(group: Arc<Group>) -> Self {
        Self {
            tokens: AtomicI64::new(0),
            queued: AtomicU64::new(0),
            head: AtomicU64::new(0),
            head_since: AtomicU64::new(0),
            expires: AtomicU64::new(u64::MAX),
            unseen_until: AtomicU64::new(0),
            first_factor: AtomicU64::new(1f64.to_bits()),
            step_factor: AtomicU64::new(1f64.to_bits()),
            slots: AtomicU64::new(f64::INFINITY.to_bits()),
            group,
            targets: Targets::default(),
            link: Link::default(),
            arrivals: Arrivals::default(),
            reports: CacheReports::default(),
            hold: AtomicU64::new(0),
            times_version: AtomicU64::new(0),
            inner: Mutex::default(),
        }
    }

    /// The same of an engine that was seen to be another process now, which started then.
    pub(super) fn restarted(group: Arc<Group>, started: Option<f64>, now_ms: u64) -> Self {
        let mut inner = Inner { own: OwnTimes::restarted(now_ms), ..Inner::default() };
        if let Some(started) = started {
            inner.histograms.expect(started);
        }
        Self { inner: Mutex::new(inner), ..Self::new(group) }
    }

    /// Tokens of prompts that it has yet to compute.
    pub fn tokens(&self, now: Duration) -> f64 {
        let rate = self.rate();
        self.seconds(1.0 / rate, nanos(now)) * rate
    }

    /// Seconds to compute them, at `now` in nanoseconds of the clock, where each takes `per_token`.
    pub(super) fn seconds(&self, per_token: f64, now: u64) -> f64 {
        let seconds = |nanos: u64| nanos as f64 * 1e-9;
        let seen = self.tokens.load(Relaxed).max(0) as f64 * per_token;
        let computed = seconds(now.saturating_sub(self.head_since.load(Relaxed)));
        // No more than one prompt: an endpoint that doesn't respond doesn't look idle.
        let head = self.head.load(Relaxed) as f64 * per_token;
        let seen = (seen - PROGRESS * computed.min(head)).max(0.0);
        seen + seconds(self.unseen_until.load(Relaxed).saturating_sub(now))
    }

    /// Time at which the next prompt leaves whose first token isn't seen, in nanoseconds of the clock.
    pub(super) fn expires(&self) -> u64 {
        self.expires.load(Relaxed)
    }

    /// Tokens that it computes per second.
    pub fn rate(&self) -> f64 {
        1.0 / (self.group.speed().per_token * self.first_factor())
    }

    /// Learned speed of the endpoint.
    pub fn speed(&self) -> Speed {
        let (first, step) = (self.first_factor(), f64::from_bits(self.step_factor.load(Relaxed)));
        let speed = self.group.speed();
        Speed {
            first: speed.first * first,
            first_per_request: speed.first_per_request * first,
            per_token: speed.per_token * first,
            step: speed.step * step,
            step_per_request: speed.step_per_request * step,
            step_per_cached: speed.step_per_cached * step,
            step_per_computed: speed.step_per_computed * step,
            per_output: speed.per_output.times(step),
        }
    }

    fn first_factor(&self) -> f64 {
        f64::from_bits(self.first_factor.load(Relaxed))
    }

    /// Requests that can run there at a time; infinite while that isn't known.
    pub fn slots(&self) -> f64 {
        f64::from_bits(self.slots.load(Relaxed))
    }

    /// Share of its capacity that so many requests are, 0..=1: of the requests that can run
    /// there, or of the most that one endpoint of its group had lately while that isn't known.
    pub(super) fn load(&self, requests: f64) -> f64 {
        let slots = self.slots();
        let capacity = if slots.is_finite() { slots } else { self.group.most_requests() };
        (requests / capacity.max(1.0)).clamp(0.0, 1.0)
    }

    /// Endpoints that should be as fast.
    pub(super) fn group(&self) -> &Group {
        &self.group
    }

    /// Latency targets of the requests that decode there.
    pub(super) fn targets(&self) -> &Targets {
        &self.targets
    }

    /// Over which KV caches come that others have computed.
    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    /// Prompts that are sent there.
    pub(super) fn arrivals(&self) -> &Arrivals {
        &self.arrivals
    }

    /// Reports of how much of a prompt was cached.
    pub(super) fn reports(&self) -> &CacheReports {
        &self.reports
    }

    /// Mean seconds for which a request holds a slot; 0 while nothing is known.
    pub fn hold(&self) -> f64 {
        f64::from_bits(self.hold.load(Relaxed))
    }

    /// Prompts whose first token will be seen and hasn't come.
    pub fn queued(&self) -> u64 {
        self.queued.load(Relaxed)
    }

    /// Adds a prompt. Returns the number that it has there.
    pub(super) fn add(&self, tokens: u64, now: Duration) -> u64 {
        let mut inner = self.inner();
        let takes = (self.tokens(now) + tokens as f64) / self.rate() * PATIENCE;
        let patience = Duration::try_from_secs_f64(takes).unwrap_or(Duration::MAX);
        let expires = now.saturating_add(patience.max(PATIENCE_AT_LEAST));
        let number = inner.next;
        inner.next += 1;
        inner.queue.push_back(Waiting { number, tokens, expires });
        self.tokens.fetch_add(signed(tokens), Relaxed);
        self.expires.fetch_min(nanos(expires), Relaxed);
        self.changed(&inner, inner.queue.len() == 1, now);
        number
    }

    /// Takes out the prompt of this number, if it is still there.
    pub(super) fn take(&self, number: u64, now: Duration) {
        let mut inner = self.inner();
        let Some(place) = inner.queue.iter().position(|waiting| waiting.number == number) else { return };
        let Some(taken) = inner.queue.remove(place) else { return };
        self.tokens.fetch_sub(signed(taken.tokens), Relaxed);
        self.changed(&inner, place == 0, now);
    }

    /// Takes out the prompts whose first token should have been seen long ago: the gateway
    /// doesn't show it, or there is none.
    pub(super) fn expire(&self, now: Duration) {
        let mut inner = self.inner();
        let head = inner.queue.front().map(|waiting| waiting.number);
        inner.queue.retain(|waiting| {
            let stays = waiting.expires > now;
            if !stays {
                self.tokens.fetch_sub(signed(waiting.tokens), Relaxed);
            }
            stays
        });
        let next = inner.queue.iter().map(|waiting| waiting.expires).min();
        self.expires.store(next.map_or(u64::MAX, nanos), Relaxed);
        self.changed(&inner, inner.queue.front().map(|waiting| waiting.number) != head, now);
    }

    /// The queue has changed, perhaps at its head.
    fn changed(&self, inner: &Inner, head: bool, now: Duration) {
        self.queued.store(inner.queue.len() as u64, Relaxed);
        if head {
            self.begin(inner, now);
        }
    }

    /// The first prompt in the queue is computed from now on.
    fn begin(&self, inner: &Inner, now: Duration) {
        self.head.store(inner.queue.front().map_or(0, |waiting| waiting.tokens), Relaxed);
        self.head_since.store(nanos(now), Relaxed);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a prompt whose end isn't observed. Returns how long it takes, and when it
    /// should be computed.
    pub(super) fn add_unseen(&self, tokens: u64, now: Duration) -> (Duration, Duration) {
        let (now, more) = (nanos(now), self.nanos_for(tokens));
        let after = |until: u64| until.max(now).saturating_add(more);
        let before = self.unseen_until.fetch_update(Relaxed, Relaxed, |until| Some(after(until)));
        (Duration::from_nanos(more), Duration::from_nanos(after(before.unwrap_or(now))))
    }

    /// Takes out what is left of such a prompt, which takes so long and should be computed
    /// at `due`.
    pub(super) fn take_unseen(&self, takes: Duration, due: Duration, now: Duration) {
        let less = nanos(takes.min(due.saturating_sub(now)));
        let _ = self.unseen_until.fetch_update(Relaxed, Relaxed, |until| Some(until.saturating_sub(less)));
    }

    fn nanos_for(&self, tokens: u64) -> u64 {
        // Saturates, as casts from floats do.
        (tokens as f64 / self.rate() * 1e9) as u64
    }

    /// A prompt is computed. `first`: the first token came after so many seconds, of which
    /// the KV cache moved for the second number as configured; `None`: something else made it wait.
    /// `sent`: requests that were there, and tokens to compute with its own.
    pub(super) fn computed(&self, sent: (f64, f64), tokens: u64, first: Option<(f64, f64)>, now: Duration) {
        let mut inner = self.inner();
        if let Some((seconds, moved)) = first {
            let ratio =
                self.group.first_token(sent.0, sent.1, moved, seconds, self.first_factor(), millis(now));
            inner.own.first.observed(millis(now)).observe(ratio);
            self.first_factor.store(inner.own.first.value().to_bits(), Relaxed);
        }
        inner.histograms.streamed();
        inner.totals.compute(tokens as f64, now);
    }

    /// A stream with so many tokens in the cache begins to decode. Returns the totals until now.
    pub(super) fn stream_begins(&self, cached: f64, now: Duration) -> WorkTotals {
        self.inner().totals.begin(cached, now)
    }

    /// A stream has ended that began to decode when the totals were `since`: after so many
    /// tokens, or early. `others`: requests of other senders.
    pub(super) fn stream_ended(
        &self,
        since: &WorkTotals,
        cached: f64,
        tokens: Option<f64>,
        others: f64,
        now: Duration,
    ) {
        let mut inner = self.inner();
        inner.totals.end(cached, now);
        let Some(steps) = steps(tokens) else { return };
        let Some((steps_seen, seconds)) = inner.totals.steps_since(since, steps, others) else { return };
        let factor = f64::from_bits(self.step_factor.load(Relaxed));
        let ratio = self.group.steps(&steps_seen, seconds, factor, millis(now));
        inner.own.step.observed(millis(now)).observe(ratio);
        self.step_factor.store(inner.own.step.value().to_bits(), Relaxed);
    }

    /// A request was sent there. `is_stream`: its first token should be seen.
    pub(super) fn sent(&self, met: Met, is_stream: bool) {
        self.inner().histograms.sent(met, is_stream);
    }

    /// The first token of a request that was sent there as a stream won't be seen.
    pub(super) fn hidden(&self, met: Met) {
        self.inner().histograms.hidden(met);
    }

    /// A response that was decided at `requests` and `cached` tokens there took so many seconds
    /// per token.
    pub(super) fn responded(&self, requests: f64, cached: f64, seconds: f64, now: Duration) {
        let factor = f64::from_bits(self.step_factor.load(Relaxed));
        self.group.per_output(requests, cached, seconds, factor, millis(now));
    }

    /// Learns from the latest page of its histograms, once, where responses have `output` tokens on average. False: they
    /// are of another process than those before.
    pub(super) fn read_times(&self, load: &Load, output: f64, clock: &Clock) -> bool {
        let version = load.engine_times.version();
        if self.times_version.swap(version, Relaxed) == version {
            return true;
        }
        let mut inner = self.inner();
        let in_flight = usize::try_from(load.in_flight()).unwrap_or(0);
        let Some(means) = inner.histograms.read(version, load.engine_times.get(), in_flight, output) else {
            return false;
        };
        let now_ms = millis(clock.elapsed());
        if let Some((requests, tokens, seconds)) = means.first {
            let ratio = self.group.first_token(requests, tokens, 0.0, seconds, self.first_factor(), now_ms);
            inner.own.first.observed(now_ms).observe(ratio);
            self.first_factor.store(inner.own.first.value().to_bits(), Relaxed);
        }
        if let Some((steps, seconds)) = means.step {
            let factor = f64::from_bits(self.step_factor.load(Relaxed));
            let ratio = self.group.steps(&steps, seconds, factor, now_ms);
            self.group.per_output(steps.requests, steps.cached, seconds, factor, now_ms);
            inner.own.step.observed(now_ms).observe(ratio);
            self.step_factor.store(inner.own.step.value().to_bits(), Relaxed);
        }
        true
    }

    /// Start of the engine of which it was learned, in seconds of Unix time, if that is known.
    pub(super) fn started(&self) -> Option<f64> {
        self.inner().histograms.started()
    }

    /// Writes what was learned of this endpoint alone.
    pub(super) fn write(&self, out: &mut RecordWriter) {
        self.inner().own.write(out);
        self.link.write(out);
    }

    /// Takes over what another replica knows better of an engine that started then. Returns `true` if that is something. Of a
    /// restart that only one of the two has seen, it tells the other: nothing from before it counts.
    pub(super) fn import(&self, theirs: LearnedEndpoint, started: Option<f64>, now_ms: u64) -> bool {
        let mut inner = self.inner();
        match theirs.own.compare_process(&inner.own) {
            // A replica may see a restart late. The start of the engine tells more than that.
            _ if inner.histograms.is_of(started) => inner.own.restarted_by(&theirs.own),
            Ordering::Less => return false,
            Ordering::Equal => {}
            Ordering::Greater => {
                self.link.forget();
                inner.own = theirs.own.emptied();
                // The next page is the first one of this process: its counts are no restart of their own.
                inner.histograms = Histograms::default();
            }
        }
        if let Some(started) = started {
            inner.histograms.expect(started);
        }
        let is_better = inner.own.merge(&theirs.own, now_ms);
        self.publish(&inner.own);
        theirs.link.is_some_and(|link| self.link.replace(link, now_ms)) || is_better
    }

    fn publish(&self, own: &OwnTimes) {
        self.first_factor.store(own.first.value().to_bits(), Relaxed);
        self.step_factor.store(own.step.value().to_bits(), Relaxed);
        self.slots.store(own.slots.requests().to_bits(), Relaxed);
        self.hold.store(own.hold.to_bits(), Relaxed);
    }

    /// A reading said that so many requests run and so many wait.
    pub(super) fn note_running(&self, running: f64, waiting: f64, read_at_ms: Option<u64>) {
        if let Some(slots) = self.inner().own.slots.note(running, waiting, read_at_ms) {
            self.slots.store(slots.to_bits(), Relaxed);
        }
    }

    /// A request held a slot for so long.
    pub(super) fn finished(&self, held: Duration, now: Duration) {
        let mut inner = self.inner();
        inner.own.held(held.as_secs_f64(), millis(now));
        self.hold.store(inner.own.hold.to_bits(), Relaxed);
    }
}

/// Estimates of an endpoint and its link as another process has learned them.
#[derive(Debug)]
pub(super) struct LearnedEndpoint {
    own: OwnTimes,
    link: Option<Known<Fit<2>>>,
}

impl LearnedEndpoint {
    pub(super) fn read(record: &mut RecordReader<'_>, cx: &Import<'_>) -> Result<Self, MalformedRecord> {
        Ok(Self { own: OwnTimes::read(record, cx)?, link: Some(Link::default().read(record, cx)?) })
    }

    /// Leaves out its link.
    pub(super) fn without_link(self) -> Self {
        Self { link: None, ..self }
    }
}

/// Steps after the first of a response of so many tokens, where they are enough to say
/// something about the time of one.
pub(super) fn steps(tokens: Option<f64>) -> Option<f64> {
    tokens.map(|tokens| tokens - 1.0).filter(|steps| *steps >= FEWEST_STEPS)
}

fn signed(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}
