//! Engines whose constants a seed draws.

use super::chunked_prefill::ChunkedPrefill;
use super::models::{EngineModel, ModelKind};
use super::prefill_first::PrefillFirst;
use crate::sim::config::EngineConfig;
use usher_core::random::mix;

/// Prompt tokens per second that scorers assume unless told otherwise. No drawn engine is
/// as fast, so that a scorer's guess never comes true by accident.
const ASSUMED_RATE: f64 = 15_928.0;

/// Least relative distance of a drawn rate from [`ASSUMED_RATE`].
const APART: f64 = 0.02;

/// Prompt length at which ranges say how much attention adds to a prompt's linear cost.
const LONG_PROMPT: f64 = 32_768.0;

/// Random numbers of a seed, the same on every machine.
#[derive(Debug)]
struct Draws {
    seed: u64,
    next: u64,
}

impl Draws {
    /// Sequence number `stream` of a seed.
    fn new(seed: u64, stream: u64) -> Self {
        Self { seed: mix(mix(seed) ^ stream), next: 0 }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        mix(self.seed ^ mix(self.next))
    }

    /// Evenly in `low..high`.
    fn between(&mut self, low: f64, high: f64) -> f64 {
        // 53 random bits make an even draw from 0..1.
        low + (high - low) * (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of `items`, with equal chances.
    fn one_of<T: Copy, const N: usize>(&mut self, items: [T; N]) -> T {
        items[(self.number() % N as u64) as usize]
    }

    /// Tokens per second, evenly in `low..high` without what is near [`ASSUMED_RATE`].
    fn rate(&mut self, low: f64, high: f64) -> f64 {
        let (gap, width) = (ASSUMED_RATE * (1.0 - APART), ASSUMED_RATE * APART * 2.0);
        let rate = self.between(low, high - width);
        if rate < gap { rate } else { rate + width }
    }

    /// Seconds per pair of tokens within `pair`, such that a prompt of [`LONG_PROMPT`]
    /// tokens costs `times` as much as without attention.
    fn attention(&mut self, seconds_per_token: f64, pair: [f64; 2], times: [f64; 2]) -> f64 {
        // Its linear cost is n * seconds_per_token, and it has n² / 2 pairs.
        let [least, most] = times.map(|times| (times - 1.0) * 2.0 * seconds_per_token / LONG_PROMPT);
        self.between(pair[0].max(least), pair[1].min(most))
    }
}

impl EngineConfig {
    /// An engine of this model, with the constants that the seed draws. Nothing is drawn
    /// for [`ModelKind::Linear`], whose constants are the defaults.
    pub fn drawn(kind: ModelKind, seed: u64) -> Self {
        match kind {
            ModelKind::Linear => Self::default(),
            ModelKind::ChunkedPrefill => ChunkedPrefill::drawn(seed),
            ModelKind::PrefillFirst => PrefillFirst::drawn(seed),
        }
    }
}

impl ChunkedPrefill {
    /// An engine with the constants that the seed draws from the ranges of the fields,
    /// which are those of a model of 8 to 14 billion parameters on one 80 GB GPU. Its KV
    /// cache holds 150,000 to 450,000 tokens in blocks of 16, steps take 2048, 4096 or
    /// 8192 tokens, the batch 128 or 256 requests, and the jitter is 0.03 to 0.08.
    pub fn drawn(seed: u64) -> EngineConfig {
        let mut draws = Draws::new(seed, 1);
        let seconds_per_token = 1.0 / draws.rate(9_000.0, 30_000.0);
        let model = Self {
            overhead: draws.between(1e-3, 4e-3),
            request_overhead: draws.between(10e-6, 60e-6),
            seconds_per_token,
            attention_seconds: draws.attention(seconds_per_token, [0.5e-9, 3e-9], [1.3, 2.5]),
            weight_read: draws.between(6e-3, 14e-3),
            kv_read: draws.between(25e-9, 70e-9),
        };
        let block_size = 16;
        EngineConfig {
            model: EngineModel::ChunkedPrefill(model),
            max_batched_tokens: draws.one_of([2048, 4096, 8192]),
            max_running: draws.one_of([128, 256]),
            block_size,
            num_blocks: draws.between(150_000.0, 450_000.0) as u32 / block_size,
            jitter: draws.between(0.03, 0.08),
            ..EngineConfig::default()
        }
    }
}

impl PrefillFirst {
    /// An engine with the constants that the seed draws from the ranges of the fields. Its
    /// KV cache holds 120,000 to 360,000 tokens in blocks of 32 or 64, steps of prefill take
    /// 8192 or 16384 tokens, the batch 96, 160 or 224 requests, and the jitter is 0.02 to
    /// 0.06.
    pub fn drawn(seed: u64) -> EngineConfig {
        let mut draws = Draws::new(seed, 2);
        let seconds_per_token = 1.0 / draws.rate(7_000.0, 24_000.0);
        let model = Self {
            launch: draws.between(3e-3, 9e-3),
            seconds_per_token,
            attention_seconds: draws.attention(seconds_per_token, [0.4e-9, 2.5e-9], [1.2, 2.2]),
            base: draws.between(7e-3, 15e-3),
            per_sequence: draws.between(60e-6, 200e-6),
            kv_read: draws.between(15e-9, 50e-9),
            max_prefill_steps: draws.one_of([1, 2, 3, 4]),
            reserve_ratio: 0.3,
        };
        let block_size = draws.one_of([32, 64]);
        EngineConfig {
            model: EngineModel::PrefillFirst(model),
            max_batched_tokens: draws.one_of([8192, 16_384]),
            max_running: draws.one_of([96, 160, 224]),
            block_size,
            num_blocks: draws.between(120_000.0, 360_000.0) as u32 / block_size,
            jitter: draws.between(0.02, 0.06),
            ..EngineConfig::default()
        }
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

    #[test]
    fn chunked_prefill_constants_are_in_range() {
        for seed in 0..500 {
            let config = ChunkedPrefill::drawn(seed);
            config.validate().unwrap();
            let EngineModel::ChunkedPrefill(model) = config.model else { panic!("{:?}", config.model) };
            let rate = 1.0 / model.seconds_per_token;
            assert!((9_000.0..30_000.0).contains(&rate) && (rate - ASSUMED_RATE).abs() > 300.0, "{rate}");
            let long = 1.0 + LONG_PROMPT / 2.0 * model.attention_seconds / model.seconds_per_token;
            assert!((1.3..2.5).contains(&long), "{long}");
            assert!((0.5e-9..3e-9).contains(&model.attention_seconds));
            assert!((150_000..=450_000).contains(&(config.num_blocks * config.block_size + 16)));
            assert_eq!(config, ChunkedPrefill::drawn(seed));
            assert_ne!(config.model, ChunkedPrefill::drawn(seed + 1).model);
        }
    }

    #[test]
    fn prefill_first_constants_are_in_range() {
        for seed in 0..500 {
            let config = PrefillFirst::drawn(seed);
            config.validate().unwrap();
            let EngineModel::PrefillFirst(model) = config.model else { panic!("{:?}", config.model) };
            let rate = 1.0 / model.seconds_per_token;
            assert!((7_000.0..24_000.0).contains(&rate) && (rate - ASSUMED_RATE).abs() > 300.0, "{rate}");
            let long = 1.0 + LONG_PROMPT / 2.0 * model.attention_seconds / model.seconds_per_token;
            assert!((1.2..2.2).contains(&long), "{long}");
            assert!((1..=4).contains(&model.max_prefill_steps) && [32, 64].contains(&config.block_size));
            assert!((120_000..=360_000).contains(&(config.num_blocks * config.block_size + 64)));
            assert_eq!(config, PrefillFirst::drawn(seed));
            assert_ne!(config.model, PrefillFirst::drawn(seed + 1).model);
        }
    }
}
