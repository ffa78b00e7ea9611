//! Times that a model server has measured itself, as totals since it started.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Sum and number of the values of a histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Total {
    /// Sum of the values.
    pub sum: f64,
    /// Number of values.
    pub count: f64,
}

/// Totals of one page. `None`: the server doesn't report it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineTimes {
    /// Seconds from a request's arrival to its first token.
    pub first_token: Option<Total>,
    /// Seconds from the batch to the first token, counted when requests end.
    pub prefill: Option<Total>,
    /// Prompt tokens computed, counted when requests end.
    pub computed: Option<Total>,
    /// Seconds from one output token to the next.
    pub inter_token: Option<Total>,
    /// Mean seconds per output token after the first, a value per request, counted when requests end.
    pub per_request: Option<Total>,
    /// Unix time of the server's start, in seconds.
    pub started: Option<f64>,
}

/// The latest totals of an endpoint. Scrapes write, bookings read.
#[derive(Debug, Default)]
pub struct EngineTimesReading {
    /// Pages so far.
    version: AtomicU64,
    // Taken once a second by the scrape, and by the first booking after it.
    latest: Mutex<EngineTimes>,
}

impl EngineTimesReading {
    /// Stores the totals of another page.
    pub fn set(&self, times: EngineTimes) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = times;
        self.version.fetch_add(1, Relaxed);
    }

    /// Number of pages so far; 0 before the first.
    pub fn version(&self) -> u64 {
        self.version.load(Relaxed)
    }

    /// The latest totals.
    pub fn get(&self) -> EngineTimes {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
