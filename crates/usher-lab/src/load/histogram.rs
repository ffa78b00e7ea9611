//! A histogram of latencies in fixed memory, whatever their number.

use std::time::Duration;

/// Bits of a value that are kept: buckets are at most 1/128 wide, relative to their values.
const BITS: u32 = 7;

/// Buckets of one power of two.
const PER_OCTAVE: usize = 1 << BITS;

/// Buckets for all 64-bit numbers of nanoseconds. Below `PER_OCTAVE` each value has its own.
const BUCKETS: usize = (64 - BITS as usize + 1) * PER_OCTAVE;

/// Durations in buckets whose width grows with their values: percentiles are exact to
/// less than one percent, mean and maximum are exact.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Empty until the first value, as many histograms never get one.
    counts: Vec<u64>,
    count: u64,
    /// Nanoseconds.
    sum: u128,
    max: u64,
}

impl Histogram {
    /// Counts a duration.
    pub fn record(&mut self, value: Duration) {
        let nanos = u64::try_from(value.as_nanos()).unwrap_or(u64::MAX);
        if self.counts.is_empty() {
            self.counts.resize(BUCKETS, 0);
        }
        self.counts[bucket(nanos)] += 1;
        self.count += 1;
        self.sum += u128::from(nanos);
        self.max = self.max.max(nanos);
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The largest; zero when there is none.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max)
    }

    /// The mean; zero when there is none.
    pub fn mean(&self) -> Duration {
        let mean = self.sum / u128::from(self.count.max(1));
        Duration::from_nanos(u64::try_from(mean).unwrap_or(u64::MAX))
    }

    /// The least duration that the part `p` (0 to 1) of all does not exceed (nearest
    /// rank), rounded up by less than one percent; zero when there is none.
    pub fn percentile(&self, p: f64) -> Duration {
        let rank = ((p * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(upper(index).min(self.max));
            }
        }
        Duration::ZERO
    }
}

/// The bucket of a value: its power of two, and its next bits.
fn bucket(value: u64) -> usize {
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(BITS + 1);
    shift as usize * PER_OCTAVE + (value >> shift) as usize
}

/// The largest value of a bucket.
fn upper(bucket: usize) -> u64 {
    let shift = (bucket / PER_OCTAVE).saturating_sub(1);
    let first = (bucket - shift * PER_OCTAVE) as u64;
    (first << shift) + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn percentiles_match_sorted_values(
            // As many small ones as large ones.
            values in prop::collection::vec((any::<u64>(), 0u32..64).prop_map(|(v, shift)| v >> shift), 1..300),
            p in 0f64..=1.0,
        ) {
            let mut histogram = Histogram::default();
            for value in &values {
                histogram.record(Duration::from_nanos(*value));
            }
            let mut sorted = values.clone();
            sorted.sort_unstable();
            let rank = (p * sorted.len() as f64).ceil() as usize;
            let exact = sorted[rank.max(1) - 1];
            let found = histogram.percentile(p).as_nanos() as u64;
            prop_assert!(found >= exact && (found - exact) as f64 <= exact as f64 / 128.0, "{found} for {exact}");
            prop_assert_eq!(histogram.count(), sorted.len() as u64);
            prop_assert_eq!(histogram.max().as_nanos() as u64, sorted[sorted.len() - 1]);
            let sum: u128 = values.iter().map(|value| u128::from(*value)).sum();
            prop_assert_eq!(histogram.mean().as_nanos(), sum / values.len() as u128);
        }

        #[test]
        fn every_value_is_in_its_bucket(value in any::<u64>(), shift in 0u32..64) {
            let value = value >> shift;
            let bucket = bucket(value);
            prop_assert!(bucket < BUCKETS && upper(bucket) >= value);
            prop_assert!(bucket == 0 || upper(bucket - 1) < value);
        }
    }

    #[test]
    fn without_values_everything_is_zero() {
        let histogram = Histogram::default();
        let all = [histogram.max(), histogram.mean(), histogram.percentile(0.5)];
        assert_eq!((all, histogram.count()), ([Duration::ZERO; 3], 0));
    }
}
