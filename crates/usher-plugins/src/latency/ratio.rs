//! Ratio of what was counted to what was expected, from sums that forget.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use usher_plugin::MalformedRecord;

use crate::record::{RecordReader, RecordWriter};

/// Share of the sums that remains after another response.
const KEEP: f64 = 0.98;

/// Tokens that the expectation is taken to have been right for, before any response.
const PRIOR: f64 = 4000.0;

/// Ratio of two sums of tokens, of which later ones count more. 1 at first.
#[derive(Debug)]
pub(super) struct Ratio {
    /// Bits of an `f64`.
    value: AtomicU64,
    /// Smallest and largest value.
    bounds: (f64, f64),
    /// Counted and expected tokens. Taken when a response has usage.
    sums: Mutex<[f64; 2]>,
}

impl Ratio {
    /// A ratio that stays within these bounds.
    pub(super) fn within(least: f64, most: f64) -> Self {
        let value = AtomicU64::new(1f64.to_bits());
        Self { value, bounds: (least, most), sums: Mutex::new([PRIOR; 2]) }
    }

    pub(super) fn value(&self) -> f64 {
        f64::from_bits(self.value.load(Relaxed))
    }

    /// Adds tokens of a response.
    pub(super) fn observe(&self, counted: f64, expected: f64) {
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        for (sum, tokens) in sums.iter_mut().zip([counted, expected]) {
            *sum = *sum * KEEP + tokens;
        }
        self.publish(&sums);
    }

    fn publish(&self, sums: &[f64; 2]) {
        let value = (sums[0] / sums[1]).clamp(self.bounds.0, self.bounds.1);
        self.value.store(value.to_bits(), Relaxed);
    }

    /// Writes the sums.
    pub(super) fn write(&self, out: &mut RecordWriter) {
        out.f64s(&*self.sums.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Reads sums of another process.
    pub(super) fn read(record: &mut RecordReader<'_>) -> Result<[f64; 2], MalformedRecord> {
        Ok([record.f64(0.0..=1e18)?, record.f64(1e-3..=1e18)?])
    }

    /// Replaces the sums.
    pub(super) fn set(&self, sums: [f64; 2]) {
        *self.sums.lock().unwrap_or_else(PoisonError::into_inner) = sums;
        self.publish(&sums);
    }
}
