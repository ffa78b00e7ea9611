//! A linear model of a time, learned from one observation after the other.

use usher_plugin::MalformedRecord;

use crate::record::{RecordReader, RecordWriter};

/// Relative error that observations have at first, before their own says more.
const FIRST_ERROR: f64 = 1.0;

/// Smallest relative error that observations are taken to have: what a model of so few
/// numbers leaves out.
const LEAST_ERROR: f64 = 0.1;

/// Share of the mean error that remains after another observation.
const KEEP_ERROR: f64 = 0.95;

/// Residuals beyond so many mean errors count as that.
const CLIP: f64 = 2.0;

/// From so many observations on, one changes each coefficient by this part at most, and so the prediction for any
/// inputs: it may be the first of its size, and wrong.
const SETTLED: u64 = 50;
const MOST_CHANGE: f64 = 0.19;

/// Share of the first uncertainty that every observation adds again: coefficients follow an
/// engine that changes.
const DRIFT: f64 = 2e-3;

/// Shortest time that an observation is compared with, in seconds.
const SHORTEST: f64 = 1e-3;

/// Largest number that is read from others, in seconds per unit of an input: none that was learned is near.
const MOST_READ: f64 = 1e6;

/// Coefficients of `time = Σ coefficient × input`, in seconds per unit of the input, none
/// negative.
///
/// A Kalman filter whose state is the coefficients and doesn't move but for noise (Kalman
/// 1960; recursive least squares with an additive drift in place of a forgetting factor).
/// Residuals are relative to the prediction, so that short and long times count alike, and
/// clipped (Huber 1964), so that one outlier moves little.
#[derive(Clone, Debug)]
pub(super) struct Fit<const N: usize> {
    coefficients: [f64; N],
    /// Smallest values of the coefficients, above 0.
    least: [f64; N],
    /// Uncertainty of the coefficients: covariances in their units.
    covariance: [[f64; N]; N],
    /// Variances at first.
    first: [f64; N],
    /// Mean of the relative residuals.
    error: f64,
    samples: u64,
}

impl<const N: usize> Fit<N> {
    /// A model that expects these coefficients, each with a standard deviation of its size. `least`: smallest values of
    /// them, above 0.
    pub(super) fn new(expected: [f64; N], least: [f64; N]) -> Self {
        Self::with_deviation(expected, least, expected)
    }

    /// A model that expects these coefficients, each with this standard deviation.
    pub(super) fn with_deviation(expected: [f64; N], least: [f64; N], deviation: [f64; N]) -> Self {
        let first = deviation.map(|value| value * value);
        let mut covariance = [[0.0; N]; N];
        for (n, row) in covariance.iter_mut().enumerate() {
            row[n] = first[n];
        }
        Self { coefficients: expected, least, covariance, first, error: FIRST_ERROR, samples: 0 }
    }

    pub(super) fn coefficients(&self) -> [f64; N] {
        self.coefficients
    }

    /// Observations so far.
    pub(super) fn samples(&self) -> u64 {
        self.samples
    }

    /// Writes what was learned.
    pub(super) fn write(&self, out: &mut RecordWriter) {
        out.u64(self.samples);
        out.f64(self.error);
        out.f64s(&self.coefficients);
        // Symmetric.
        self.covariance.iter().enumerate().for_each(|(n, row)| out.f64s(&row[n..]));
    }

    /// Reads what another model learned that expected about the same.
    pub(super) fn read(&self, record: &mut RecordReader<'_>) -> Result<Self, MalformedRecord> {
        let samples = record.u64()?.min(1 << 48);
        // With an error of 0 nothing would be learned any more.
        let error = record.f64(0.0..=MOST_READ)?.clamp(LEAST_ERROR * LEAST_ERROR, FIRST_ERROR);
        let mut coefficients = record.f64s(&(0.0..=MOST_READ))?;
        for (coefficient, least) in coefficients.iter_mut().zip(&self.least) {
            *coefficient = coefficient.max(*least);
        }
        let mut covariance = [[0.0; N]; N];
        for (n, row) in covariance.iter_mut().enumerate() {
            for cell in row.iter_mut().skip(n) {
                *cell = record.f64(-MOST_READ..=MOST_READ)?;
            }
        }
        let upper = covariance;
        for (n, row) in covariance.iter_mut().enumerate() {
            for (cell, column) in row.iter_mut().zip(&upper).take(n) {
                *cell = column[n];
            }
        }
        let is_within = covariance.iter().enumerate().all(|(n, row)| row[n] <= self.first[n]);
        if !is_within || !is_positive(&covariance) {
            // As of a model that knows its coefficients no better than at first.
            for (n, row) in covariance.iter_mut().enumerate() {
                *row = [0.0; N];
                row[n] = self.first[n];
            }
        }
        Ok(Self { coefficients, covariance, error, samples, ..*self })
    }

    /// Forgets the coefficient of an input, and expects this one again.
    pub(super) fn forget(&mut self, input: usize, expected: f64) {
        self.coefficients[input] = expected;
        for row in &mut self.covariance {
            row[input] = 0.0;
        }
        self.covariance[input] = [0.0; N];
        self.covariance[input][input] = self.first[input];
    }

    /// Seconds for these inputs.
    pub(super) fn predict(&self, inputs: &[f64; N]) -> f64 {
        dot(&self.coefficients, inputs)
    }

    /// Adds an observation: inputs and the seconds that they took.
    pub(super) fn observe(&mut self, inputs: &[f64; N], seconds: f64) {
        let predicted = self.predict(inputs).max(SHORTEST);
        let residual = (seconds - predicted) / predicted;
        if !residual.is_finite() {
            return;
        }
        let clipped = residual.clamp(-CLIP * self.error, CLIP * self.error);
        self.samples += 1;
        let noise = self.error.max(LEAST_ERROR).powi(2);
        self.error = self.error * KEEP_ERROR + clipped.abs() * (1.0 - KEEP_ERROR);
        // Relative to the prediction, the observation is of coefficients · inputs / predicted.
        let scaled = inputs.map(|input| input / predicted);
        let mut uncertain = [0.0; N];
        for (n, row) in self.covariance.iter().enumerate() {
            uncertain[n] = dot(row, &scaled);
        }
        let variance = dot(&uncertain, &scaled);
        let total = noise + variance;
        let mut steps = uncertain.map(|uncertain| uncertain / total * clipped);
        for ((step, coefficient), least) in steps.iter_mut().zip(&self.coefficients).zip(&self.least) {
            *step = step.max(least - coefficient);
        }
        let share = if self.samples > SETTLED { self.share(&steps) } else { 1.0 };
        for ((coefficient, step), least) in self.coefficients.iter_mut().zip(&steps).zip(&self.least) {
            *coefficient = (*coefficient + share * step).max(*least);
        }
        // Joseph's form for this share of the gain: what wasn't learned stays uncertain.
        let known = share * (2.0 - share) / total;
        for (n, row) in self.covariance.iter_mut().enumerate() {
            for (cell, other) in row.iter_mut().zip(&uncertain) {
                *cell -= uncertain[n] * other * known;
            }
            row[n] = (row[n] + DRIFT * self.first[n]).min(self.first[n]);
        }
    }

    /// Share of these steps by which no coefficient changes by more than it may.
    fn share(&self, steps: &[f64; N]) -> f64 {
        self.coefficients.iter().zip(steps).fold(1.0, |share, (coefficient, step)| {
            // Not a number if both are 0.
            share.min(MOST_CHANGE * coefficient / step.abs())
        })
    }
}

/// Returns `true` if this is a covariance: positive definite, as its Cholesky decomposition exists.
fn is_positive<const N: usize>(covariance: &[[f64; N]; N]) -> bool {
    let mut lower = [[0.0; N]; N];
    for n in 0..N {
        for m in 0..=n {
            let rest = covariance[n][m] - (0..m).map(|k| lower[n][k] * lower[m][k]).sum::<f64>();
            if n == m && !(rest > 0.0 && rest.is_finite()) {
                return false;
            }
            lower[n][m] = if n == m { rest.sqrt() } else { rest / lower[m][m] };
        }
    }
    true
}

fn dot<const N: usize>(a: &[f64; N], b: &[f64; N]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_core::random::mix;

    /// Evenly in 0..1.
    fn draw(number: u64) -> f64 {
        (mix(number) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// As groups of endpoints have it.
    fn least(expected: [f64; 3]) -> [f64; 3] {
        expected.map(|value| 0.05 * value)
    }

    fn fitted(expected: [f64; 3], truth: [f64; 3], noise: f64, samples: u64) -> Fit<3> {
        let mut fit = Fit::new(expected, least(expected));
        for n in 0..samples {
            let inputs = [1.0, (draw(3 * n) * 30.0).floor(), draw(3 * n + 1) * 8000.0];
            let error = 1.0 + noise * (2.0 * draw(3 * n + 2) - 1.0);
            fit.observe(&inputs, dot(&truth, &inputs) * error);
        }
        fit
    }

    #[test]
    fn hundred_observations_correct_threefold_errors() {
        let truth = [0.02, 0.001, 1.0 / 16_000.0];
        for wrong in [3.0, 1.0 / 3.0] {
            let fit = fitted(truth.map(|value| value * wrong), truth, 0.2, 100);
            for inputs in [[1.0, 5.0, 500.0], [1.0, 20.0, 4000.0], [1.0, 0.0, 8000.0]] {
                let ratio = fit.predict(&inputs) / dot(&truth, &inputs);
                assert!((ratio - 1.0).abs() < 0.15, "{wrong} {inputs:?} {ratio}");
            }
        }
    }

    #[test]
    fn fit_of_another_process_learns_on_as_before() {
        let truth = [0.02, 0.001, 1.0 / 16_000.0];
        let expected = [0.03, 0.0005, 1.0 / 9000.0];
        let mut fit = fitted(expected, truth, 0.2, 100);
        let mut out = RecordWriter::default();
        fit.write(&mut out);
        let mut record = RecordReader(&out.0);
        let mut read = Fit::new(expected, least(expected)).read(&mut record).unwrap();
        assert!(record.is_empty());
        for n in 0..20 {
            let inputs = [1.0, draw(2 * n) * 30.0, draw(2 * n + 1) * 8000.0];
            fit.observe(&inputs, dot(&truth, &inputs));
            read.observe(&inputs, dot(&truth, &inputs));
        }
        assert_eq!((read.coefficients(), read.samples()), (fit.coefficients(), 120));
    }

    #[test]
    fn forgotten_coefficient_is_learned_anew() {
        let truth = [0.02, 0.001, 1.0 / 16_000.0];
        let mut fit = fitted(truth, truth, 0.2, 200);
        let [first, per_request, _] = fit.coefficients();
        fit.forget(2, 1.0 / 4000.0);
        assert_eq!(fit.coefficients(), [first, per_request, 1.0 / 4000.0]);
        assert!(is_positive(&fit.covariance));
        for n in 0..60 {
            let inputs = [1.0, (draw(2 * n) * 30.0).floor(), draw(2 * n + 1) * 8000.0];
            fit.observe(&inputs, dot(&truth, &inputs));
        }
        assert!((fit.coefficients()[2] * 16_000.0 - 1.0).abs() < 0.1, "{fit:?}");
    }

    #[test]
    fn numbers_that_no_process_learned_stay_finite() {
        let mine = Fit::new([0.01, 0.001, 1e-4], [1e-3, 1e-5, 1e-6]);
        let mut out = RecordWriter::default();
        mine.write(&mut out);
        for seed in 0..2000u64 {
            let mut bytes = out.0.clone();
            for n in 0..3 {
                let at = mix(seed * 8 + n) as usize % bytes.len();
                bytes[at] = mix(seed * 8 + n + 3) as u8;
            }
            let Ok(mut read) = mine.read(&mut RecordReader(&bytes)) else { continue };
            for n in 0..50 {
                let inputs = [1.0, draw(2 * n) * 30.0, draw(2 * n + 1) * 8000.0];
                read.observe(&inputs, 0.1 + draw(n));
            }
            let all = read.coefficients().into_iter().zip([1e-3, 1e-5, 1e-6]);
            assert!(all.clone().all(|(value, least)| value.is_finite() && value >= least), "{seed} {read:?}");
        }
    }

    #[test]
    fn an_outlier_moves_the_prediction_little() {
        let truth = [0.02, 0.001, 1.0 / 16_000.0];
        let mut fit = fitted(truth, truth, 0.2, 50);
        let inputs = [1.0, 10.0, 1000.0];
        let before = fit.predict(&inputs);
        fit.observe(&inputs, 5.0);
        assert!((fit.predict(&inputs) / before - 1.0).abs() < 0.1, "{before} {}", fit.predict(&inputs));
    }

    #[test]
    fn outlier_of_a_new_size_moves_the_prediction_little() {
        let truth = [0.02, 0.001, 1.0 / 16_000.0];
        for seed in 0..50 {
            let mut fit = Fit::new(truth, least(truth));
            for n in 100 * seed..100 * seed + 50 {
                let inputs = [1.0, (draw(3 * n) * 30.0).floor(), 16.0 + draw(3 * n + 1) * 84.0];
                fit.observe(&inputs, dot(&truth, &inputs) * (0.8 + 0.4 * draw(3 * n + 2)));
            }
            for inputs in [[1.0, 5.0, 2000.0], [1.0, 200.0, 50.0], [1.0, 0.0, 100_000.0]] {
                let mut fit = fit.clone();
                let before = fit.predict(&inputs);
                fit.observe(&inputs, 50.0);
                let ratio = fit.predict(&inputs) / before;
                assert!((0.8..1.2).contains(&ratio), "{seed} {inputs:?} {ratio}");
            }
        }
    }

    #[test]
    fn an_outlier_moves_predictions_of_other_sizes_little() {
        let (truth, expected) = ([0.02, 0.001, 1.0 / 16_000.0], [0.03, 5e-4, 1.0 / 15_928.0]);
        let sizes = [(16.0, 100.0), (200.0, 1570.0), (0.0, 8000.0)];
        for (seed, (from, to)) in (0..100).flat_map(|seed| sizes.map(|sizes| (seed, sizes))) {
            let mut fit = Fit::new(expected, least(expected));
            for n in 100 * seed..100 * seed + 50 {
                let tokens = from + draw(3 * n + 1) * (to - from);
                let inputs = [1.0, (draw(3 * n) * 30.0).floor(), tokens];
                fit.observe(&inputs, dot(&truth, &inputs) * (0.8 + 0.4 * draw(3 * n + 2)));
            }
            for outlier in [
                [1.0, 5.0, 50.0],
                [1.0, 0.0, 16.0],
                [1.0, 0.0, 100.0],
                [1.0, 0.0, 500.0],
                [1.0, 20.0, 3000.0],
            ] {
                let mut after = fit.clone();
                after.observe(&outlier, 5.0);
                for inputs in [[1.0, 0.0, 0.0], [1.0, 0.0, 100.0], [1.0, 200.0, 50.0], [1.0, 0.0, 8000.0]] {
                    let ratio = after.predict(&inputs) / fit.predict(&inputs);
                    assert!((0.8..1.2).contains(&ratio), "{seed} {from} {outlier:?} {inputs:?} {ratio}");
                }
            }
        }
    }

    #[test]
    fn fit_follows_an_engine_that_slows_down() {
        let truth = [0.02, 0.001, 1.0 / 16_000.0];
        let mut fit = fitted(truth, truth, 0.1, 500);
        let slower = truth.map(|value| value * 2.0);
        for n in 0..150 {
            let inputs = [1.0, (draw(2 * n) * 30.0).floor(), draw(2 * n + 1) * 8000.0];
            fit.observe(&inputs, dot(&slower, &inputs));
        }
        let inputs = [1.0, 10.0, 2000.0];
        let ratio = fit.predict(&inputs) / dot(&slower, &inputs);
        assert!((ratio - 1.0).abs() < 0.15, "{ratio}");
    }

    #[test]
    fn numbers_stay_finite_and_above_their_least() {
        let mut fit = Fit::new([0.01, 0.001, 1e-4], [1e-3, 1e-5, 1e-6]);
        for (inputs, seconds) in
            [([1.0, 0.0, 0.0], 0.0), ([1.0, 1e9, 1e9], 1e9), ([0.0; 3], 1.0), ([1.0, 1.0, 1.0], f64::NAN)]
        {
            for _ in 0..100 {
                fit.observe(&inputs, seconds);
            }
        }
        let all = fit.coefficients().into_iter().zip([1e-3, 1e-5, 1e-6]);
        assert!(all.clone().all(|(value, least)| value.is_finite() && value >= least), "{fit:?}");
    }
}
