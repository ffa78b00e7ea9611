//! Requests of small ports.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio_util::sync::CancellationToken;

use super::calls::{Calls, InProgress};
use super::{Budget, Kind, Reservation, small};

/// Requests of a small port. Each port has a share of its own, so that many requests of one end none of
/// another.
#[derive(Clone, Debug)]
pub struct SmallPort {
    budget: Arc<Budget>,
    calls: Arc<Calls>,
    /// Requests whose large responses are being sent.
    pages: Arc<Calls>,
}

impl SmallPort {
    /// A port without requests.
    pub fn new(budget: &Arc<Budget>) -> Self {
        Self { budget: Arc::clone(budget), calls: Arc::default(), pages: Arc::default() }
    }

    /// The budget that they count in.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Counts a request of so many bytes. When `end` is cancelled it has to end.
    ///
    /// Always has room: a health check has to be answered under any pressure, and takes no time. The oldest
    /// requests make room where those of the port take more than its share; these are watches, requests
    /// that are never complete and responses that nobody reads.
    pub fn begin(&self, bytes: u64, end: CancellationToken) -> SmallCall {
        self.begin_among(&self.calls, small::calls_share(&self.budget), bytes, end)
    }

    /// Counts a response of so many bytes until it is sent. The oldest make room for it, as with
    /// [`begin`](Self::begin), in a share of their own: scrapers that read slowly hold a page each.
    pub fn begin_page(&self, bytes: u64, end: CancellationToken) -> SmallCall {
        self.begin_among(&self.pages, small::pages_share(&self.budget), bytes, end)
    }

    fn begin_among(&self, calls: &Arc<Calls>, most: u64, bytes: u64, end: CancellationToken) -> SmallCall {
        let mut held = Reservation::new(&self.budget, Kind::SmallPorts);
        held.set(bytes);
        let (place, ended) = calls.begin(bytes, end, most);
        if ended > 0 {
            let before = self.budget.small_calls_ended.fetch_add(ended as u64, Relaxed);
            let count = before + ended as u64;
            // A line for each power of two: a flood must not flood the log.
            if count.checked_ilog2() != before.checked_ilog2() {
                tracing::warn!(
                    count,
                    limit = most,
                    "oldest requests of health, KEDA, metrics and admin ports ended to free memory"
                );
            }
        }
        SmallCall { _place: place, _held: held }
    }
}

/// Memory of a request on a [small port](SmallPort), counted until this is dropped.
#[derive(Debug)]
pub struct SmallCall {
    _place: InProgress,
    _held: Reservation,
}

impl Budget {
    /// Requests of small ports that were ended to make room for others.
    pub fn small_calls_ended(&self) -> u64 {
        self.small_calls_ended.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KI: u64 = 1 << 10;

    fn ended(ends: &[CancellationToken]) -> Vec<usize> {
        (0..ends.len()).filter(|place| ends[*place].is_cancelled()).collect()
    }

    #[test]
    fn oldest_requests_are_ended_first() {
        // A sixteenth is 5 MiB, of which a twentieth is for the requests of a port.
        let budget = Arc::new(Budget::of_process(80 << 20, None));
        let ends: Vec<_> = (0..12).map(|_| CancellationToken::new()).collect();
        let ended = || ended(&ends);
        let port = SmallPort::new(&budget);
        let call = |place: usize| port.begin(64 * KI, ends[place].clone());
        let mut calls: Vec<_> = (0..4).map(call).collect();
        assert_eq!((ended(), budget.used(Kind::SmallPorts)), (Vec::new(), 256 * KI));
        drop(calls.remove(1));
        calls.push(call(4));
        assert!(ended().is_empty(), "one was over");
        calls.push(call(5));
        assert_eq!((ended(), budget.small_calls_ended()), (vec![0], 1));
        calls.push(port.begin(200 * KI, ends[6].clone()));
        assert_eq!(ended(), [0, 2, 3, 4, 5]);
        calls.push(port.begin(1024 * KI, ends[7].clone()));
        assert_eq!(ended(), [0, 2, 3, 4, 5, 6], "one that is larger than all is alone");
        assert!(!ends[7].is_cancelled());
        drop(calls);
        assert_eq!((budget.used(Kind::SmallPorts), budget.small_calls_ended()), (0, 6));
        assert_eq!(port.calls.bytes(), 0);
    }

    #[test]
    fn requests_of_one_port_end_none_of_another() {
        let budget = Arc::new(Budget::of_process(80 << 20, None));
        let ends: Vec<_> = (0..101).map(|_| CancellationToken::new()).collect();
        let (quiet, busy) = (SmallPort::new(&budget), SmallPort::new(&budget));
        let _check = quiet.begin(10 * KI, ends[0].clone());
        let _others: Vec<_> = ends[1..].iter().map(|end| busy.clone().begin(10 * KI, end.clone())).collect();
        assert_eq!(ended(&ends), (1..76).collect::<Vec<_>>());
    }
}
