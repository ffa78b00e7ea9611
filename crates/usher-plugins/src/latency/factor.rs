//! Factor by which one endpoint is slower than those that should be as fast.

use usher_plugin::MalformedRecord;

use crate::record::{RecordReader, RecordWriter};

/// Share of the weight of earlier observations that remains after another one.
const KEEP: f64 = 0.95;

/// An observation says at most that an endpoint is so many times slower or faster than
/// what is known of it, as a logarithm: 2 times.
const CLIP: f64 = std::f64::consts::LN_2;

/// Standard errors of the mean within which an endpoint counts as equal to the others.
const EQUAL: f64 = 2.0;

/// Standard deviation of the logarithm that observations are taken to have at first, and
/// for how many of them.
const FIRST: (f64, f64) = (0.5, 4.0);

/// Mean of the logarithms of observed by predicted times.
///
/// Equal endpoints should look equal: only as far as the mean differs from 0 by more than
/// its noise (soft thresholding), it counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factor {
    mean: f64,
    /// Variance of the observations.
    variance: f64,
    weight: f64,
}

impl Default for Factor {
    fn default() -> Self {
        Self { mean: 0.0, variance: FIRST.0 * FIRST.0, weight: 0.0 }
    }
}

impl Factor {
    /// An observed time is so many times the predicted one; ignored unless above 0.
    pub(super) fn observe(&mut self, ratio: f64) {
        let log = ratio.ln();
        if !log.is_finite() {
            return;
        }
        let residual = (log - self.mean).clamp(-CLIP, CLIP);
        self.weight = self.weight * KEEP + 1.0;
        self.mean += residual / self.weight;
        let share = 1.0 / (self.weight + FIRST.1);
        self.variance += (residual * residual - self.variance) * share;
    }

    /// Writes what was observed.
    pub(super) fn write(&self, out: &mut RecordWriter) {
        out.f64s(&[self.mean, self.variance, self.weight]);
    }

    /// Reads what another process observed.
    pub(super) fn read(record: &mut RecordReader<'_>) -> Result<Self, MalformedRecord> {
        let (mean, variance) = (record.f64(-10.0..=10.0)?, record.f64(0.0..=10.0)?);
        Ok(Self { mean, variance, weight: record.f64(0.0..=1.0 / (1.0 - KEEP))? })
    }

    /// Times that the endpoint takes as long as the others; 1 as long as that may be chance.
    pub(super) fn value(self) -> f64 {
        let noise = EQUAL * (self.variance / self.weight.max(1.0)).sqrt();
        let excess = (self.mean.abs() - noise).max(0.0);
        (excess * self.mean.signum()).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_core::random::mix;

    fn noise(number: u64) -> f64 {
        (mix(number) >> 11) as f64 / (1u64 << 53) as f64 * 0.8 - 0.4
    }

    #[test]
    fn equal_endpoints_have_equal_factors() {
        for endpoint in 0..50u64 {
            let mut factor = Factor::default();
            for n in 0..200 {
                factor.observe(noise(endpoint << 32 | n).exp());
            }
            assert!((factor.value() - 1.0).abs() < 0.1, "{endpoint} {}", factor.value());
        }
    }

    #[test]
    fn slow_endpoint_is_detected_after_some_requests() {
        let mut factor = Factor::default();
        for n in 0..20 {
            factor.observe(3.0 * noise(n).exp());
        }
        assert!((2.0..3.2).contains(&factor.value()), "{}", factor.value());
    }

    #[test]
    fn factor_is_robust_to_an_outlier() {
        let mut factor = Factor::default();
        for n in 0..50 {
            factor.observe(1.5 * noise(n).exp());
        }
        let before = factor.value();
        factor.observe(50.0);
        assert!(factor.value() / before < 1.1, "{before} {}", factor.value());
        factor.observe(0.0);
        factor.observe(f64::NAN);
        assert!(factor.value().is_finite());
    }
}
