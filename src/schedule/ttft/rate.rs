//! How fast an endpoint computes prompts, learned from its first tokens.

use std::time::Duration;

/// Tokens that an endpoint is taken to have computed at the initial rate before its
/// first sample. So many tokens move the rate half of the way.
const PRIOR_TOKENS: f64 = 4096.0;

/// What remains of the earlier samples' weight after another one: a rate follows a
/// change within some requests, and endpoints that are equal look so.
const KEEP: f64 = 0.95;

/// Prompts with fewer tokens than this to compute say how long a step takes, not how
/// fast prompts are computed.
const FEWEST_TOKENS: u64 = 256;

/// Tokens over seconds, the recent ones counting most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    tokens: f64,
    seconds: f64,
    /// The tokens of these that the endpoint was only taken to have computed, and their
    /// seconds.
    prior: (f64, f64),
    /// How fast it was taken to be.
    initial: f64,
    /// When the last first token came, in the time of the clock.
    last_token: Duration,
    samples: u64,
}

impl Rate {
    /// A rate of so many tokens per second that nothing has been seen of yet.
    pub(super) fn new(initial: f64) -> Self {
        let (tokens, seconds) = (PRIOR_TOKENS, PRIOR_TOKENS / initial);
        let prior = (tokens, seconds);
        Self { tokens, seconds, prior, initial, last_token: Duration::ZERO, samples: 0 }
    }

    /// Tokens per second.
    pub(super) fn value(&self) -> f64 {
        self.tokens / self.seconds
    }

    /// Whether a first token was seen yet.
    pub(super) fn is_learned(&self) -> bool {
        self.samples > 0
    }

    /// When the last first token came.
    pub(super) fn last_token(&self) -> Duration {
        self.last_token
    }

    /// The first token of a request came at `now`; it was sent at `sent` and had so
    /// many tokens to compute. An endpoint computes one prompt after the other, so it
    /// has worked on this one since the first token before it, or since it was sent.
    pub(super) fn first_token(&mut self, tokens: u64, sent: Duration, now: Duration) {
        let service = now.saturating_sub(sent.max(self.last_token));
        self.last_token = self.last_token.max(now);
        if tokens < FEWEST_TOKENS {
            return;
        }
        self.samples += 1;
        self.prior = (self.prior.0 * KEEP, self.prior.1 * KEEP);
        self.tokens = self.tokens * KEEP + tokens as f64;
        self.seconds = self.seconds * KEEP + service.as_secs_f64();
        // Prompts that were computed in one step come at once, the later ones in no time.
        self.seconds = self.seconds.max(self.tokens * 1e-9);
    }

    /// Takes the rate to another value, as if the samples had said so.
    pub(super) fn shift_to(&mut self, value: f64) {
        if value > 0.0 && value.is_finite() {
            let seconds = self.tokens / value;
            self.prior.1 *= seconds / self.seconds;
            self.seconds = seconds;
        }
    }

    /// If it was taken to be as fast as `before`, it is taken to be as fast as `now` instead.
    /// What the samples say stays.
    pub(super) fn expect(&mut self, before: f64, now: f64) {
        if self.initial == before {
            let seconds = self.prior.0 / now;
            self.seconds = (self.seconds - self.prior.1 + seconds).max(self.tokens * 1e-9);
            (self.prior.1, self.initial) = (seconds, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_slower_endpoint_is_known_after_a_few_requests() {
        let mut rate = Rate::new(16_000.0);
        for n in 0..5 {
            // 2,000 tokens in half a second, one after the other.
            rate.first_token(2000, ms(n * 500), ms((n + 1) * 500));
        }
        assert!((4000.0..6000.0).contains(&rate.value()), "{}", rate.value());
    }

    #[test]
    fn waiting_behind_another_prompt_is_not_slowness() {
        let (mut alone, mut queued) = (Rate::new(1000.0), Rate::new(1000.0));
        for n in 0..100 {
            alone.first_token(1000, ms(n * 100), ms((n + 1) * 100));
            // All sent at once, computed one after the other.
            queued.first_token(1000, ms(0), ms((n + 1) * 100));
        }
        assert!((alone.value() - queued.value()).abs() < 1.0);
        assert!((alone.value() - 10_000.0).abs() < 1000.0);
    }

    #[test]
    fn prompts_of_one_step_count_together() {
        let mut rate = Rate::new(1000.0);
        for step in 0..50 {
            for _ in 0..4 {
                rate.first_token(500, ms(step * 100), ms((step + 1) * 100));
            }
        }
        assert!((rate.value() / 20_000.0 - 1.0).abs() < 0.5, "{}", rate.value());
    }

    #[test]
    fn short_prompts_teach_nothing() {
        let mut rate = Rate::new(1000.0);
        rate.first_token(FEWEST_TOKENS - 1, ms(0), ms(1000));
        assert!(!rate.is_learned());
        assert!((rate.value() - 1000.0).abs() < 1e-9);
        rate.first_token(5000, ms(0), ms(0));
        assert!(rate.value().is_finite());
    }
}
