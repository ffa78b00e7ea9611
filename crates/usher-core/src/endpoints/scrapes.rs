//! Outcomes of the scrapes of an endpoint.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Outcomes of the scrapes of an endpoint's metrics. Written by one scraper, read by all threads.
#[derive(Debug, Default)]
pub struct ScrapeHealth {
    failures: AtomicU32,
    unreachable: AtomicU32,
    total: AtomicU64,
    failing_since_ms: AtomicU64,
}

impl ScrapeHealth {
    /// A scrape brought a page.
    pub fn succeeded(&self) {
        // Nearly always there is nothing to write, and readers keep what they have cached.
        if self.failures.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
            self.unreachable.store(0, Relaxed);
            self.failing_since_ms.store(0, Relaxed);
        }
    }

    /// A scrape brought no page; `connected`: but there was a connection. `now_ms` is from
    /// the [`Clock`](super::Clock), never 0.
    pub fn failed(&self, connected: bool, now_ms: u64) {
        let failures = self.failures.load(Relaxed);
        if failures == 0 {
            self.failing_since_ms.store(now_ms, Relaxed);
        }
        self.failures.store(failures.saturating_add(1), Relaxed);
        let unreachable = if connected { 0 } else { self.unreachable.load(Relaxed).saturating_add(1) };
        self.unreachable.store(unreachable, Relaxed);
        self.total.fetch_add(1, Relaxed);
    }

    /// Scrapes in a row that failed; 0 after one that brought a page, and before the first.
    pub fn failures_in_a_row(&self) -> u32 {
        self.failures.load(Relaxed)
    }

    /// Number of the last scrapes, in a row, that could not connect: refused, no
    /// route, or no response in time.
    pub fn unreachable_in_a_row(&self) -> u32 {
        self.unreachable.load(Relaxed)
    }

    /// All scrapes that failed.
    pub fn failures_total(&self) -> u64 {
        self.total.load(Relaxed)
    }

    /// Time at which the first of the failures in a row was; `None` when the last scrape brought a
    /// page, and before the first.
    pub fn failing_since_ms(&self) -> Option<u64> {
        match self.failing_since_ms.load(Relaxed) {
            0 => None,
            at => Some(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_until_a_page_comes() {
        let health = ScrapeHealth::default();
        let read = || {
            let counts = (health.failures_in_a_row(), health.unreachable_in_a_row(), health.failures_total());
            (counts, health.failing_since_ms())
        };
        assert_eq!(read(), ((0, 0, 0), None));
        health.failed(false, 5);
        health.failed(false, 6);
        assert_eq!(read(), ((2, 2, 2), Some(5)));
        health.failed(true, 7);
        assert_eq!(read(), ((3, 0, 3), Some(5)), "somebody is there");
        health.failed(false, 8);
        assert_eq!(read(), ((4, 1, 4), Some(5)));
        health.succeeded();
        assert_eq!(read(), ((0, 0, 4), None));
        health.failed(false, 9);
        assert_eq!(read(), ((1, 1, 5), Some(9)));
    }
}
