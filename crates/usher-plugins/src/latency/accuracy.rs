//! Distance of predicted times from measured ones, by load.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use super::residuals::{BANDS, band};

/// Latest predictions per load band that count.
const WINDOW: usize = 512;

/// Share of times that the upper bound of a prediction should hold.
pub(super) const COVERED: f64 = 0.9;

/// Errors of the latest predictions of one kind of time.
#[derive(Debug, Default)]
pub(super) struct Accuracy {
    // Taken when a time is measured, and when somebody asks.
    bands: Mutex<[Band; BANDS]>,
}

#[derive(Debug, Default)]
struct Band {
    total: u64,
    latest: VecDeque<Outcome>,
}

#[derive(Clone, Copy, Debug)]
struct Outcome {
    error: f32,
    is_covered: bool,
}

/// Accuracy of the latest predictions in one load band.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BandAccuracy {
    /// Number of the band: band 3 is loads from 0.3 to 0.4.
    pub decile: usize,
    /// Predictions so far.
    pub predictions: u64,
    /// Median of |predicted − measured| / measured.
    pub median_error: f64,
    /// Share of measured times at or below the predicted 90th percentile.
    pub p90_coverage: f64,
}

/// Accuracy of the latest predictions.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Prediction {
    /// Accuracy of times to a first token.
    pub ttft: Vec<BandAccuracy>,
    /// Accuracy of mean times from one output token to the next.
    pub tpot: Vec<BandAccuracy>,
}

impl Accuracy {
    /// A time was predicted at this load (0..=1), with this upper bound, and measured, in
    /// seconds. Ignored where one of them isn't above 0 and finite.
    pub(super) fn record(&self, load: f64, predicted: f64, bound: f64, measured: f64) {
        let error = (predicted - measured).abs() / measured;
        if !(error.is_finite() && measured > 0.0 && predicted > 0.0) {
            return;
        }
        let mut bands = self.bands.lock().unwrap_or_else(PoisonError::into_inner);
        let band = &mut bands[band(load)];
        band.total += 1;
        if band.latest.len() == WINDOW {
            band.latest.pop_front();
        }
        band.latest.push_back(Outcome { error: error as f32, is_covered: measured <= bound });
    }

    /// Accuracy in the bands that have predictions.
    pub(super) fn bands(&self) -> Vec<BandAccuracy> {
        let bands = self.bands.lock().unwrap_or_else(PoisonError::into_inner);
        let all = bands.iter().enumerate();
        all.filter_map(|(decile, band)| band.accuracy(decile)).collect()
    }
}

impl Band {
    fn accuracy(&self, decile: usize) -> Option<BandAccuracy> {
        let mut errors: Vec<f32> = self.latest.iter().map(|outcome| outcome.error).collect();
        let middle = errors.len() / 2;
        if errors.is_empty() {
            return None;
        }
        let (_, median, _) = errors.select_nth_unstable_by(middle, f32::total_cmp);
        let covered = self.latest.iter().filter(|outcome| outcome.is_covered).count();
        Some(BandAccuracy {
            decile,
            predictions: self.total,
            median_error: f64::from(*median),
            p90_coverage: covered as f64 / self.latest.len() as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_coverage_are_per_band() {
        let accuracy = Accuracy::default();
        for n in 1..=9 {
            // 10 % to 90 % too long; the bound holds for all but the last two.
            accuracy.record(0.35, 1.0 + f64::from(n) / 10.0, if n < 8 { 1.0 } else { 0.9 }, 1.0);
        }
        accuracy.record(1.0, 0.5, 0.4, 1.0);
        let [middle, top] = accuracy.bands()[..] else { panic!("{:?}", accuracy.bands()) };
        assert_eq!((middle.decile, middle.predictions), (3, 9));
        assert!((middle.median_error - 0.5).abs() < 1e-6 && (middle.p90_coverage - 7.0 / 9.0).abs() < 1e-9);
        let lone = BandAccuracy { decile: 9, predictions: 1, median_error: 0.5, p90_coverage: 0.0 };
        assert_eq!(top, lone);
    }

    #[test]
    fn only_the_latest_count() {
        let accuracy = Accuracy::default();
        (0..WINDOW).for_each(|_| accuracy.record(0.0, 3.0, 0.0, 1.0));
        (0..WINDOW).for_each(|_| accuracy.record(0.0, 1.0, 2.0, 1.0));
        let [only] = accuracy.bands()[..] else { panic!() };
        assert_eq!((only.predictions, only.median_error, only.p90_coverage), (2 * WINDOW as u64, 0.0, 1.0));
    }

    #[test]
    fn invalid_times_are_ignored() {
        let accuracy = Accuracy::default();
        for (predicted, measured) in [(0.0, 1.0), (1.0, 0.0), (f64::NAN, 1.0), (1.0, f64::INFINITY)] {
            accuracy.record(0.5, predicted, 1.0, measured);
        }
        assert!(accuracy.bands().is_empty());
    }
}
