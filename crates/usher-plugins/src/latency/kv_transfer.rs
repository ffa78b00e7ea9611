//! KV cache transfer to the endpoint that decodes.

use std::sync::Arc;
use std::time::Duration;

use super::backlog::Backlog;
use super::time::millis;

/// Duration of a transfer in seconds, including others on its link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct TransferTime {
    /// By the learned link speed.
    pub(super) expected: f64,
    /// By the configured link speed.
    pub(super) configured: f64,
}

/// KV cache transfer that has not arrived at the endpoint that decodes.
#[derive(Debug)]
pub(super) struct KvTransfer {
    decode: Arc<Backlog>,
    /// Seconds that it takes alone, as configured, and that other transfers on the link add.
    alone: f64,
    others: f64,
    /// Seconds until the prompt should be computed; `None`: that isn't known.
    computed: Option<f64>,
    /// Tokens that it counts for while its first token hasn't come.
    tokens: i64,
}

impl KvTransfer {
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
        // Otherwise nobody would say when they are there.
        let tokens = if is_seen { i64::try_from(tokens).unwrap_or(i64::MAX) } else { 0 };
        link.book(takes, tokens, now);
        Self { decode: Arc::clone(decode), alone, others, computed, tokens }
    }

    /// The first token came after so many seconds. Returns how many of them the transfer should
    /// have taken with others on its link.
    pub(super) fn arrived(&self, seconds: f64, now: Duration) -> TransferTime {
        let link = self.decode.link();
        let factor = link.factor();
        let moved = TransferTime {
            expected: self.others + self.alone * factor,
            configured: self.others / factor + self.alone,
        };
        if let Some(computed) = self.computed {
            link.observe(computed + self.others, self.alone, seconds, millis(now));
        }
        moved
    }
}

impl Drop for KvTransfer {
    fn drop(&mut self) {
        self.decode.link().take(self.tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::super::cost::State;
    use super::super::group::Group;
    use super::*;
    use usher_core::random::mix;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn endpoint() -> Arc<Backlog> {
        Arc::new(Backlog::new(Arc::new(Group::new(16_000.0))))
    }

    #[test]
    fn transfers_share_the_link_for_as_long_as_they_take() {
        let decode = endpoint();
        let transfer = |seen| KvTransfer::new(&decode, 0.5, Some(0.1), 1000, seen, Duration::ZERO);
        let busy = |now| (decode.link().busy(now) * 1e3).round();
        let booked = [transfer(true), transfer(true), transfer(false)];
        assert_eq!(decode.link().tokens(), 2000.0, "as far as it will be seen when they are there");
        assert_eq!([ms(0), ms(700), ms(1600)].map(busy), [1500.0, 800.0, 0.0]);
        assert!(
            (transfer(true).arrived(1.9, Duration::ZERO).expected - 1.9).abs() < 1e-9,
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
                let now = ms(5000 * n);
                KvTransfer::new(&decode, alone, Some(computed), 1000, true, now).arrived(seconds, now);
            }
            let factor = decode.link().factor();
            assert!((factor / truth).ln().abs() < 0.35, "{truth}: {factor}");
        }
    }

    #[test]
    fn correlated_prompts_and_transfers_do_not_drift() {
        // Nothing is cached, so that one is always so many times the other.
        let (prefill, decode) = (endpoint(), endpoint());
        let draw = |n: u64| (mix(n) >> 11) as f64 / (1u64 << 53) as f64;
        let (per_token, per_moved) = (1.0 / 16_000.0, 1.0 / 20_000.0);
        for n in 0..20_000 {
            let (tokens, now) = (100 + (4000.0 * draw(2 * n)) as u64, ms(5000 * n));
            let (computing, alone) = (tokens as f64 * per_token, tokens as f64 * per_moved);
            let computed = prefill.speed().first_token(&State::default(), tokens as f64);
            let transfer = KvTransfer::new(&decode, alone, Some(computed), tokens, true, now);
            let seconds = (0.02 + computing + alone) * (0.8 + 0.4 * draw(2 * n + 1));
            let moved = transfer.arrived(seconds, now).configured;
            prefill.computed((0.0, tokens as f64), tokens, Some((seconds, moved)), now);
        }
        let (speed, factor) = (prefill.speed().per_token / per_token, decode.link().factor());
        assert!((0.6..1.6).contains(&speed) && (0.6..1.6).contains(&factor), "{speed} {factor}");
    }

    #[test]
    fn an_outlier_moves_the_speed_of_a_link_little() {
        let decode = endpoint();
        for n in 0..50 {
            KvTransfer::new(&decode, 0.1, Some(0.1), 1000, true, ms(5000 * n)).arrived(0.3, ms(5000 * n));
        }
        let before = decode.link().factor();
        KvTransfer::new(&decode, 0.1, Some(0.1), 1000, true, ms(500_000)).arrived(10.0, ms(500_000));
        let after = decode.link().factor();
        assert!((before - 2.0).abs() < 0.3 && (after / before - 1.0).abs() < 0.2, "{before} {after}");
        KvTransfer::new(&decode, 0.1, None, 1000, true, ms(500_000)).arrived(10.0, ms(500_000));
        assert_eq!(decode.link().factor(), after, "the time of the prompt wasn't known");
    }
}
