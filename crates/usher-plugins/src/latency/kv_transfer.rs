//! KV cache transfer to the endpoint that decodes.

use std::sync::Arc;
use std::time::Duration;

use usher_core::endpoints::Clock;

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
    clock: Clock,
    /// Its number on the link.
    number: u64,
    /// Seconds that it takes alone, as configured, and that other transfers on the link add.
    alone: f64,
    others: f64,
    /// Time at which it was booked.
    sent: Duration,
    /// Seconds from there until the prompt should be computed; `None`: nothing is learned from the arrival.
    computed: Option<f64>,
    /// Tokens that it counts for while its first token hasn't come.
    tokens: i64,
}

impl KvTransfer {
    /// A transfer to `decode` that takes `alone` seconds as configured, of a prompt of so many
    /// tokens that should be computed after `computed` seconds; `None`: that isn't known. `is_seen`: its first token will
    /// be.
    pub(super) fn new(
        decode: &Arc<Backlog>,
        alone: f64,
        computed: Option<f64>,
        tokens: u64,
        is_seen: bool,
        clock: &Clock,
    ) -> Self {
        let (link, sent) = (decode.link(), clock.elapsed());
        let takes = Duration::try_from_secs_f64(alone * link.factor()).unwrap_or_default();
        let others = (link.busy(sent) - computed.unwrap_or_default()).max(0.0);
        // Otherwise nobody would say when they are there.
        let tokens = if is_seen { i64::try_from(tokens).unwrap_or(i64::MAX) } else { 0 };
        let (number, has_unseen) = link.book(takes, tokens, is_seen, sent);
        // When those leave the link won't be known.
        let computed = computed.filter(|_| !has_unseen);
        Self {
            decode: Arc::clone(decode),
            clock: clock.clone(),
            number,
            alone,
            others,
            sent,
            computed,
            tokens,
        }
    }

    /// The first token came after so many seconds. Returns how many of them the transfer should
    /// have taken with others on its link.
    pub(super) fn arrived(&self, seconds: f64) -> TransferTime {
        let (link, now) = (self.decode.link(), self.clock.elapsed());
        let factor = link.factor();
        let moved = TransferTime {
            expected: self.others + self.alone * factor,
            configured: self.others / factor + self.alone,
        };
        let before = link.arrive(now).map_or(0.0, |before| before.saturating_sub(self.sent).as_secs_f64());
        if let Some(computed) = self.computed {
            link.observe(computed.max(before), self.alone, seconds, millis(now));
        }
        moved
    }
}

impl Drop for KvTransfer {
    fn drop(&mut self) {
        self.decode.link().remove(self.number, self.tokens, self.clock.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::super::cost::State;
    use super::super::group::Group;
    use super::*;
    use std::collections::VecDeque;
    use usher_core::random::mix;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn at(clock: &Clock, now: Duration) -> &Clock {
        clock.set(now);
        clock
    }

    fn endpoint() -> Arc<Backlog> {
        Arc::new(Backlog::new(Arc::new(Group::new(16_000.0))))
    }

    #[test]
    fn transfers_share_the_link_for_as_long_as_they_take() {
        let (decode, clock) = (endpoint(), Clock::stopped());
        let transfer = |seen| KvTransfer::new(&decode, 0.5, Some(0.1), 1000, seen, &clock);
        let busy = |now| (decode.link().busy(now) * 1e3).round();
        let booked = [transfer(true), transfer(true), transfer(false)];
        assert_eq!(decode.link().tokens(), 2000.0, "as far as it will be seen when they are there");
        assert_eq!([ms(0), ms(700), ms(1600)].map(busy), [1500.0, 800.0, 0.0]);
        assert!(
            (transfer(true).arrived(1.9).expected - 1.9).abs() < 1e-9,
            "its own half and what is left of the others"
        );
        drop(booked);
        assert_eq!(decode.link().tokens(), 0.0);
    }

    #[test]
    fn slow_and_fast_links_are_learned() {
        for truth in [8.0, 0.25] {
            let (decode, clock) = (endpoint(), Clock::stopped());
            let draw = |n: u64| (mix(n) >> 11) as f64 / (1u64 << 53) as f64;
            for n in 0..400 {
                let (computed, alone) = (0.05 + 0.2 * draw(3 * n), 0.05 * draw(3 * n + 1));
                let noise = 0.9 + 0.2 * draw(3 * n + 2);
                let seconds = (computed + truth * alone) * noise;
                let clock = at(&clock, ms(5000 * n));
                KvTransfer::new(&decode, alone, Some(computed), 1000, true, clock).arrived(seconds);
            }
            let factor = decode.link().factor();
            assert!((factor / truth).ln().abs() < 0.35, "{truth}: {factor}");
        }
    }

    #[test]
    fn correlated_prompts_and_transfers_do_not_drift() {
        // Nothing is cached, so that one is always so many times the other.
        let (prefill, decode, clock) = (endpoint(), endpoint(), Clock::stopped());
        let draw = |n: u64| (mix(n) >> 11) as f64 / (1u64 << 53) as f64;
        let (per_token, per_moved) = (1.0 / 16_000.0, 1.0 / 20_000.0);
        for n in 0..20_000 {
            let (tokens, now) = (100 + (4000.0 * draw(2 * n)) as u64, ms(5000 * n));
            let (computing, alone) = (tokens as f64 * per_token, tokens as f64 * per_moved);
            let computed = prefill.speed().first_token(&State::default(), tokens as f64);
            let clock = at(&clock, now);
            let transfer = KvTransfer::new(&decode, alone, Some(computed), tokens, true, clock);
            let seconds = (0.02 + computing + alone) * (0.8 + 0.4 * draw(2 * n + 1));
            let moved = transfer.arrived(seconds).configured;
            prefill.computed((0.0, tokens as f64), tokens, Some((seconds, moved)), now);
        }
        let (speed, factor) = (prefill.speed().per_token / per_token, decode.link().factor());
        assert!((0.6..1.6).contains(&speed) && (0.6..1.6).contains(&factor), "{speed} {factor}");
    }

    #[test]
    fn an_outlier_moves_the_speed_of_a_link_little() {
        let (decode, clock) = (endpoint(), Clock::stopped());
        let arrives = |computed, seconds, now| {
            KvTransfer::new(&decode, 0.1, computed, 1000, true, at(&clock, now)).arrived(seconds);
            decode.link().factor()
        };
        (0..50).for_each(|n| _ = arrives(Some(0.1), 0.3, ms(5000 * n)));
        let before = decode.link().factor();
        let after = arrives(Some(0.1), 10.0, ms(500_000));
        assert!((before - 2.0).abs() < 0.3 && (after / before - 1.0).abs() < 0.2, "{before} {after}");
        assert_eq!(arrives(None, 10.0, ms(500_000)), after, "the time of the prompt wasn't known");
    }

    #[test]
    fn transfers_that_end_early_leave_the_link_idle() {
        let (decode, clock) = (endpoint(), Clock::stopped());
        let transfer = |seen| KvTransfer::new(&decode, 1.0, Some(0.1), 1000, seen, &clock);
        let cancelled: Vec<KvTransfer> = (0..10).map(|n| transfer(n % 2 == 0)).collect();
        assert_eq!(decode.link().busy(ms(0)), 10.0);
        drop(cancelled);
        assert_eq!(decode.link().busy(ms(0)), 0.0);
        transfer(true).arrived(0.2);
        assert_eq!((decode.link().busy(ms(0)), decode.link().tokens()), (0.0, 0.0));
    }

    /// Lowest and highest factor over the true one, and longest time for which the link seemed busy, of the last 5,000 of
    /// 10,000 transfers over a link that is in use for `used` of the time.
    fn crowded(truth: f64, used: f64, seed: u64) -> (f64, f64, f64) {
        let (decode, clock) = (endpoint(), Clock::stopped());
        let draw = |n: u64| (mix(seed << 32 | n) >> 11) as f64 / (1u64 << 53) as f64;
        let (mut now, mut free) = (0.0, 0.0);
        let mut moving: VecDeque<(f64, f64, KvTransfer)> = VecDeque::new();
        let (mut least, mut most, mut busy) = (f64::INFINITY, 0.0f64, 0.0f64);
        for n in 0..10_000 {
            now -= (1.0 - draw(3 * n)).ln() * 0.1 * truth / used;
            while let Some((end, sent, transfer)) = moving.pop_front_if(|(end, ..)| *end <= now) {
                clock.set(Duration::from_secs_f64(end));
                transfer.arrived(end - sent);
            }
            clock.set(Duration::from_secs_f64(now));
            if n >= 5000 {
                let factor = decode.link().factor() / truth;
                (least, most) = (least.min(factor), most.max(factor));
                busy = busy.max(decode.link().busy(clock.elapsed()));
            }
            let alone = 0.05 + 0.1 * draw(3 * n + 1);
            let transfer = KvTransfer::new(&decode, alone, Some(0.1), 1000, true, &clock);
            free = (now + 0.1 * (0.8 + 0.4 * draw(3 * n + 2))).max(free) + truth * alone;
            moving.push_back((free, now, transfer));
        }
        (least, most, busy)
    }

    #[test]
    fn speed_of_a_link_in_much_use_is_learned() {
        for (truth, used) in [(1.0, 0.8), (1.0, 0.9), (0.4, 0.8), (0.4, 0.9)] {
            for seed in 0..4 {
                let (least, most, busy) = crowded(truth, used, seed);
                assert!(least > 1.0 / 1.5 && most < 1.5, "{truth} {used} {seed}: {least} {most}");
                assert!(busy < 5.0, "{truth} {used} {seed}: {busy} s");
            }
        }
    }

    #[test]
    fn nothing_is_learned_behind_transfers_that_are_not_seen() {
        let (decode, clock) = (endpoint(), Clock::stopped());
        let transfer = |seen| KvTransfer::new(&decode, 1.0, Some(0.1), 1000, seen, &clock);
        let unseen = transfer(false);
        transfer(true).arrived(5.0);
        assert_eq!(decode.link().factor(), 1.0);
        drop(unseen);
        transfer(true).arrived(5.0);
        assert!(decode.link().factor() > 1.5);
    }
}
