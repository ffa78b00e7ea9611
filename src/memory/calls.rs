//! Requests in progress on the small ports.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

use super::{Budget, Kind, Reservation, small};

/// Requests in progress on all small ports.
#[derive(Debug, Default)]
pub(super) struct Calls {
    // Guards the requests by age. Taken when one begins, ends or has to make room.
    open: Mutex<Open>,
    ended: AtomicU64,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    /// Bytes of all that are in `calls`.
    bytes: u64,
    /// Bytes of each, and how it is ended.
    calls: BTreeMap<u64, (u64, CancellationToken)>,
}

impl Open {
    fn remove(&mut self, number: u64) -> Option<CancellationToken> {
        let (bytes, end) = self.calls.remove(&number)?;
        self.bytes -= bytes;
        Some(end)
    }

    /// Adds a request, and takes the oldest out that have to make room for it.
    fn add(&mut self, bytes: u64, end: CancellationToken, most: u64) -> (u64, Vec<CancellationToken>) {
        let number = self.next;
        self.next += 1;
        self.bytes += bytes;
        self.calls.insert(number, (bytes, end));
        let mut oldest = Vec::new();
        while self.bytes > most
            && let Some((&first, _)) = self.calls.first_key_value()
            && first != number
        {
            oldest.extend(self.remove(first));
        }
        (number, oldest)
    }
}

/// Memory of a request on a small port, counted until this is dropped. It always has room: a health
/// check is to be answered whatever the pressure, and takes no time. So the oldest requests make room
/// where those of all small ports take more than their share, which are watches, requests that are
/// never complete and answers that nobody reads.
#[derive(Debug)]
pub struct SmallCall {
    budget: Arc<Budget>,
    number: u64,
    _held: Reservation,
}

impl SmallCall {
    /// Memory of a request of so many bytes. When `end` is cancelled it has to end.
    pub fn new(budget: &Arc<Budget>, bytes: u64, end: CancellationToken) -> Self {
        let mut held = Reservation::new(budget, Kind::SmallPorts);
        held.set(bytes);
        let most = small::share(budget);
        let calls = &budget.small_calls;
        let (number, oldest) =
            calls.open.lock().unwrap_or_else(PoisonError::into_inner).add(bytes, end, most);
        // The lock is free again: whoever ends takes it.
        if !oldest.is_empty() {
            let before = calls.ended.fetch_add(oldest.len() as u64, Relaxed);
            let count = before + oldest.len() as u64;
            // A line for each power of two: a flood must not flood the log.
            if count.checked_ilog2() != before.checked_ilog2() {
                tracing::warn!(
                    count,
                    most,
                    "oldest requests of small ports ended, as they take too much memory"
                );
            }
            oldest.iter().for_each(CancellationToken::cancel);
        }
        Self { budget: Arc::clone(budget), number, _held: held }
    }
}

impl Drop for SmallCall {
    fn drop(&mut self) {
        let open = &self.budget.small_calls.open;
        open.lock().unwrap_or_else(PoisonError::into_inner).remove(self.number);
    }
}

impl Budget {
    /// Requests of small ports that were ended to make room for others.
    pub fn small_calls_ended(&self) -> u64 {
        self.small_calls.ended.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_requests_make_room() {
        // A sixteenth is 1 MiB, and a quarter of that is for requests.
        let budget = Arc::new(Budget::of_process(16 << 20, None));
        let ends: Vec<_> = (0..12).map(|_| CancellationToken::new()).collect();
        let ended = || (0..ends.len()).filter(|place| ends[*place].is_cancelled()).collect::<Vec<_>>();
        let call = |place: usize| SmallCall::new(&budget, 64 << 10, ends[place].clone());
        let mut calls: Vec<_> = (0..4).map(call).collect();
        assert_eq!((ended(), budget.used(Kind::SmallPorts)), (Vec::new(), 256 << 10));
        drop(calls.remove(1));
        calls.push(call(4));
        assert!(ended().is_empty(), "one was over");
        calls.push(call(5));
        assert_eq!((ended(), budget.small_calls_ended()), (vec![0], 1));
        calls.push(SmallCall::new(&budget, 200 << 10, ends[6].clone()));
        assert_eq!(ended(), [0, 2, 3, 4, 5]);
        calls.push(SmallCall::new(&budget, 1 << 20, ends[7].clone()));
        assert_eq!(ended(), [0, 2, 3, 4, 5, 6], "one that is larger than all is alone");
        assert!(!ends[7].is_cancelled());
        drop(calls);
        assert_eq!((budget.used(Kind::SmallPorts), budget.small_calls_ended()), (0, 6));
        assert!(budget.small_calls.open.lock().unwrap().calls.is_empty());
    }
}
