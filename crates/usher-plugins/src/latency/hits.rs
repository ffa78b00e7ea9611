//! Tokens that prompts turn out to need, by those that were expected.
//!
//! The prefix match at an endpoint is an estimate: generated responses are cached, too, and blocks
//! are pushed out unseen. Usage with `cached_tokens` says afterwards how many tokens were
//! computed. The ratio of the sums is the mean of what an expected token comes to, and what a
//! time to a first token is compared with: an error of an input would lower its coefficient
//! otherwise (regression calibration, Carroll et al., *Measurement Error in Nonlinear Models*,
//! 2006).

use super::ratio::Ratio;

/// Bounds of the ratio.
const LEAST: f64 = 0.05;
const MOST: f64 = 4.0;

/// Ratios for prompts of which something should be cached, and for the others.
#[derive(Debug)]
pub(super) struct Hits([Ratio; 2]);

impl Default for Hits {
    fn default() -> Self {
        Self([Ratio::within(LEAST, MOST), Ratio::within(LEAST, MOST)])
    }
}

impl Hits {
    /// Sums of tokens.
    pub(super) fn sums(&self) -> &[Ratio; 2] {
        &self.0
    }

    /// Tokens of a prompt that have to be computed, where `uncached` of them seem to.
    pub(super) fn likely(&self, uncached: u64, prompt: u64) -> u64 {
        // Casts from floats saturate.
        self.ratios().likely(uncached as f64, prompt as f64).round() as u64
    }

    /// The ratios as they are now.
    pub(super) fn ratios(&self) -> HitRatios {
        HitRatios([self.0[0].value(), self.0[1].value()])
    }

    /// Learns from a prompt of which this share, 0..=1, was cached, while all but `uncached` tokens were
    /// expected to be.
    pub(super) fn observe(&self, uncached: u64, prompt: u64, cached: f64) {
        if uncached == 0 || prompt == 0 || cached.is_nan() {
            return;
        }
        let computed = prompt as f64 * (1.0 - cached.clamp(0.0, 1.0));
        self.0[class(uncached, prompt)].observe(computed, uncached as f64);
    }
}

/// Ratios of tokens that prompts need to those that were expected, as one decision reads them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HitRatios([f64; 2]);

impl HitRatios {
    /// Tokens of a prompt that have to be computed, where `uncached` of them seem to.
    #[inline]
    pub(super) fn likely(&self, uncached: f64, prompt: f64) -> f64 {
        // A whole token is cached at least.
        let ratio = if uncached + 0.5 < prompt { self.0[1] } else { self.0[0] };
        let tokens = (uncached * ratio).min(prompt).max(1.0);
        if uncached < 0.5 { 0.0 } else { tokens }
    }
}

/// 0: nothing of the prompt seems to be cached.
fn class(uncached: u64, prompt: u64) -> usize {
    usize::from(uncached < prompt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_responses_lower_the_expected_prefill() {
        let hits = Hits::default();
        assert_eq!((hits.likely(700, 2000), hits.likely(0, 2000), hits.likely(1, 1)), (700, 0, 1));
        // Of 700 tokens of a continued conversation 500 were generated there.
        (0..200).for_each(|_| hits.observe(700, 2000, 0.9));
        assert!((198..=206).contains(&hits.likely(700, 2000)), "{}", hits.likely(700, 2000));
        assert_eq!(hits.likely(2000, 2000), 2000, "others are as expected");
    }

    #[test]
    fn evicted_blocks_raise_the_expected_prefill() {
        let hits = Hits::default();
        (0..200).for_each(|_| hits.observe(100, 1000, 0.7));
        assert!((285..=300).contains(&hits.likely(100, 1000)), "{}", hits.likely(100, 1000));
        assert_eq!(hits.likely(900, 1000), 1000, "no more than the prompt");
    }

    #[test]
    fn odd_numbers_stay_in_bounds() {
        let hits = Hits::default();
        for cached in [-3.0, 7.0, f64::NAN, 1.0] {
            (0..500).for_each(|_| hits.observe(100, 1000, cached));
            assert!((5..=400).contains(&hits.likely(100, 1000)), "{cached}");
        }
        hits.observe(0, 0, 0.5);
        assert_eq!(hits.likely(0, 0), 0);
    }
}
