//! Estimate of the length of responses, response by response.

use usher_plugin::MalformedRecord;

use super::mean::CLIP;
use crate::record::{RecordReader, RecordWriter};

/// Least weight of another response.
const LEAST_SHARE: f64 = 0.02;

/// Least step of a quantile, in mean deviations.
const LEAST_STEP: f64 = 0.05;

/// Smallest mean deviation of a logarithm that steps are made of.
const LEAST_DEVIATION: f64 = 0.05;

/// Estimates of a length's distribution.
///
/// Quantiles follow the stochastic approximation of Robbins and Monro (1951): a response above
/// the estimate moves it up by `p` of a step, one below it down by `1 − p`, so that it rests
/// where a share `p` is below. Steps are in mean deviations of the logarithm, and don't shrink
/// for ever, so that it follows a change.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Length {
    /// Responses so far.
    pub(super) samples: u32,
    pub(super) mean: f64,
    /// Logarithms of the median and of the ninetieth percentile.
    pub(super) median: f64,
    pub(super) high: f64,
    /// Mean distance of the logarithm from the median.
    deviation: f64,
}

impl Length {
    pub(super) fn write(&self, out: &mut RecordWriter) {
        out.u64(self.samples.into());
        out.f64s(&[self.mean, self.median, self.high, self.deviation]);
    }

    pub(super) fn read(record: &mut RecordReader<'_>) -> Result<Self, MalformedRecord> {
        let samples = u32::try_from(record.u64()?).map_err(|_| MalformedRecord)?;
        let mean = record.f64(0.0..=1e12)?;
        // Of logarithms; a quantile may have been moved below 0 by short responses.
        let [median, high, deviation] = record.f64s(&(-50.0..=50.0))?;
        Ok(Self { samples, mean, median, high, deviation: deviation.max(0.0) })
    }

    /// Adds a response. The first is compared with the pool's mean.
    pub(super) fn note(&mut self, tokens: f64, pool: f64) {
        let mean = if self.samples == 0 { pool } else { self.mean };
        let tokens = tokens.min(mean.max(1.0) * CLIP);
        let log = tokens.max(1.0).ln();
        self.samples = self.samples.saturating_add(1);
        if self.samples == 1 {
            *self = Self { samples: 1, mean: tokens, median: log, high: log, deviation: LEAST_DEVIATION };
            return;
        }
        let share = (1.0 / f64::from(self.samples)).max(LEAST_SHARE);
        self.mean += (tokens - self.mean) * share;
        self.deviation += ((log - self.median).abs() - self.deviation) * share;
        // For numbers that are spread evenly these steps are the best: 1/n over their density.
        let step =
            self.deviation.max(LEAST_DEVIATION) * (4.0 / f64::from(self.samples)).clamp(LEAST_STEP, 1.0);
        let moved = |estimate: f64, p: f64| estimate + step * if log > estimate { p } else { p - 1.0 };
        self.median = moved(self.median, 0.5);
        self.high = moved(self.high, 0.9);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use usher_core::random::mix;

    /// Evenly in 0..1.
    fn draw(number: u64) -> f64 {
        (mix(number) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Tokens between `low` and `high`, evenly by their logarithm.
    pub(in crate::latency) fn tokens(number: u64, low: f64, high: f64) -> u64 {
        (low * (high / low).powf(draw(number))) as u64
    }

    #[test]
    fn length_quantiles_approach_those_of_responses() {
        for (samples, times) in [(60, 1.6), (500, 1.3), (3000, 1.3)] {
            let mut length = Length::default();
            for n in 0..samples {
                length.note(tokens(n, 50.0, 2000.0) as f64, 200.0);
            }
            for (got, expected) in
                [(length.median.exp(), 316.0), (length.high.exp(), 1383.0), (length.mean, 529.0)]
            {
                let ratio: f64 = got / expected;
                assert!(ratio < times && ratio > 1.0 / times, "{samples}: {got} is not {expected}");
            }
        }
    }

    #[test]
    fn length_quantiles_follow_longer_responses() {
        let mut length = Length::default();
        (0..2000).for_each(|n| length.note(tokens(n, 50.0, 100.0) as f64, 200.0));
        assert!(length.high.exp() < 110.0, "{length:?}");
        (0..400).for_each(|n| length.note(tokens(n, 500.0, 1000.0) as f64, 200.0));
        assert!((450.0..1100.0).contains(&length.median.exp()), "{length:?}");
        assert!((700.0..1400.0).contains(&length.high.exp()), "{length:?}");
    }
}
