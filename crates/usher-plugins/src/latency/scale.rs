//! Tokens as engines count them, per estimated token of a prompt.

use super::ratio::Ratio;

/// Bounds of the ratio.
const LEAST: f64 = 0.1;
const MOST: f64 = 10.0;

/// More tokens than so many times the expected ones count as that: a number that is wrong is
/// forgotten soon.
const CLIP: f64 = 4.0;

/// Ratio of the tokens of prompts that usage says to those that were estimated: text of other
/// languages has other bytes per token. A ratio of sums, so that what a chat template adds to short
/// prompts doesn't count for long ones.
#[derive(Debug)]
pub(super) struct TokenScale(Ratio);

impl Default for TokenScale {
    fn default() -> Self {
        Self(Ratio::within(LEAST, MOST))
    }
}

impl TokenScale {
    /// Sums of tokens.
    pub(super) fn sums(&self) -> &Ratio {
        &self.0
    }

    /// Converts estimated tokens to the engine's count.
    pub(super) fn tokens(&self, estimated: u64) -> u64 {
        // Casts from floats saturate.
        (estimated as f64 * self.ratio()).round() as u64
    }

    /// Tokens per estimated token.
    pub(super) fn ratio(&self) -> f64 {
        self.0.value()
    }

    /// A prompt had so many tokens.
    pub(super) fn observe(&self, counted: u64, estimated: u64) {
        if counted > 0 && estimated > 0 {
            let (counted, estimated) = (counted as f64, estimated as f64);
            self.0.observe(counted.min(CLIP * self.0.value() * estimated), estimated);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_with_other_tokens_changes_the_ratio() {
        let scale = TokenScale::default();
        assert_eq!([0, 1, 1000].map(|tokens| scale.tokens(tokens)), [0, 1, 1000]);
        (0..300).for_each(|_| scale.observe(2000, 1000));
        assert!((1980..=2000).contains(&scale.tokens(1000)), "{}", scale.tokens(1000));
        (0..300).for_each(|_| scale.observe(30, 10));
        (0..300).for_each(|_| scale.observe(1010, 1000));
        assert!((1000..=1030).contains(&scale.tokens(1000)), "{}", scale.tokens(1000));
    }

    #[test]
    fn wrong_count_is_forgotten_soon() {
        let scale = TokenScale::default();
        (0..100).for_each(|_| scale.observe(1000, 1000));
        scale.observe(u64::MAX, 1000);
        assert!(scale.tokens(1000) < 1100, "{}", scale.tokens(1000));
    }

    #[test]
    fn odd_numbers_stay_in_bounds() {
        let scale = TokenScale::default();
        scale.observe(0, 1000);
        scale.observe(1000, 0);
        assert_eq!(scale.tokens(1000), 1000);
        (0..300).for_each(|_| scale.observe(u64::MAX, 1));
        assert_eq!((scale.tokens(1000), scale.tokens(u64::MAX)), (10_000, u64::MAX));
        (0..5000).for_each(|_| scale.observe(1, u64::MAX));
        assert_eq!(scale.tokens(1000), 100);
    }
}
