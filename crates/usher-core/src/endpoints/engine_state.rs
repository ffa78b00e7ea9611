//! State of a model server's process, from its metrics.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Start and sleep of an engine, as its pages said last. Scrapes write, where something needs it; who follows KV events
/// reads.
#[derive(Debug, Default)]
pub struct EngineState {
    /// Bits of a number; 0 before the first.
    started: AtomicU64,
    asleep: AtomicBool,
}

impl EngineState {
    /// The process started at this Unix time, in seconds.
    pub fn set_started(&self, seconds: f64) {
        self.started.store(seconds.to_bits(), Relaxed);
    }

    /// Unix time at which the process started, in seconds; `None` before a page said it.
    pub fn started(&self) -> Option<f64> {
        Some(f64::from_bits(self.started.load(Relaxed))).filter(|seconds| *seconds > 0.0)
    }

    /// Sets whether the engine sleeps, for which it drops its KV cache, or is awake.
    pub fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, Relaxed);
    }

    /// Returns `true` if it sleeps. `false` before a page said it.
    pub fn is_asleep(&self) -> bool {
        self.asleep.load(Relaxed)
    }
}
