//! Running totals of an endpoint's work; the difference of two gives means between them.

use std::time::Duration;

use super::group::Steps;

/// Totals of the work that an endpoint has done until a moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WorkTotals {
    pub(super) at: Duration,
    /// Streams that decode now.
    streams: f64,
    /// Their tokens in the cache.
    cached: f64,
    /// Streams and cached tokens, each times seconds.
    stream_seconds: f64,
    cached_seconds: f64,
    /// Prompt tokens computed.
    computed: f64,
}

impl WorkTotals {
    /// Counts a stream that begins to decode with `cached` tokens in the cache. Returns the totals
    /// until now.
    pub(super) fn begin(&mut self, cached: f64, now: Duration) -> Self {
        self.pass(now);
        self.streams += 1.0;
        self.cached += cached;
        *self
    }

    /// Removes a stream that began with `cached` tokens in the cache.
    pub(super) fn end(&mut self, cached: f64, now: Duration) {
        self.pass(now);
        self.streams -= 1.0;
        self.cached -= cached;
    }

    /// Adds prompt tokens that were computed.
    pub(super) fn compute(&mut self, tokens: f64, now: Duration) {
        self.pass(now);
        self.computed += tokens;
    }

    /// Means since an earlier moment, in which a stream had so many steps, and the seconds of one
    /// step. `others`: requests of other senders. `None`: no time has passed.
    pub(super) fn steps_since(&self, since: &Self, steps: f64, others: f64) -> Option<(Steps, f64)> {
        let seconds = self.at.saturating_sub(since.at).as_secs_f64();
        let seen = Steps {
            requests: (self.stream_seconds - since.stream_seconds) / seconds + others,
            cached: (self.cached_seconds - since.cached_seconds) / seconds,
            computed: (self.computed - since.computed) / steps,
        };
        (seconds > 0.0).then_some((seen, seconds / steps))
    }

    fn pass(&mut self, now: Duration) {
        let seconds = now.saturating_sub(self.at).as_secs_f64();
        self.stream_seconds += self.streams * seconds;
        self.cached_seconds += self.cached * seconds;
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_count_only_steps_since_the_start() {
        let seconds = Duration::from_secs;
        let mut totals = WorkTotals::default();
        totals.begin(100.0, seconds(0));
        totals.compute(5000.0, seconds(9));
        let since = totals.begin(50.0, seconds(10));
        totals.compute(80.0, seconds(12));
        totals.end(100.0, seconds(12));
        totals.end(50.0, seconds(14));
        let (steps, each) = totals.steps_since(&since, 8.0, 3.0).unwrap();
        assert_eq!((steps.requests, steps.cached, steps.computed), (1.5 + 3.0, 100.0, 10.0));
        assert_eq!(each, 0.5);
        assert!(totals.steps_since(&totals, 8.0, 0.0).is_none(), "no time has passed");
    }
}
