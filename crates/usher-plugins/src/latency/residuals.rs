//! Distribution of measured over predicted times, by load.
//!
//! A prediction is a number; a latency target asks for the chance of staying below another.
//! Logarithms of measured over predicted times are kept in a window per load band and one
//! for all loads. A band with few samples leans on the window of all loads, and that on a
//! log-normal prior.

use std::sync::{Mutex, PoisonError};

use usher_plugin::MalformedRecord;

use super::distribution::{Distribution, GRID, POINTS, Quantiles};
use crate::record::{RecordReader, RecordWriter};

/// Load bands of equal width in 0..=1.
pub const BANDS: usize = 10;

/// Latest ratios that are kept per band.
const WINDOW: usize = 128;

/// Latest ratios that are kept for all loads.
const WINDOW_OF_ALL: usize = 512;

/// Samples of its own with which a band counts as much as all loads; fewer and more of them
/// count by their square.
const LEAN: f32 = 16.0;

/// Samples that the prior counts for in the distribution of all loads.
const PRIOR: f32 = 8.0;

/// Standard deviation of the logarithm in the prior, whose median is 1.
const SPREAD: f32 = 0.4;

/// Largest logarithm of a ratio that is kept: a hundred times.
const MOST: f64 = 4.605;

/// The load band of a load.
pub fn band(load: f64) -> usize {
    // Casts from floats saturate, and NaN becomes 0.
    ((load * BANDS as f64) as u32 as usize).min(BANDS - 1)
}

/// Ratios of measured to predicted times by load.
///
/// One lock is taken per sample; reading takes none.
#[derive(Debug)]
pub struct Residuals {
    bands: [Distribution; BANDS],
    // Taken when a time is measured.
    windows: Mutex<Windows>,
}

/// The latest ratios.
#[derive(Debug)]
pub(super) struct Windows {
    bands: [Window; BANDS],
    all: Window,
}

impl Default for Residuals {
    fn default() -> Self {
        let (windows, residuals) =
            (Windows::default(), Self { bands: Default::default(), windows: Mutex::default() });
        residuals.publish(&windows);
        residuals
    }
}

impl Residuals {
    /// A time that was predicted at this load (0..=1), and what it was, in seconds. Ignored
    /// unless both times are above 0 and finite.
    pub fn record(&self, load: f64, predicted: f64, measured: f64) {
        let log = (measured / predicted).ln();
        if !log.is_finite() || measured <= 0.0 {
            return;
        }
        let log = log.clamp(-MOST, MOST) as f32;
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        windows.all.push(log);
        windows.all.update(PRIOR);
        let window = &mut windows.bands[band(load)];
        window.push(log);
        window.update(0.0);
        self.publish(&windows);
    }

    /// Writes the latest ratios.
    pub(super) fn write(&self, out: &mut RecordWriter) {
        let windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        windows.bands.iter().chain([&windows.all]).for_each(|window| window.write(out));
    }

    /// Replaces all ratios.
    pub(super) fn set(&self, windows: Windows) {
        self.publish(&windows);
        *self.windows.lock().unwrap_or_else(PoisonError::into_inner) = windows;
    }

    /// Publishes every band's own quantiles blended with those of all loads.
    fn publish(&self, windows: &Windows) {
        for (distribution, own) in self.bands.iter().zip(&windows.bands) {
            let samples = own.sorted.len() as f32;
            let share = samples * samples / (samples * samples + LEAN * LEAN);
            let blend =
                |point: usize| own.quantiles[point] * share + windows.all.quantiles[point] * (1.0 - share);
            distribution.set(&std::array::from_fn(blend));
        }
    }

    /// Ratio of measured to predicted time below which a share `p` (0..=1) of the times is
    /// at this load.
    pub fn quantile(&self, load: f64, p: f64) -> f64 {
        self.at(load).quantile(p)
    }

    /// Probability, 0..=1, that a time that is predicted to be `predicted` at this load is at
    /// most `limit`, both in seconds.
    pub fn within(&self, load: f64, predicted: f64, limit: f64) -> f64 {
        self.at(load).within(predicted, limit)
    }

    /// Distribution of the ratio at this load.
    pub fn at(&self, load: f64) -> &Distribution {
        self.of(band(load))
    }

    /// Distribution of the ratio in this load band.
    #[inline]
    pub(super) fn of(&self, band: usize) -> &Distribution {
        &self.bands[band.min(BANDS - 1)]
    }
}

/// The value that another sample is below with this probability; 0 of none.
fn quantile_of(sorted: &[f32], p: f32) -> f32 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    // Of n samples in order the one numbered r exceeds another with probability r/(n + 1).
    let rank = (p * (sorted.len() as f32 + 1.0) - 1.0).clamp(0.0, last as f32);
    let below = rank as usize;
    let above = (below + 1).min(last);
    sorted[below] + (rank - below as f32) * (sorted[above] - sorted[below])
}

/// The latest values, in the order in which they came and by size.
#[derive(Debug)]
struct Window {
    most: usize,
    latest: Vec<f32>,
    /// Place of the oldest, once all are taken.
    oldest: usize,
    sorted: Vec<f32>,
    quantiles: Quantiles,
}

impl Default for Windows {
    fn default() -> Self {
        let mut all = Window::new(WINDOW_OF_ALL);
        all.update(PRIOR);
        Self { bands: std::array::from_fn(|_| Window::new(WINDOW)), all }
    }
}

impl Windows {
    /// Reads ratios of another process.
    pub(super) fn read(record: &mut RecordReader<'_>) -> Result<Self, MalformedRecord> {
        let mut windows = Self::default();
        for window in &mut windows.bands {
            window.read(record)?;
            window.update(0.0);
        }
        windows.all.read(record)?;
        windows.all.update(PRIOR);
        Ok(windows)
    }
}

impl Window {
    fn new(most: usize) -> Self {
        let quantiles = [0.0; POINTS];
        Self { most, latest: Vec::new(), oldest: 0, sorted: Vec::new(), quantiles }
    }

    /// Writes the values from the oldest on, as parts of the largest.
    fn write(&self, out: &mut RecordWriter) {
        let (newest, oldest) = self.latest.split_at(self.oldest);
        out.u16(u16::try_from(self.latest.len()).unwrap_or(u16::MAX));
        for value in oldest.iter().chain(newest) {
            // Casts from floats saturate.
            out.u16((f64::from(*value) / MOST * f64::from(i16::MAX)) as i16 as u16);
        }
    }

    fn read(&mut self, record: &mut RecordReader<'_>) -> Result<(), MalformedRecord> {
        let values = usize::from(record.u16()?);
        if values > self.most {
            return Err(MalformedRecord);
        }
        for _ in 0..values {
            let part = f64::from(record.u16()? as i16) / f64::from(i16::MAX);
            self.push((part * MOST) as f32);
        }
        Ok(())
    }

    fn push(&mut self, value: f32) {
        if self.latest.len() < self.most {
            self.latest.push(value);
        } else {
            let old = std::mem::replace(&mut self.latest[self.oldest], value);
            self.oldest = (self.oldest + 1) % self.most;
            let place = self.sorted.partition_point(|other| *other < old);
            self.sorted.remove(place);
        }
        let place = self.sorted.partition_point(|other| *other < value);
        self.sorted.insert(place, value);
    }

    /// Works out the quantiles of the values and of so many more of the prior.
    fn update(&mut self, prior: f32) {
        let samples = self.sorted.len() as f32;
        let share = if self.sorted.is_empty() { 0.0 } else { samples / (samples + prior) };
        for (quantile, (p, normal)) in self.quantiles.iter_mut().zip(GRID) {
            *quantile = share * quantile_of(&self.sorted, p) + (1.0 - share) * SPREAD * normal;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_core::random::mix;

    /// Evenly in 0..1.
    fn draw(number: u64) -> f64 {
        (mix(number) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Ratios evenly in `low..high`.
    fn even(residuals: &Residuals, load: f64, low: f64, high: f64, samples: u64) {
        for n in 0..samples {
            residuals.record(load, 2.0, 2.0 * (low + (high - low) * draw(n)));
        }
    }

    #[test]
    fn quantiles_follow_the_ratios_of_their_load() {
        let residuals = Residuals::default();
        even(&residuals, 0.15, 0.5, 1.5, 500);
        even(&residuals, 0.95, 2.0, 4.0, 500);
        for (p, low, high) in [(0.1, 0.6, 2.2), (0.5, 1.0, 3.0), (0.9, 1.4, 3.8)] {
            assert!((residuals.quantile(0.15, p) / low - 1.0).abs() < 0.15, "{p}");
            assert!((residuals.quantile(0.95, p) / high - 1.0).abs() < 0.15, "{p}");
            assert!((residuals.within(0.15, 0.2, 0.2 * low) - p).abs() < 0.1, "{p}");
            assert!((residuals.within(0.95, 0.2, 0.2 * high) - p).abs() < 0.1, "{p}");
        }
    }

    #[test]
    fn residuals_without_samples_follow_the_prior() {
        let residuals = Residuals::default();
        assert!((residuals.quantile(0.3, 0.5) - 1.0).abs() < 1e-6);
        assert!((residuals.quantile(0.3, 0.9) / (0.4f64 * 1.282).exp() - 1.0).abs() < 1e-3);
        assert!((residuals.within(0.3, 1.0, 1.0) - 0.5).abs() < 1e-3);
        assert!(residuals.within(0.3, 1.0, 10.0) > 0.99 && residuals.within(0.3, 1.0, 0.1) < 0.01);
    }

    #[test]
    fn a_band_with_few_samples_leans_on_all_loads() {
        let residuals = Residuals::default();
        even(&residuals, 0.15, 1.9, 2.1, 300);
        assert!((residuals.quantile(0.85, 0.5) - 2.0).abs() < 0.1, "nothing of its own");
        residuals.record(0.85, 1.0, 20.0);
        assert!(residuals.quantile(0.85, 0.5) < 2.6, "one of its own");
        even(&residuals, 0.85, 4.9, 5.1, 128);
        assert!((residuals.quantile(0.85, 0.5) - 5.0).abs() < 0.6, "many of its own");
        assert!((residuals.quantile(0.15, 0.5) - 2.0).abs() < 0.2, "the other band is as it was");
    }

    #[test]
    fn old_ratios_are_forgotten() {
        let residuals = Residuals::default();
        even(&residuals, 0.5, 0.2, 0.4, 2000);
        even(&residuals, 0.5, 2.0, 3.0, WINDOW_OF_ALL as u64);
        assert!(residuals.within(0.5, 1.0, 1.5) < 0.05);
        let windows = residuals.windows.lock().unwrap();
        assert_eq!((windows.all.latest.len(), windows.all.sorted.len()), (WINDOW_OF_ALL, WINDOW_OF_ALL));
        assert_eq!(windows.bands[5].sorted.len(), WINDOW);
    }

    #[test]
    fn ninety_percent_of_new_samples_are_below_p90() {
        let residuals = Residuals::default();
        let mut below = 0;
        for n in 0..4000 {
            let ratio = (0.5 * draw(2 * n) + 0.5 * draw(2 * n + 1) - 0.5).exp();
            if n >= 200 && ratio <= residuals.quantile(0.4, 0.9) {
                below += 1;
            }
            residuals.record(0.4, 1.0, ratio);
        }
        assert!((0.88..0.92).contains(&(f64::from(below) / 3800.0)), "{below}");
    }

    #[test]
    fn chance_rises_with_the_limit_and_quantile_with_the_chance() {
        let residuals = Residuals::default();
        even(&residuals, 0.5, 0.9, 1.1, 30);
        let limits = (1..200).map(|n| residuals.within(0.5, 1.0, f64::from(n) * 0.05));
        let chances: Vec<f64> = limits.collect();
        assert!(chances.is_sorted() && chances.iter().all(|chance| (0.0..=1.0).contains(chance)));
        let quantiles: Vec<f64> = (0..=100).map(|n| residuals.quantile(0.5, f64::from(n) / 100.0)).collect();
        assert!(quantiles.is_sorted() && quantiles.iter().all(|ratio| ratio.is_finite() && *ratio > 0.0));
    }

    #[test]
    fn ratios_of_another_process_are_forgotten_in_their_order() {
        let (residuals, read) = (Residuals::default(), Residuals::default());
        even(&residuals, 0.5, 0.2, 0.4, 1000);
        even(&residuals, 0.5, 2.0, 3.0, 100);
        let mut out = RecordWriter::default();
        residuals.write(&mut out);
        let mut record = RecordReader(&out.0);
        read.set(Windows::read(&mut record).unwrap());
        assert!(record.is_empty() && Windows::read(&mut RecordReader(&out.0[1..])).is_err());
        for _ in 0..2 {
            for (load, p) in [(0.5, 0.1), (0.5, 0.9), (0.1, 0.5)] {
                let (ratio, expected) = (read.quantile(load, p), residuals.quantile(load, p));
                assert!((ratio / expected - 1.0).abs() < 1e-3, "{load} {p}: {ratio} {expected}");
            }
            for residuals in [&residuals, &read] {
                even(residuals, 0.5, 1.0, 1.1, 80);
            }
        }
    }

    #[test]
    fn odd_numbers_are_ignored_or_have_a_result() {
        let residuals = Residuals::default();
        for (predicted, measured) in
            [(0.0, 1.0), (1.0, 0.0), (-1.0, -1.0), (f64::NAN, 1.0), (1.0, f64::INFINITY), (0.0, 0.0)]
        {
            residuals.record(f64::NAN, predicted, measured);
        }
        assert!((residuals.quantile(0.0, 0.5) - 1.0).abs() < 1e-6);
        residuals.record(7.0, 1.0, 1.1);
        residuals.record(-7.0, 1.0, 1.1);
        assert_eq!((band(f64::NAN), band(-1.0), band(1.0), band(0.95), band(0.1)), (0, 0, 9, 9, 1));
        assert_eq!(residuals.within(0.5, 1.0, f64::INFINITY), 1.0);
        assert_eq!(residuals.within(0.5, 1.0, 0.0), 0.0);
        assert_eq!(residuals.within(0.5, 0.0, 1.0), 1.0);
        assert_eq!(residuals.within(0.5, 1.0, f64::NAN), 0.0);
    }
}
