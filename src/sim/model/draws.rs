//! Random constants of an engine.

use crate::sim::mix;

/// Prompt tokens per second that scorers assume unless told otherwise. No drawn engine is
/// as fast, so that a scorer's guess never comes true by accident.
pub(super) const ASSUMED_RATE: f64 = 15_928.0;

/// Least relative distance of a drawn rate from [`ASSUMED_RATE`].
const APART: f64 = 0.02;

/// Prompt length at which ranges say how much attention adds to a prompt's linear cost.
pub(super) const LONG_PROMPT: f64 = 32_768.0;

/// Random numbers of a seed, the same on every machine.
#[derive(Debug)]
pub(super) struct Draws {
    seed: u64,
    next: u64,
}

impl Draws {
    /// Sequence number `stream` of a seed.
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        Self { seed: mix(mix(seed) ^ stream), next: 0 }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        mix(self.seed ^ mix(self.next))
    }

    /// Evenly in `low..high`.
    pub(super) fn between(&mut self, low: f64, high: f64) -> f64 {
        // 53 random bits make an even draw from 0..1.
        low + (high - low) * (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of `items`, with equal chances.
    pub(super) fn one_of<T: Copy, const N: usize>(&mut self, items: [T; N]) -> T {
        items[(self.number() % N as u64) as usize]
    }

    /// Tokens per second, evenly in `low..high` without what is near [`ASSUMED_RATE`].
    pub(super) fn rate(&mut self, low: f64, high: f64) -> f64 {
        let (gap, width) = (ASSUMED_RATE * (1.0 - APART), ASSUMED_RATE * APART * 2.0);
        let rate = self.between(low, high - width);
        if rate < gap { rate } else { rate + width }
    }

    /// Seconds per pair of tokens within `pair`, such that a prompt of [`LONG_PROMPT`]
    /// tokens costs `times` as much as without attention.
    pub(super) fn attention(&mut self, seconds_per_token: f64, pair: [f64; 2], times: [f64; 2]) -> f64 {
        // Its linear cost is n * seconds_per_token, and it has n² / 2 pairs.
        let [least, most] = times.map(|times| (times - 1.0) * 2.0 * seconds_per_token / LONG_PROMPT);
        self.between(pair[0].max(least), pair[1].min(most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_stay_in_their_ranges_and_away_from_the_assumed_rate() {
        let mut draws = Draws::new(7, 1);
        let (mut slower, mut faster) = (0, 0);
        for _ in 0..10_000 {
            assert!((2.0..3.0).contains(&draws.between(2.0, 3.0)));
            assert!([5, 6, 9].contains(&draws.one_of([5, 6, 9])));
            let rate = draws.rate(9_000.0, 30_000.0);
            assert!((9_000.0..30_000.0).contains(&rate));
            assert!((rate / ASSUMED_RATE - 1.0).abs() >= APART * 0.999, "{rate}");
            *(if rate < ASSUMED_RATE { &mut slower } else { &mut faster }) += 1;
        }
        assert!(slower > 2_500 && faster > 5_500, "{slower} {faster}");
    }

    #[test]
    fn a_seed_and_a_stream_repeat() {
        let draw = |seed, stream| Draws::new(seed, stream).between(0.0, 1.0);
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(2, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
    }
}
