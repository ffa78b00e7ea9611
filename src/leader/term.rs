//! For how long a leader may act on the cluster.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::RwLock;

use crate::cluster::Problem;
use crate::endpoints::Clock;

/// Time before its end in which no write begins any more, and those under way are no longer waited
/// for. A server may carry out a request that was given up; what lies between the renew deadline and
/// the lease's end is for that, and this for clocks that run apart.
const MARGIN: Duration = Duration::from_millis(200);

/// Time for which a write without a response is waited for before the lease is given up: a server may carry it out
/// yet.
const UNSURE: Duration = Duration::from_secs(2);

/// Time in which this replica is the only one to act on the cluster. It may go on serving requests
/// after that: two that respond do no harm, two that write the same object do.
#[derive(Debug)]
pub struct Term {
    clock: Clock,
    /// End in the clock's milliseconds; 0: it has not begun.
    ends_ms: AtomicU64,
    /// Held by every write that is under way.
    writing: RwLock<()>,
    /// When writes that may be carried out yet are taken to be over, in the clock's milliseconds.
    unsure_ms: AtomicU64,
}

impl Term {
    /// A term that begins with a lease.
    pub fn new(clock: Clock) -> Self {
        Self { clock, ends_ms: AtomicU64::new(0), writing: RwLock::default(), unsure_ms: AtomicU64::new(0) }
    }

    /// A term without an end, for pickers without leader election.
    pub fn endless(clock: Clock) -> Self {
        Self { ends_ms: AtomicU64::new(u64::MAX), ..Self::new(clock) }
    }

    /// Returns `true` if this replica may act now.
    pub fn lasts(&self) -> bool {
        self.clock.elapsed().as_millis() < self.ends_ms.load(Relaxed).into()
    }

    /// Time that is left of it; zero: this replica may not act.
    pub fn left(&self) -> Duration {
        let ends = Duration::from_millis(self.ends_ms.load(Relaxed));
        ends.saturating_sub(self.clock.elapsed())
    }

    /// Does one write to the cluster, if there is time for it, and waits for no longer than the term lasts.
    ///
    /// # Errors
    /// `Problem` of the write; [`Problem::TimedOut`] if the term is over, or ends before the response.
    pub async fn write<T>(&self, write: impl Future<Output = Result<T, Problem>>) -> Result<T, Problem> {
        let _under_way = self.writing.read().await;
        let left = self.left().saturating_sub(MARGIN);
        if left.is_zero() {
            return Err(Problem::TimedOut(left));
        }
        // Also where nobody waits for the end of this.
        let mut unsure = Unsure { term: self, is_sure: false };
        let written = tokio::time::timeout(left, write).await.unwrap_or(Err(Problem::TimedOut(left)));
        unsure.is_sure = !written.as_ref().is_err_and(Problem::is_unsure);
        written
    }

    /// Waits for writes that are under way, and for those that may be.
    pub(super) async fn settled(&self) {
        drop(self.writing.write().await);
        let over = Duration::from_millis(self.unsure_ms.load(Relaxed));
        tokio::time::sleep(over.saturating_sub(self.clock.elapsed())).await;
    }

    /// Ends it: this replica is about to stop.
    pub fn end(&self) {
        self.set(None);
    }

    /// Sets its end; `None`: it is over.
    pub(crate) fn set(&self, ends: Option<Duration>) {
        let ends_ms = ends.map_or(0, |ends| u64::try_from(ends.as_millis()).unwrap_or(u64::MAX));
        self.ends_ms.store(ends_ms, Relaxed);
    }
}

/// A write that may be carried out after it was given up.
struct Unsure<'a> {
    term: &'a Term,
    is_sure: bool,
}

impl Drop for Unsure<'_> {
    fn drop(&mut self) {
        if !self.is_sure {
            let over = self.term.clock.elapsed() + UNSURE;
            self.term.unsure_ms.fetch_max(u64::try_from(over.as_millis()).unwrap_or(u64::MAX), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_write_begins_or_is_waited_for_after_the_term() {
        let clock = Clock::stopped();
        let term = Term::new(clock.clone());
        term.set(Some(Duration::from_secs(3)));
        let quick = || async { Ok(()) };
        assert_eq!(term.write(quick()).await, Ok(()));
        let began = tokio::time::Instant::now();
        let slow = term.write(async {
            tokio::time::sleep(Duration::from_secs(15)).await;
            Ok::<(), Problem>(())
        });
        let settled = async {
            tokio::task::yield_now().await;
            term.set(None);
            term.settled().await;
        };
        let (slow, ()) = tokio::join!(slow, settled);
        assert!(slow.is_err());
        let both = Duration::from_secs(3) - MARGIN;
        assert_eq!(began.elapsed(), both + UNSURE, "it may be carried out yet");
        assert!(term.write(quick()).await.is_err(), "it was given up");
        term.set(Some(Duration::from_secs(6)));
        clock.set(Duration::from_millis(5_900));
        assert!(term.write(quick()).await.is_err(), "too late");
        assert!(Term::endless(clock).write(quick()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn abandoned_write_may_still_be_carried_out() {
        let term = Term::endless(Clock::stopped());
        let write = term.write(std::future::pending::<Result<(), Problem>>());
        assert!(tokio::time::timeout(Duration::from_secs(1), write).await.is_err());
        let began = tokio::time::Instant::now();
        term.settled().await;
        assert_eq!(began.elapsed(), UNSURE);
    }

    #[test]
    fn term_ends_by_timeout_or_by_release() {
        let clock = Clock::stopped();
        clock.set(Duration::from_secs(5));
        assert!(Term::endless(clock.clone()).lasts());
        let term = Term::new(clock.clone());
        assert!(!term.lasts());
        term.set(Some(Duration::from_secs(8)));
        clock.set(Duration::from_millis(7_999));
        assert!(term.lasts());
        clock.set(Duration::from_secs(8));
        assert!(!term.lasts());
        term.set(Some(Duration::from_secs(9)));
        assert!(term.lasts());
        term.set(None);
        assert!(!term.lasts());
    }
}
