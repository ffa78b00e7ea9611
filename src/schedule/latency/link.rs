//! The link over which KV caches come to an endpoint that decodes: what is on its way, and
//! how fast it is.
//!
//! Transfers to one endpoint share its link, so one that begins now ends after all that are
//! on their way. When others begin isn't seen; they count as if each began when it was booked,
//! which makes the same queue, only earlier. How fast the link is follows from first tokens: the time until one is there,
//! less the time that the prompt should have taken.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::endpoints::Nearness;

use super::backlog::{Backlog, nanos};
use super::fit::Fit;

/// Times that a transfer takes as long as configured, and times that a prompt takes as long
/// as predicted, before anything is learned.
const EXPECTED: [f64; 2] = [1.0, 1.0];

/// Standard deviations of the two at first. The speed of prompts is learned elsewhere, so the
/// link has to explain the most of what isn't predicted.
const DEVIATION: [f64; 2] = [0.1, 1.0];

/// Smallest values of the two.
const LEAST: [f64; 2] = [0.5, 0.01];

/// Seconds per token that a KV cache takes between two endpoints alone on their link, by how
/// near they are, as configured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transfers([f64; Nearness::ALL.len()]);

impl Transfers {
    /// Transfers at these bytes per second, of so many bytes per token.
    pub fn new(bytes_per_second: impl Fn(Nearness) -> f64, bytes_per_token: f64) -> Self {
        Self(Nearness::ALL.map(|nearness| bytes_per_token / bytes_per_second(nearness)))
    }

    /// Seconds per token.
    pub fn per_token(&self, nearness: Nearness) -> f64 {
        self.0.get(nearness as usize).copied().unwrap_or_default()
    }
}

/// An endpoint's link.
#[derive(Debug)]
pub(super) struct Link {
    /// Until when, in nanoseconds of the clock, it is busy.
    until: AtomicU64,
    /// Tokens of prompts that others compute and that will be in the endpoint's KV cache.
    tokens: AtomicI64,
    /// Times that a transfer takes as long as configured, as `f64` bits.
    factor: AtomicU64,
    // Taken when a first token comes of a prompt that another endpoint computed.
    fit: Mutex<Fit<2>>,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            until: AtomicU64::new(0),
            tokens: AtomicI64::new(0),
            factor: AtomicU64::new(1f64.to_bits()),
            fit: Mutex::new(Fit::with_deviation(EXPECTED, LEAST, DEVIATION)),
        }
    }
}

impl Link {
    /// Times that a transfer takes as long as configured.
    pub(super) fn factor(&self) -> f64 {
        f64::from_bits(self.factor.load(Relaxed))
    }

    /// Seconds that the transfers still take which are booked there.
    pub(super) fn busy(&self, now: Duration) -> f64 {
        Duration::from_nanos(self.until.load(Relaxed)).saturating_sub(now).as_secs_f64()
    }

    /// Tokens of prompts that are on their way to the endpoint's KV cache.
    pub(super) fn tokens(&self) -> f64 {
        self.tokens.load(Relaxed).max(0) as f64
    }

    /// A first token came after so many seconds, where computing the prompt and waiting should
    /// have taken `computed`, and moving it alone `alone` as configured.
    fn observe(&self, computed: f64, alone: f64, seconds: f64) {
        let mut fit = self.fit.lock().unwrap_or_else(PoisonError::into_inner);
        fit.observe(&[computed, alone], seconds);
        self.factor.store(fit.coefficients()[1].to_bits(), Relaxed);
    }
}

/// Seconds of a transfer, with others on its link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Moved {
    /// With links as fast as learned.
    pub(super) expected: f64,
    /// With links as fast as configured.
    pub(super) configured: f64,
}

/// A KV cache that is yet to come to the endpoint that decodes.
#[derive(Debug)]
pub(super) struct Moving {
    decode: Arc<Backlog>,
    /// Seconds that it takes alone, as configured, and that others on the link add.
    alone: f64,
    others: f64,
    /// Seconds until the prompt should be computed; `None`: that isn't known.
    computed: Option<f64>,
    /// Tokens that it counts for while its first token hasn't come.
    tokens: i64,
}

impl Moving {
    /// A transfer to `decode` that takes `alone` seconds as configured, of a prompt of so many
    /// tokens that should be computed after `computed` seconds. `is_seen`: its first token will
    /// be.
    pub(super) fn new(
        decode: &Arc<Backlog>,
        alone: f64,
        computed: Option<f64>,
        tokens: u64,
        is_seen: bool,
        now: Duration,
    ) -> Self {
        let link = decode.link();
        let takes = Duration::try_from_secs_f64(alone * link.factor()).unwrap_or_default();
        let others = (link.busy(now) - computed.unwrap_or_default()).max(0.0);
        let after = |until: u64| Some(until.max(nanos(now)).saturating_add(nanos(takes)));
        let _ = link.until.fetch_update(Relaxed, Relaxed, after);
        // Otherwise nobody would say when they are there.
        let tokens = if is_seen { i64::try_from(tokens).unwrap_or(i64::MAX) } else { 0 };
        link.tokens.fetch_add(tokens, Relaxed);
        Self { decode: Arc::clone(decode), alone, others, computed, tokens }
    }

    /// The first token came after so many seconds. Returns how many of them the transfer should
    /// have taken with others on its link.
    pub(super) fn arrived(&self, seconds: f64) -> Moved {
        let link = self.decode.link();
        let factor = link.factor();
        let moved = Moved {
            expected: self.others + self.alone * factor,
            configured: self.others / factor + self.alone,
        };
        if let Some(computed) = self.computed {
            link.observe(computed + self.others, self.alone, seconds);
        }
        moved
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        self.decode.link().tokens.fetch_sub(self.tokens, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::cost::State;
    use super::super::group::Group;
    use super::*;
    use crate::sim::mix;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn endpoint() -> Arc<Backlog> {
        Arc::new(Backlog::new(Arc::new(Group::new(16_000.0))))
    }

    #[test]
    fn transfers_share_the_link_for_as_long_as_they_take() {
        let decode = endpoint();
        let moving = |seen| Moving::new(&decode, 0.5, Some(0.1), 1000, seen, Duration::ZERO);
        let busy = |now| (decode.link().busy(now) * 1e3).round();
        let booked = [moving(true), moving(true), moving(false)];
        assert_eq!(decode.link().tokens(), 2000.0, "as far as it will be seen when they are there");
        assert_eq!([ms(0), ms(700), ms(1600)].map(busy), [1500.0, 800.0, 0.0]);
        assert!(
            (moving(true).arrived(1.9).expected - 1.9).abs() < 1e-9,
            "its own half and what is left of the others"
        );
        drop(booked);
        assert_eq!(decode.link().tokens(), 0.0);
    }

    #[test]
    fn slow_and_fast_links_are_learned() {
        for truth in [8.0, 0.25] {
            let decode = endpoint();
            let draw = |n: u64| (mix(n) >> 11) as f64 / (1u64 << 53) as f64;
            for n in 0..400 {
                let (computed, alone) = (0.05 + 0.2 * draw(3 * n), 0.05 * draw(3 * n + 1));
                let noise = 0.9 + 0.2 * draw(3 * n + 2);
                let seconds = (computed + truth * alone) * noise;
                Moving::new(&decode, alone, Some(computed), 1000, true, ms(5000 * n)).arrived(seconds);
            }
            let factor = decode.link().factor();
            assert!((factor / truth).ln().abs() < 0.35, "{truth}: {factor}");
        }
    }

    #[test]
    fn prompts_and_transfers_that_grow_alike_do_not_drift() {
        // Nothing is cached, so that one is always so many times the other.
        let (prefill, decode) = (endpoint(), endpoint());
        let draw = |n: u64| (mix(n) >> 11) as f64 / (1u64 << 53) as f64;
        let (per_token, per_moved) = (1.0 / 16_000.0, 1.0 / 20_000.0);
        for n in 0..20_000 {
            let (tokens, now) = (100 + (4000.0 * draw(2 * n)) as u64, ms(5000 * n));
            let (computing, alone) = (tokens as f64 * per_token, tokens as f64 * per_moved);
            let computed = prefill.speed().first_token(&State::default(), tokens as f64);
            let moving = Moving::new(&decode, alone, Some(computed), tokens, true, now);
            let seconds = (0.02 + computing + alone) * (0.8 + 0.4 * draw(2 * n + 1));
            let moved = moving.arrived(seconds).configured;
            prefill.computed((0.0, tokens as f64), tokens, Some((seconds, moved)), now);
        }
        let (speed, factor) = (prefill.speed().per_token / per_token, decode.link().factor());
        assert!((0.6..1.6).contains(&speed) && (0.6..1.6).contains(&factor), "{speed} {factor}");
    }

    #[test]
    fn an_outlier_moves_the_speed_of_a_link_little() {
        let decode = endpoint();
        for n in 0..50 {
            Moving::new(&decode, 0.1, Some(0.1), 1000, true, ms(5000 * n)).arrived(0.3);
        }
        let before = decode.link().factor();
        Moving::new(&decode, 0.1, Some(0.1), 1000, true, ms(500_000)).arrived(10.0);
        let after = decode.link().factor();
        assert!((before - 2.0).abs() < 0.3 && (after / before - 1.0).abs() < 0.2, "{before} {after}");
        Moving::new(&decode, 0.1, None, 1000, true, ms(500_000)).arrived(10.0);
        assert_eq!(decode.link().factor(), after, "the time of the prompt wasn't known");
    }
}
