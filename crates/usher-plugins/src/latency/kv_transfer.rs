//! KV cache transfer to the endpoint that decodes.

use std::sync::Arc;
use std::time::Duration;

use usher_core::endpoints::Clock;

use super::backlog::Backlog;
use super::link::Seen;

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
    /// Tokens that it counts for while its first token hasn't come.
    tokens: i64,
}

impl KvTransfer {
    /// A transfer to `decode` that takes `alone` seconds as configured, of a prompt of so many
    /// tokens that should be computed after `computed` seconds; `None`: that isn't known. `is_seen`: its first token should
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
        let number = link.book(takes, tokens, is_seen.then_some(Seen { alone, computed }), sent);
        Self { decode: Arc::clone(decode), clock: clock.clone(), number, alone, others, tokens }
    }

    /// The first token came. Returns how long the transfer should have taken with others on its link.
    pub(super) fn arrived(&self) -> TransferTime {
        let link = self.decode.link();
        let factor = link.factor();
        let moved = TransferTime {
            expected: self.others + self.alone * factor,
            configured: self.others / factor + self.alone,
        };
        link.arrive(self.number, self.clock.elapsed());
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
    use usher_core::random::mix;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn at(clock: &Clock, now: Duration) -> &Clock {
        clock.set(now);
        clock
    }

    /// Lets a transfer arrive so many seconds after now.
    fn arrive(transfer: &KvTransfer, seconds: f64) -> TransferTime {
        transfer.clock.set(transfer.clock.elapsed() + Duration::from_secs_f64(seconds));
        transfer.arrived()
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
            (transfer(true).arrived().expected - 1.9).abs() < 1e-9,
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
                arrive(&KvTransfer::new(&decode, alone, Some(computed), 1000, true, clock), seconds);
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
            let moved = arrive(&transfer, seconds).configured;
            prefill.computed((0.0, tokens as f64), tokens, Some((seconds, moved)), now);
        }
        let (speed, factor) = (prefill.speed().per_token / per_token, decode.link().factor());
        assert!((0.6..1.6).contains(&speed) && (0.6..1.6).contains(&factor), "{speed} {factor}");
    }

    #[test]
    fn an_outlier_moves_the_speed_of_a_link_little() {
        let (decode, clock) = (endpoint(), Clock::stopped());
        let arrives = |computed, seconds, now| {
            arrive(&KvTransfer::new(&decode, 0.1, computed, 1000, true, at(&clock, now)), seconds);
            decode.link().factor()
        };
        (0..200).for_each(|n| _ = arrives(Some(0.1), 0.3, ms(5000 * n)));
        let before = decode.link().factor();
        arrives(Some(0.1), 10.0, ms(2_000_000));
        let after = arrives(Some(0.1), 10.0, ms(2_100_000));
        assert!((before - 2.0).abs() < 0.3 && (after / before - 1.0).abs() < 0.2, "{before} {after}");
        (0..4).for_each(|n| _ = arrives(None, 10.0, ms(2_200_000 + 50_000 * n)));
        assert_eq!(decode.link().factor(), after, "the time of the prompt wasn't known");
    }

    #[test]
    fn transfers_that_end_early_leave_the_link_idle() {
        let (decode, clock) = (endpoint(), Clock::stopped());
        let transfer = |seen| KvTransfer::new(&decode, 1.0, Some(0.1), 1000, seen, &clock);
        let cancelled: Vec<KvTransfer> = (0..10).map(|n| transfer(n % 2 == 0)).collect();
        assert_eq!(decode.link().busy(ms(0)), 10.0);
        drop(cancelled);
        assert_eq!(decode.link().busy(ms(0)), 0.0);
        transfer(true).arrived();
        assert_eq!((decode.link().busy(ms(0)), decode.link().tokens()), (0.0, 0.0));
    }

    /// Arrival of each of these transfers, which begin then and take so long alone: over a link that moves one after the
    /// other, or all at once at equal shares.
    fn arrivals(transfers: &[(f64, f64)], are_shared: bool) -> Vec<f64> {
        let mut order: Vec<usize> = (0..transfers.len()).collect();
        order.sort_by(|a, b| transfers[*a].0.total_cmp(&transfers[*b].0));
        let mut next = order.into_iter().peekable();
        let (mut arrivals, mut now) = (vec![0.0; transfers.len()], 0.0);
        let mut moving: Vec<(usize, f64)> = Vec::new();
        loop {
            let shares = if are_shared { moving.len() } else { 1 };
            let of_shared = moving.iter().enumerate().min_by(|(_, a), (_, b)| a.1.total_cmp(&b.1));
            let first = if are_shared { of_shared.map_or(0, |(place, _)| place) } else { 0 };
            let ends = moving.get(first).map(|(_, left)| now + left * shares as f64);
            let begins = next.peek().map(|number| transfers[*number].0);
            let Some(then) = ends.into_iter().chain(begins).min_by(f64::total_cmp) else { return arrivals };
            moving.iter_mut().take(shares).for_each(|(_, left)| *left -= (then - now) / shares as f64);
            now = then;
            if ends == Some(then) {
                arrivals[moving.remove(first).0] = then;
            } else if let Some(number) = next.next() {
                moving.push((number, transfers[number].1));
            }
        }
    }

    /// Use of a link.
    #[derive(Clone, Copy, Debug)]
    struct Crowd {
        /// Times as long as configured that transfers take.
        truth: f64,
        /// Share of the time for which it is in use.
        used: f64,
        are_shared: bool,
        /// Transfers that are sent at once.
        burst: u64,
        /// Share of transfers that take 5 to 20 ms, of all that take 300 to 1000 ms otherwise; 0: all take 50 to 150 ms.
        small: f64,
    }

    /// Lowest and highest factor over the true one, and longest time for which the link seemed busy, of the last half of
    /// 6,000 transfers.
    fn crowded(crowd: Crowd, seed: u64) -> (f64, f64, f64) {
        let Crowd { truth, used, are_shared, burst, small } = crowd;
        let (decode, clock) = (endpoint(), Clock::stopped());
        let draw = |n: u64| (mix(seed << 32 | n) >> 11) as f64 / (1u64 << 53) as f64;
        let mean = if small > 0.0 { small * 0.0125 + (1.0 - small) * 0.65 } else { 0.1 };
        let mut now = 0.0;
        let (mut sent, mut alone, mut moved) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..6000 {
            if n % burst == 0 {
                now -= (1.0 - draw(4 * n)).ln() * mean * truth * burst as f64 / used;
            }
            let (least, most) = match small {
                0.0 => (0.05, 0.15),
                small if draw(4 * n + 3) < small => (0.005, 0.02),
                _ => (0.3, 1.0),
            };
            sent.push(now);
            alone.push(least + (most - least) * draw(4 * n + 1));
            moved.push((now + 0.1 * (0.8 + 0.4 * draw(4 * n + 2)), truth * alone[n as usize]));
        }
        let arrivals = arrivals(&moved, are_shared);
        let mut events: Vec<(f64, bool, usize)> = Vec::new();
        events.extend(sent.iter().enumerate().map(|(n, sent)| (*sent, false, n)));
        events.extend(arrivals.iter().enumerate().map(|(n, arrival)| (*arrival, true, n)));
        events.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut moving: Vec<Option<KvTransfer>> = (0..sent.len()).map(|_| None).collect();
        let (mut least, mut most, mut busy) = (f64::INFINITY, 0.0f64, 0.0f64);
        for (at, has_arrived, n) in events {
            clock.set(Duration::from_secs_f64(at));
            if has_arrived {
                moving[n].take().unwrap().arrived();
                continue;
            }
            if n >= 3000 {
                let factor = decode.link().factor() / truth;
                (least, most) = (least.min(factor), most.max(factor));
                busy = busy.max(decode.link().busy(clock.elapsed()));
            }
            moving[n] = Some(KvTransfer::new(&decode, alone[n], Some(0.1), 1000, true, &clock));
        }
        (least, most, busy)
    }

    #[test]
    fn speed_of_a_link_in_much_use_is_learned() {
        for (truth, used, seed) in [(1.0, 0.8, 0), (1.0, 0.9, 1), (0.4, 0.8, 2), (0.4, 0.9, 3)] {
            for (are_shared, burst, small) in [false, true]
                .into_iter()
                .flat_map(|shared| [(shared, 1, 0.0), (shared, 8, 0.0), (shared, 1, 0.8)])
            {
                let crowd = Crowd { truth, used, are_shared, burst, small };
                let (least, most, busy) = crowded(crowd, seed);
                assert!(least > 1.0 / 1.5 && most < 1.5, "{crowd:?}: {least} {most}");
                // Others have queues that are longer by themselves.
                assert!(busy < 5.0 || burst > 1 || small > 0.0, "{crowd:?}: {busy} s");
            }
        }
    }

    #[test]
    fn transfers_of_nothing_change_nothing() {
        let (decode, clock) = (endpoint(), Clock::stopped());
        let transfer = |alone, seen| KvTransfer::new(&decode, alone, Some(0.1), 1000, seen, &clock);
        let moved = [transfer(1.0, true), transfer(1.0, true)];
        let (_unseen, nothing) = (transfer(0.0, false), transfer(0.0, true));
        arrive(&nothing, 3.0);
        assert_eq!(decode.link().factor(), 1.0);
        moved.iter().for_each(|transfer| _ = arrive(transfer, 1.5));
        assert!(decode.link().factor() > 1.5, "it moved for all of the time");
    }

    #[test]
    fn nothing_is_learned_behind_transfers_that_are_not_seen() {
        let (decode, clock) = (endpoint(), Clock::stopped());
        let transfer = |seen| KvTransfer::new(&decode, 1.0, Some(0.1), 1000, seen, &clock);
        let unseen = transfer(false);
        (0..4).for_each(|_| _ = arrive(&transfer(true), 0.2));
        assert_eq!(decode.link().factor(), 1.0);
        drop(unseen);
        (0..4).for_each(|_| _ = arrive(&transfer(true), 5.0));
        assert!(decode.link().factor() > 1.5);
    }
}
