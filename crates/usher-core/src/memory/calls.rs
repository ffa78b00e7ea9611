//! Requests in progress that end, the oldest first, where they take too much: those of
//! [small ports](super::small_calls), and [refused streams](super::refusals).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// Requests in progress that share some memory.
#[derive(Debug, Default)]
pub(super) struct Calls {
    // Guards the requests by age. Taken when one begins, ends or has to make room.
    open: Mutex<Open>,
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

impl Calls {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request of so many bytes, that has to end when `end` is cancelled. Ends the oldest where
    /// all take more than `most` bytes, and returns how many those were.
    pub(super) fn begin(
        self: &Arc<Self>,
        bytes: u64,
        end: CancellationToken,
        most: u64,
    ) -> (InProgress, usize) {
        let (number, oldest) = self.open().add(bytes, end, most);
        // The lock is free again: whoever ends takes it.
        oldest.iter().for_each(CancellationToken::cancel);
        (InProgress { calls: Arc::clone(self), number }, oldest.len())
    }

    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> u64 {
        self.open().bytes
    }

    /// Number of the next one that begins.
    pub(super) fn next(&self) -> u64 {
        self.open().next
    }

    /// Ends those with smaller numbers.
    pub(super) fn end_before(&self, number: u64) {
        let mut open = self.open();
        let later = open.calls.split_off(&number);
        let ended = std::mem::replace(&mut open.calls, later);
        open.bytes -= ended.values().map(|(bytes, _)| bytes).sum::<u64>();
        drop(open);
        ended.values().for_each(|(_, end)| end.cancel());
    }
}

/// Place of a request among [`Calls`] until it is dropped.
#[derive(Debug)]
pub(super) struct InProgress {
    calls: Arc<Calls>,
    number: u64,
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.calls.open().remove(self.number);
    }
}
