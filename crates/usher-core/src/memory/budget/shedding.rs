//! Sheds requests that wait, and bodies that are slow, where too much is used.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{TryLockError, Weak};

use super::{Budget, BudgetFull, overcommit, tight};

/// Promised until it is known how much is shed: what is given back meanwhile may be part of it.
pub(super) const UNKNOWN: u64 = 1 << 62;

impl Budget {
    /// Sheds requests that wait when it is tight, and says whether so much may be used.
    pub(super) fn shed_if_tight(
        &self,
        mut total: u64,
        priority: impl FnOnce() -> Option<i32>,
    ) -> Result<(), BudgetFull> {
        let limit = self.limit.load(Relaxed);
        if total <= tight(limit) {
            return Ok(());
        }
        let priority = priority();
        if let Some(priority) = priority {
            self.make_room(total - tight(limit), limit, priority);
            total = self.total();
        }
        if total > limit {
            self.was_full.store(true, Relaxed);
        }
        // Those that are leaving hold theirs for a moment longer.
        let leaving =
            || Some(self.promised.load(Relaxed)).filter(|promised| *promised < UNKNOWN).unwrap_or(0);
        if total > limit.saturating_add(leaving()) {
            self.shed_serially(|promised| {
                let missing = total.saturating_sub(limit.saturating_add(promised));
                if missing == 0 {
                    return 0;
                }
                // One that isn't known yet counts as that of a request without an objective.
                self.uploads.abort_slow(missing.saturating_add(limit / 16), priority.unwrap_or(0))
            });
        }
        if total > limit.saturating_add(leaving().min(overcommit(limit))) { Err(BudgetFull) } else { Ok(()) }
    }

    /// Sheds requests that wait for so many bytes and a sixteenth of the budget, but for what
    /// is on its way already. Whoever sheds looks at all that wait: it is to be worth it.
    fn make_room(&self, bytes: u64, limit: u64, highest: i32) {
        if bytes <= self.promised.load(Relaxed) {
            return;
        }
        let Some(sheds) = self.sheds.get().and_then(Weak::upgrade) else { return };
        let shed = self.shed_serially(|promised| {
            let missing = bytes.saturating_sub(promised);
            if missing > 0 { sheds.shed(missing.saturating_add(limit / 16), highest) } else { 0 }
        });
        self.shed.fetch_add(shed, Relaxed);
    }

    /// Gives up streams on which nothing has come while more is used than the limit says: whoever comes
    /// then is refused before it can ask for room.
    pub(in crate::memory) fn abort_silent(&self) {
        let limit = self.limit.load(Relaxed);
        if self.total() <= limit {
            return;
        }
        self.shed_serially(|promised| {
            let missing = self.total().saturating_sub(limit.saturating_add(promised));
            if missing == 0 {
                return 0;
            }
            self.uploads.abort_slow(missing.saturating_add(limit / 16), i32::MIN)
        });
    }

    /// Lets one thread at a time shed requests; the others go on. `shed` gets how much is promised
    /// already, and returns how much more it has shed, which is promised from then on, too. Returns that.
    fn shed_serially(&self, shed: impl FnOnce(u64) -> u64) -> u64 {
        let _one_at_a_time = match self.shedding.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => return 0,
        };
        let shed = shed(self.promised.fetch_add(UNKNOWN, Relaxed));
        let known = |promised: u64| Some(promised.saturating_sub(UNKNOWN.saturating_sub(shed)));
        let _ = self.promised.fetch_update(Relaxed, Relaxed, known);
        shed
    }
}
