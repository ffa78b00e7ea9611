//! Targets for the time per output token: of the requests at an endpoint, and of those that
//! came lately.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;

use super::time::{nanos_of, seconds};

/// Time after its last request in which a class of requests is expected to have more.
const RECENT: Duration = Duration::from_secs(60);

/// Classes that are remembered at most; beyond them the one that came longest ago goes.
const MOST: usize = 16;

/// Targets of the requests at one endpoint.
#[derive(Debug)]
pub(super) struct Targets {
    /// The smallest, in nanoseconds; `u64::MAX` while there is none.
    tightest: AtomicU64,
    /// Natural logarithm in seconds, as `f64` bits.
    log: AtomicU64,
    /// Requests that have it.
    count: AtomicU64,
    // Requests by target. Taken when a request with a target comes and goes.
    all: Mutex<BTreeMap<u64, u64>>,
}

/// The smallest target of the requests at an endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tightest {
    /// In seconds.
    pub(super) target: f64,
    /// Natural logarithm.
    pub(super) log: f64,
    /// Requests that have it.
    pub(super) requests: f64,
}

impl Default for Targets {
    fn default() -> Self {
        Self {
            tightest: AtomicU64::new(u64::MAX),
            log: AtomicU64::default(),
            count: AtomicU64::new(0),
            all: Mutex::default(),
        }
    }
}

impl Targets {
    /// The smallest target, in seconds, and how many requests have it.
    #[inline]
    pub(super) fn tightest(&self) -> Option<(f64, f64)> {
        let nanos = self.tightest.load(Relaxed);
        (nanos < u64::MAX).then(|| (seconds(nanos), self.count.load(Relaxed) as f64))
    }

    /// The smallest target, with its logarithm.
    #[inline]
    pub(super) fn tightest_log(&self) -> Option<Tightest> {
        let (target, requests) = self.tightest()?;
        Some(Tightest { target, log: f64::from_bits(self.log.load(Relaxed)), requests })
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<u64, u64>)) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut all);
        let (tightest, count) =
            all.first_key_value().map_or((u64::MAX, 0), |(target, count)| (*target, *count));
        self.log.store(seconds(tightest).ln().to_bits(), Relaxed);
        self.tightest.store(tightest, Relaxed);
        self.count.store(count, Relaxed);
    }

    /// One more request has this target, in nanoseconds.
    pub(super) fn add(&self, nanos: u64) {
        self.change(|all| *all.entry(nanos).or_default() += 1);
    }

    /// One request less has it.
    pub(super) fn remove(&self, nanos: u64) {
        self.change(|all| {
            let Some(count) = all.get_mut(&nanos) else { return };
            *count -= 1;
            if *count == 0 {
                all.remove(&nanos);
            }
        });
    }
}

/// Targets that requests named lately.
#[derive(Debug, Default)]
pub(super) struct Recent {
    // Target in nanoseconds and when it was named last. Taken for requests with targets.
    latest: Mutex<Vec<(u64, Duration)>>,
}

impl Recent {
    /// A request named this target, in seconds.
    pub(super) fn note(&self, target: f64, now: Duration) {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let nanos = nanos_of(target);
        if let Some(known) = latest.iter_mut().find(|(known, _)| *known == nanos) {
            known.1 = now;
            return;
        }
        if latest.len() >= MOST {
            let oldest = latest.iter().enumerate().min_by_key(|(_, (_, at))| *at).map(|(place, _)| place);
            oldest.map(|place| latest.swap_remove(place));
        }
        latest.push((nanos, now));
    }

    /// Targets below a limit, in seconds, in no order.
    pub(super) fn below(&self, limit: f64, now: Duration) -> SmallVec<[f64; MOST]> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = latest.iter().filter(|(_, at)| now.saturating_sub(*at) <= RECENT);
        recent.map(|(nanos, _)| seconds(*nanos)).filter(|target| *target < limit).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_target_classes_are_forgotten() {
        let recent = Recent::default();
        let at = Duration::from_secs;
        recent.note(0.02, at(0));
        recent.note(0.05, at(50));
        assert_eq!(recent.below(1.0, at(60)).as_slice(), [0.02, 0.05]);
        assert_eq!(recent.below(0.05, at(60)).as_slice(), [0.02]);
        assert_eq!(recent.below(1.0, at(61)).as_slice(), [0.05]);
        for n in 0..100 {
            recent.note(0.1 + f64::from(n) / 100.0, at(62 + u64::from(n as u32)));
        }
        assert!(recent.latest.lock().unwrap().len() <= MOST);
        assert_eq!(recent.below(0.06, at(62)).len(), 0, "it came longest ago");
    }
}
