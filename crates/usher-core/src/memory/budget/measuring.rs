//! Measurement of the process' memory over time and as counted memory grows.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::{Budget, Kind};
use crate::memory::meter::Sample;
use crate::memory::watch::Watch;

/// This part of what a stream counts is taken by one that does nothing: 2 KiB.
const IDLE_SHARE: u64 = 4;

impl Budget {
    /// Measures the process from now on: its resident memory, besides what is counted, is what
    /// the limit leaves room for, so that the process as a whole stays below its budget. It is
    /// looked at as what is counted grows; that it is as time passes, too, is for
    /// [`keep_measuring`](super::keep_measuring). Returns whether it can be measured: not without
    /// a budget of the process, nor on a system that has no `/proc`. The limit stays as it was
    /// then.
    pub fn measure(&self) -> bool {
        let Some(process) = self.process else { return false };
        match Watch::new(process) {
            Ok(watch) => {
                // One that is there already goes on.
                let _ = self.watch.set(watch);
                self.check();
                true
            }
            Err(error) => {
                tracing::warn!(%error, "cannot measure resident memory: the budget bounds only the memory that Usher counts itself");
                false
            }
        }
    }

    /// Bytes that the process takes besides what is counted; `None` where that isn't
    /// [measured](Self::measure).
    pub fn base(&self) -> Option<u64> {
        self.watch.get().map(Watch::base)
    }

    /// Measures the process, which may change the limit.
    #[cold]
    pub(super) fn check(&self) {
        let Some((limit, step)) = self.watch.get().and_then(|watch| self.evaluate(watch)) else { return };
        self.limit.store(limit, Relaxed);
        self.look_at.store(self.total().saturating_add(step), Relaxed);
    }

    /// Returns the limit of counted memory and the bytes until the next measurement; `None` where another task
    /// checks, or nothing can be seen.
    fn evaluate(&self, watch: &Watch) -> Option<(u64, u64)> {
        let mut seen = watch.seen()?;
        // What comes or goes meanwhile is not to make the base look smaller than it is.
        let before = self.counted_now();
        let resident = watch.resident()?;
        let counted = before.min(self.counted_now());
        let streams = self.used(Kind::Streams);
        let connections = self.used(Kind::Connections).saturating_sub(self.taken_by_connections());
        let pending = connections + self.used(Kind::SmallPorts) + (streams - streams / IDLE_SHARE);
        Some(watch.evaluate(&mut seen, Sample { resident, counted, pending }))
    }

    /// Counted memory that is known to be taken, in bytes.
    fn counted_now(&self) -> u64 {
        let kinds = [Kind::Bodies, Kind::PrefixIndex, Kind::Records, Kind::Unread, Kind::Tokenizers];
        let idle = self.used(Kind::Streams) / IDLE_SHARE + self.taken_by_connections();
        kinds.iter().map(|kind| self.used(*kind)).fold(idle, u64::saturating_add)
    }
}

/// Measures the process periodically, if the budget is [measured](Budget::measure). For a task of
/// its own beside the threads that serve requests: a check takes microseconds.
pub async fn keep_measuring(budget: Arc<Budget>) {
    let Some(watch) = budget.watch.get() else { return };
    loop {
        tokio::time::sleep(watch.pause()).await;
        budget.check();
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_limit_follows_the_process() {
        let all = Watch::new(1).unwrap().resident().unwrap();
        let budget = Budget::of_process(64 * all, None);
        let before = budget.limit().unwrap();
        assert_eq!(budget.base(), None);
        assert!(budget.measure());
        let (limit, base) = (budget.limit().unwrap(), budget.base().unwrap());
        assert!(limit > before && base < 32 * all, "{limit} instead of {before}, base {base}");
        // It is looked at again as what is counted grows, not only when time has passed.
        let budget = Arc::new(Budget::of_process(64 * all, None));
        assert!(budget.measure());
        budget.set_limit(1);
        let mut held = crate::memory::Reservation::new(&budget, Kind::Bodies);
        assert!(held.grow_to(all / 2, || None).is_err(), "it is looked at after more than that");
        assert!(held.grow_to(2 * all, || None).is_ok());
        // Nothing says what a process may have: there is nothing to measure.
        assert!(!Budget::unlimited(None).measure());
    }
}
