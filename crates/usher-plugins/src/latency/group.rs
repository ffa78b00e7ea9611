//! Endpoints that should be equally fast, because their labels say that they have the same
//! accelerator and role: what one learns, a new one starts with.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use usher_plugin::{Import, MalformedRecord};

use super::cost::{PerOutput, Speed};
use super::evidence::{Evidence, Known};
use super::fit::Fit;
use super::residuals::{Residuals, Windows};
use crate::record::{RecordReader, RecordWriter};

/// Expected before anything is learned, in seconds: to a first token with nothing to
/// compute, and more per request there; a step, and more per request and per cached token
/// in it. Near an 8-billion-parameter model on an 80 GB GPU.
const FIRST: f64 = 0.03;
const FIRST_PER_REQUEST: f64 = 5e-4;
const STEP: f64 = 0.015;
const STEP_PER_REQUEST: f64 = 1.5e-4;
const STEP_PER_CACHED: f64 = 5e-8;

/// Part of the most requests at an endpoint that remains after another decision: an hour
/// with many doesn't make all later ones look idle.
const KEEP_REQUESTS: f64 = 0.999;

/// Fewest requests that count as many at an endpoint.
const FEWEST_REQUESTS: f64 = 8.0;

/// Coefficients are at least this part of those expected: no load is ever free.
const LEAST: f64 = 0.05;

/// Times as long as configured that transfers are expected to take.
const EXPECTED_TRANSFER: f64 = 1.0;

/// Standard deviation at first of how many times as long as configured transfers take, in the
/// time to a first token. Where nothing is cached, prompts and transfers are as long as each other, and
/// only what is expected of the two distinguishes them: it should be prompts that differ.
const TRANSFER_DEVIATION: f64 = 0.1;

/// Times of a group's endpoints.
#[derive(Debug)]
pub(super) struct Group {
    /// [`Speed`], as `f64` bits.
    speed: [AtomicU64; 10],
    most_requests: MostRequests,
    first_residuals: Residuals,
    step_residuals: Residuals,
    /// The log says that what is configured is far from what was learned.
    has_warned: AtomicBool,
    // Taken when a first token comes, and when a stream has ended.
    inner: Mutex<Inner>,
}

/// Requests at one endpoint at most, lately, as `f64` bits. Every booking writes it, so that it has a
/// cache line to itself: decisions read the times beside it for each endpoint.
#[derive(Debug)]
#[repr(align(128))]
struct MostRequests(AtomicU64);

#[derive(Clone, Debug)]
struct Inner {
    first: Known<Fit<4>>,
    step: Known<Fit<4>>,
    per_output: Known<Fit<3>>,
}

/// Times of a group as another process has learned them.
#[derive(Debug)]
pub(super) struct LearnedGroup {
    inner: Inner,
    most_requests: f64,
    residuals: [Windows; 2],
    /// They were learned where other transfers are configured.
    has_other_transfers: bool,
}

/// Conditions under which a stream's tokens came, means over its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Steps {
    /// Requests that decoded.
    pub(super) requests: f64,
    /// Their tokens in the cache.
    pub(super) cached: f64,
    /// Prompt tokens computed per step.
    pub(super) computed: f64,
}

impl Group {
    /// A group that computes so many prompt tokens per second, and knows nothing else.
    pub(super) fn new(rate: f64) -> Self {
        let inner = Inner::new(rate);
        let group = Self {
            speed: Default::default(),
            most_requests: MostRequests(AtomicU64::new(FEWEST_REQUESTS.to_bits())),
            first_residuals: Residuals::default(),
            step_residuals: Residuals::default(),
            has_warned: AtomicBool::new(false),
            inner: Mutex::new(Inner::new(rate)),
        };
        group.publish(&inner);
        group
    }

    /// Times of its endpoints now.
    pub(super) fn speed(&self) -> Speed {
        let at = |n: usize| f64::from_bits(self.speed[n].load(Relaxed));
        Speed {
            first: at(0),
            first_per_request: at(1),
            per_token: at(2),
            step: at(3),
            step_per_request: at(4),
            step_per_cached: at(5),
            step_per_computed: at(6),
            per_output: PerOutput { base: at(7), per_request: at(8), per_cached: at(9) },
        }
    }

    /// Measured over predicted times to a first token.
    pub(super) fn first_residuals(&self) -> &Residuals {
        &self.first_residuals
    }

    /// Measured over predicted times from one token to the next.
    pub(super) fn step_residuals(&self) -> &Residuals {
        &self.step_residuals
    }

    /// Requests that one of its endpoints had at most, lately.
    pub(super) fn most_requests(&self) -> f64 {
        f64::from_bits(self.most_requests.0.load(Relaxed))
    }

    /// One of its endpoints has so many requests. A number may be wrong, so one alone at most doubles
    /// what is known.
    pub(super) fn note_requests(&self, requests: f64) {
        let _ = self.most_requests.0.fetch_update(Relaxed, Relaxed, |bits| {
            let most = f64::from_bits(bits);
            let kept = most * KEEP_REQUESTS;
            Some(kept.max(requests.min(2.0 * most)).max(FEWEST_REQUESTS).to_bits())
        });
    }

    /// Notes whether what is configured is far from what was learned. Returns `true` when that is new.
    pub(super) fn warns(&self, is_far: bool) -> bool {
        self.has_warned.swap(is_far, Relaxed) != is_far && is_far
    }

    /// Learned times to a first token so far.
    pub(super) fn samples(&self) -> u64 {
        self.inner().first.samples()
    }

    /// Time of its last observation on this process's clock in milliseconds, negative before this process began; `None`: there
    /// was none.
    pub(super) fn observed_ms(&self) -> Option<i64> {
        self.inner().observed_ms()
    }

    /// Expects another rate as long as nothing was learned.
    pub(super) fn expect(&self, rate: f64) {
        let mut inner = self.inner();
        if inner.first.samples() == 0 {
            inner.first = Inner::new(rate).first;
        }
        if inner.step.samples() == 0 {
            inner.step = Inner::new(rate).step;
        }
        self.publish(&inner);
    }

    /// A first token came after so many seconds, with so many requests there and so many
    /// tokens to compute, at an endpoint that takes `factor` times as long as the others. `moved`:
    /// seconds that its KV cache takes to another endpoint, as configured. Returns how many
    /// times the predicted time it took.
    ///
    /// Transfers have a coefficient of their own. If their learned time were subtracted first, a link
    /// that looks slow would make prompts look fast, and these the link slower.
    pub(super) fn first_token(
        &self,
        requests: f64,
        tokens: f64,
        moved: f64,
        seconds: f64,
        factor: f64,
        now_ms: u64,
    ) -> f64 {
        let mut inner = self.inner();
        let inputs = [1.0, requests, tokens, moved / factor];
        let ratio = seconds / inner.first.predict(&inputs);
        inner.first.observed(now_ms).observe(&inputs, seconds / factor);
        self.publish(&inner);
        ratio
    }

    /// Tokens of a stream came every so many seconds, likewise.
    pub(super) fn steps(&self, steps: &Steps, seconds: f64, factor: f64, now_ms: u64) -> f64 {
        let mut inner = self.inner();
        let inputs = [1.0, steps.requests, steps.cached, steps.computed];
        let ratio = seconds / inner.step.predict(&inputs);
        inner.step.observed(now_ms).observe(&inputs, seconds / factor);
        self.publish(&inner);
        ratio
    }

    /// A response took so many seconds per token, where there were so many requests and tokens
    /// in the cache when it was decided.
    pub(super) fn per_output(&self, requests: f64, cached: f64, seconds: f64, factor: f64, now_ms: u64) {
        let mut inner = self.inner();
        inner.per_output.observed(now_ms).observe(&[1.0, requests, cached], seconds / factor);
        self.publish(&inner);
    }

    /// Forgets how many times as long as configured transfers take.
    pub(super) fn forget_transfers(&self) {
        self.inner().forget_transfers();
    }

    /// Writes what was learned; nothing if that is nothing.
    pub(super) fn write(&self, out: &mut RecordWriter) {
        let inner = self.inner().clone();
        inner.first.write(out, Fit::write);
        inner.step.write(out, Fit::write);
        inner.per_output.write(out, Fit::write);
        out.f64(self.most_requests());
        self.first_residuals.write(out);
        self.step_residuals.write(out);
    }

    /// Returns `true` if nothing was learned.
    pub(super) fn is_new(&self) -> bool {
        let inner = self.inner();
        [inner.first.samples(), inner.step.samples(), inner.per_output.samples()] == [0; 3]
    }

    /// Reads what another process learned of such a group.
    pub(super) fn read(
        &self,
        record: &mut RecordReader<'_>,
        cx: &Import<'_>,
    ) -> Result<LearnedGroup, MalformedRecord> {
        let Inner { first, step, per_output } = self.inner().clone();
        let inner = Inner {
            first: Known::read(record, cx, |record| first.estimate.read(record))?,
            step: Known::read(record, cx, |record| step.estimate.read(record))?,
            per_output: Known::read(record, cx, |record| per_output.estimate.read(record))?,
        };
        let most_requests = record.f64(FEWEST_REQUESTS..=1e6)?;
        let residuals = [Windows::read(record)?, Windows::read(record)?];
        Ok(LearnedGroup { inner, most_requests, residuals, has_other_transfers: false })
    }

    /// Takes over what another process knows better. Returns `true` if that is something.
    pub(super) fn replace(&self, theirs: LearnedGroup, now_ms: u64) -> bool {
        let LearnedGroup { inner: theirs, most_requests, residuals: [first, step], has_other_transfers } =
            theirs;
        let mut inner = self.inner();
        // Theirs say nothing of our transfers, of which ours may.
        let keeps_first = has_other_transfers && inner.first.samples() > 0;
        let is_better = [
            !keeps_first && theirs.first.replace(&mut inner.first, now_ms),
            theirs.step.replace(&mut inner.step, now_ms),
            theirs.per_output.replace(&mut inner.per_output, now_ms),
        ];
        self.publish(&inner);
        if is_better[0] {
            self.first_residuals.set(first);
            let _ = self.most_requests.0.fetch_max(most_requests.to_bits(), Relaxed);
        }
        if is_better[1] {
            self.step_residuals.set(step);
        }
        is_better.contains(&true)
    }

    fn publish(&self, inner: &Inner) {
        let [first, first_per_request, per_token, _] = inner.first.coefficients();
        let [step, step_per_request, step_per_cached, step_per_computed] = inner.step.coefficients();
        let times =
            [first, first_per_request, per_token, step, step_per_request, step_per_cached, step_per_computed];
        let all = times.into_iter().chain(inner.per_output.coefficients());
        for (bits, value) in self.speed.iter().zip(all) {
            bits.store(value.to_bits(), Relaxed);
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LearnedGroup {
    /// Time of its last observation, likewise.
    pub(super) fn observed_ms(&self) -> Option<i64> {
        self.inner.observed_ms()
    }

    /// Leaves out how many times as long as configured transfers take.
    pub(super) fn forget_transfers(&mut self) {
        self.has_other_transfers = true;
        self.inner.forget_transfers();
    }
}

impl Inner {
    fn observed_ms(&self) -> Option<i64> {
        let Self { first, step, per_output } = self;
        [first.evidence, step.evidence, per_output.evidence].into_iter().filter_map(Evidence::at_ms).max()
    }

    fn forget_transfers(&mut self) {
        // The last input of a first token is their time as configured.
        self.first.estimate.forget(3, EXPECTED_TRANSFER);
    }

    fn new(rate: f64) -> Self {
        let first = [FIRST, FIRST_PER_REQUEST, 1.0 / rate, EXPECTED_TRANSFER];
        let deviation = [FIRST, FIRST_PER_REQUEST, 1.0 / rate, TRANSFER_DEVIATION];
        let step = [STEP, STEP_PER_REQUEST, STEP_PER_CACHED, 1.0 / rate];
        let per_output = [STEP, STEP_PER_REQUEST, STEP_PER_CACHED];
        Self {
            first: Known::new(Fit::with_deviation(first, first.map(|value| value * LEAST), deviation)),
            step: Known::new(Fit::new(step, step.map(|value| value * LEAST))),
            per_output: Known::new(Fit::new(per_output, per_output.map(|value| value * LEAST))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_speed_is_learned_from_endpoints_of_any_speed() {
        let group = Group::new(16_000.0);
        for n in 0..400 {
            let tokens = f64::from(n % 10 + 1) * 500.0;
            let takes = 0.02 + tokens / 8000.0;
            // Every fourth request is at an endpoint of half the speed, which is known.
            let factor = if n % 4 == 0 { 2.0 } else { 1.0 };
            group.first_token(0.0, tokens, 0.0, takes * factor, factor, 0);
        }
        assert!((group.speed().per_token * 8000.0 - 1.0).abs() < 0.05, "{:?}", group.speed());
        assert!((group.first_token(0.0, 4000.0, 0.0, 2.08, 2.0, 0) / 4.0 - 1.0).abs() < 0.1);
    }

    #[test]
    fn step_model_separates_prefill_from_batch_cost() {
        let group = Group::new(16_000.0);
        for n in 0..2000u32 {
            let steps = Steps {
                requests: f64::from(n % 40),
                cached: f64::from(n % 40) * 1000.0 + f64::from(n % 7) * 5000.0,
                computed: f64::from(n * 7919 % 400),
            };
            let takes = 0.012 + 2e-4 * steps.requests + 1e-7 * steps.cached + 1e-4 * steps.computed;
            group.steps(&steps, takes, 1.0, 0);
        }
        let speed = group.speed();
        assert!((speed.step / 0.012 - 1.0).abs() < 0.1, "{speed:?}");
        assert!((speed.step_per_request / 2e-4 - 1.0).abs() < 0.25, "{speed:?}");
    }

    #[test]
    fn expected_speed_counts_until_one_is_learned() {
        let group = Group::new(1000.0);
        group.expect(2000.0);
        assert_eq!(group.speed().per_token, 1.0 / 2000.0);
        group.first_token(0.0, 1000.0, 0.0, 0.5, 1.0, 0);
        let learned = group.speed();
        group.expect(9000.0);
        assert_eq!(group.speed().per_token, learned.per_token);
    }
}
