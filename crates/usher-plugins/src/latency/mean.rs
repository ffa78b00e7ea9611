//! Means of what came lately.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Share of a mean's weight that remains after another observation.
const KEEP: f64 = 0.98;

/// Observations beyond so many times a mean count as that: one that is wrong is forgotten soon.
pub(super) const CLIP: f64 = 16.0;

/// A mean in which later observations count more, as `f64` bits. 0: none was made yet.
#[derive(Debug, Default)]
pub(super) struct Mean(AtomicU64);

impl Mean {
    /// A mean that is expected to be this before any observation.
    pub(super) fn expected(value: f64) -> Self {
        Self(AtomicU64::new(value.to_bits()))
    }

    pub(super) fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Relaxed))
    }

    /// Replaces it.
    pub(super) fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Relaxed);
    }

    /// Adds an observation. Of two at the same moment one may be lost: a mean of many is none the
    /// worse for it, and threads need not wait for each other.
    pub(super) fn note(&self, value: f64) {
        let bits = self.0.load(Relaxed);
        let before = f64::from_bits(bits);
        let next = if bits == 0 { value } else { before * KEEP + value * (1.0 - KEEP) };
        self.0.store(next.to_bits(), Relaxed);
    }

    /// Adds an observation that may be wrong.
    pub(super) fn note_clipped(&self, value: f64) {
        let before = self.get();
        self.note(if before > 0.0 { value.min(before * CLIP) } else { value });
    }
}
