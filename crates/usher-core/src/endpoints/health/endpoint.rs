//! Health of one endpoint.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::detector::OutlierDetector;
use super::ejection::{Change, Condition, EjectionState, Failure, HealthParams};
use super::first_byte::FirstBytes;
use super::pending::{Bound, Page, Pending};
use super::verdict::Verdict;
use crate::endpoints::Load;

/// Health of one endpoint. Belongs to an endpoint at an address: another address is another
/// server.
#[derive(Debug)]
pub struct Health {
    id: Arc<str>,
    /// `None`: no outlier detection.
    pub(super) outliers: Option<Arc<OutlierDetector>>,
    // Guards the state; taken by failures, and by successes only of those who are in
    // trouble, for some nanoseconds.
    state: Mutex<EjectionState>,
    // Guards the requests that wait for a first byte; taken when one is sent, when its first
    // byte comes, with every page and every sweep. A sweep looks at each of those of its endpoint
    // while it holds it, some ten times a second.
    pending: Mutex<Pending>,
    /// `true` if there was activity since the last sweep.
    lives: AtomicBool,
    /// A success would change something.
    troubled: AtomicBool,
    /// A page would change something.
    troubled_scrapes: AtomicBool,
    /// A scrape brought a page once.
    has_pages: AtomicBool,
    /// When a probe is due; 0: not ejected.
    due_ms: AtomicU64,
}

impl Health {
    /// Health of a new endpoint.
    pub(in crate::endpoints) fn new(id: Arc<str>, outliers: Option<Arc<OutlierDetector>>) -> Self {
        Self {
            id,
            outliers,
            state: Mutex::default(),
            pending: Mutex::default(),
            lives: AtomicBool::default(),
            troubled: AtomicBool::default(),
            troubled_scrapes: AtomicBool::default(),
            has_pages: AtomicBool::default(),
            due_ms: AtomicU64::default(),
        }
    }

    /// Returns `true` if it gets probes only.
    pub fn is_ejected(&self) -> bool {
        self.due_ms().is_some()
    }

    /// Earliest time of the next probe, in milliseconds of the detector's clock; `u64::MAX` while the
    /// endpoint refuses connections; `None` if it isn't ejected.
    pub fn due_ms(&self) -> Option<u64> {
        Some(self.due_ms.load(Relaxed)).filter(|due_ms| *due_ms != 0)
    }

    /// A request that was sent there at `sent_ms` failed.
    pub fn failed(&self, failure: Failure, sent_ms: u64) {
        self.change(|state, params, now_ms| state.failed(params, failure, sent_ms, now_ms));
    }

    /// A request that was sent there at `sent_ms` was answered well.
    pub fn succeeded(&self, sent_ms: u64) {
        // Nearly always there is nothing to write.
        if self.troubled.load(Relaxed) {
            self.change(|state, params, now_ms| state.succeeded(params, sent_ms, now_ms));
        }
    }

    /// A good response came to its end there, however long ago it began.
    pub fn finished(&self) {
        self.lives();
        // As above: a failed scrape makes it troubled.
        if self.troubled.load(Relaxed) {
            self.change(|state, _, _| {
                state.finished();
                Change::Nothing
            });
        }
    }

    /// Reports the end of a request that was sent there at `sent_ms`.
    pub fn ended(&self, verdict: Verdict, sent_ms: u64) {
        match verdict {
            Verdict::Good => self.succeeded(sent_ms),
            Verdict::Failed(status) => self.failed(Failure::Status(status), sent_ms),
            Verdict::Unclear => {}
        }
    }

    /// The gateway said that this endpoint served a request.
    pub fn named_as_server(&self) {
        if let Some(outliers) = &self.outliers {
            outliers.named_server();
        }
    }

    /// A scrape failed, in a way that says something about the server. Of one that never showed a page it
    /// says nothing: it may serve at this port and show none here. `refused`: nobody listens where
    /// requests go, too.
    pub fn scrape_failed(&self, refused: bool) {
        if self.has_pages.load(Relaxed) {
            self.change(|state, params, now_ms| state.scrape_failed(params, refused, now_ms));
        }
    }

    /// A scrape brought a page.
    pub fn scrape_succeeded(&self) {
        if !self.has_pages.load(Relaxed) {
            self.has_pages.store(true, Relaxed);
        }
        if self.troubled_scrapes.load(Relaxed) {
            self.change(EjectionState::scrape_succeeded);
        }
    }

    /// Compares the readings of a page with the one before, and with the requests that this
    /// process has there: those that it should show and doesn't weigh as waiting.
    pub fn page_read(&self, load: &Load) {
        if self.outliers.is_none() {
            return;
        }
        let (waiting, running) = (load.waiting.last(), load.running.last());
        // Of a server that doesn't say how many it runs nothing is missing.
        let says = load.running.read_at_ms().is_some();
        let sent = if says { load.in_flight() as f64 - load.unseen() as f64 } else { 0.0 };
        let mut pending = self.pending();
        pending.note_missing((sent - waiting - running).max(0.0) as u64);
        load.set_unreported(pending.unreported());
        let works = pending.page(Page { waiting, running, kv_usage: load.kv_usage.last() });
        drop(pending);
        if works {
            self.lives();
        }
    }

    /// State of the endpoint's health, for the admin page.
    pub fn condition(&self) -> Condition {
        self.state().condition()
    }

    /// Applies an event to the state machine; counts and logs the change.
    fn change(&self, event: impl FnOnce(&mut EjectionState, &HealthParams, u64) -> Change) {
        let Some(outliers) = &self.outliers else { return };
        let mut state = self.state();
        let change = event(&mut state, outliers.params(), outliers.now_ms());
        self.show(&state);
        drop(state);
        match change {
            Change::Nothing => {}
            Change::Ejected(failure) => {
                outliers.ejected(failure);
                tracing::warn!(endpoint = %self.id, reason = %failure, "endpoint ejected; it gets probes only");
            }
            Change::Recovered(ejected_ms) => {
                outliers.recovered();
                tracing::info!(endpoint = %self.id, ejected_ms, "ejected endpoint works again");
            }
        }
    }

    /// Learns from the first bytes since the last sweep. Returns when there was a sign of
    /// life last.
    pub(super) fn listen(&self, times: &mut FirstBytes, now_ms: u64) -> u64 {
        let lives = self.lives.load(Relaxed) && self.lives.swap(false, Relaxed);
        self.pending().listen(lives, times, now_ms)
    }

    /// Counts requests whose first byte takes long as load, and as failed if it takes too long.
    pub(super) fn judge(&self, bound: &Bound<'_>, load: &Load, now_ms: u64) {
        let mut pending = self.pending();
        pending.count_overdue(bound.usual, now_ms);
        load.set_unreported(pending.unreported());
        let failures = pending.failures(bound, now_ms);
        drop(pending);
        failures.into_iter().for_each(|sent_ms| self.failed(Failure::Timeout, sent_ms));
    }

    /// Notes activity: a part of a response, or a page that shows work.
    pub fn lives(&self) {
        // Once between two sweeps there is something to write.
        if !self.lives.load(Relaxed) {
            self.lives.store(true, Relaxed);
        }
    }

    /// The first byte of a request came that counted as failed.
    pub(super) fn answered_late(&self) {
        self.change(|state, params, now_ms| state.answered_late(params, now_ms));
    }

    // Nothing panics while it holds this lock.
    pub(super) fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the state that readers see without the lock, which the caller holds.
    pub(super) fn show(&self, state: &EjectionState) {
        self.troubled.store(!state.is_quiet(), Relaxed);
        self.troubled_scrapes.store(!state.is_quiet_for_scrapes(), Relaxed);
        self.due_ms.store(state.due_ms().map_or(0, |due| due.max(1)), Relaxed);
    }

    // Nothing panics while it holds this lock.
    pub(super) fn state(&self) -> MutexGuard<'_, EjectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.outliers.as_ref().map_or(0, |outliers| outliers.now_ms())
    }
}

impl Drop for Health {
    fn drop(&mut self) {
        if let Some(outliers) = self.outliers.as_ref().filter(|_| self.is_ejected()) {
            outliers.left();
        }
    }
}
