//! Send and receive state of HTTP/2 streams: unsent replies and unread data.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;

use futures_util::task::AtomicWaker;
use tokio::task::{AbortHandle, Id};
use tokio_util::sync::CancellationToken;

/// Bytes that an open stream counts, whatever its messages: its state in HTTP/2, its task, its headers
/// below 4 KiB, and its place in the queue.
pub(super) const STREAM: u64 = 8 << 10;

/// Bytes of replies that a stream may leave unsent and that don't count beside the stream itself.
pub const FREE_UNSENT: u64 = 4 << 10;

/// Looks at a stream whose replies aren't taken before it may be reset. They are a second apart.
const STALLED_CHECKS: u32 = 2;

/// Bytes of unsent replies that a client takes at least from one check to the next.
pub(super) const SLOWEST: u32 = 1 << 10;

/// Send and receive state of one HTTP/2 stream.
#[derive(Debug, Default)]
pub struct StreamState {
    /// Times that it was asked for a reply.
    asked: AtomicU32,
    /// `true` if the stream had no reply when it was last polled for one.
    is_waiting: AtomicBool,
    /// Bytes of its replies that were handed on and aren't written, and of all that were written.
    unsent: AtomicU64,
    written: AtomicU32,
    /// Wakes the stream when all are written.
    all_written: AtomicWaker,
    /// Looks in a row that found it stalled, and what the last one saw of `asked` and `written`.
    stalled: AtomicU32,
    asked_before: AtomicU32,
    written_before: AtomicU32,
    /// Bytes that have arrived on it and that it hasn't read.
    unread: AtomicI64,
    /// `true` once arriving data is dropped.
    discards_input: AtomicBool,
    task: OnceLock<AbortHandle>,
    /// `true` once the stream is reset.
    is_reset: AtomicBool,
    /// Cancellation that also resets the stream.
    end: OnceLock<CancellationToken>,
}

impl StreamState {
    /// The client has taken what there was, and the stream is asked for the next reply.
    #[inline]
    pub fn asked(&self, is_waiting: bool) {
        // Written by the thread of the stream alone.
        self.asked.store(self.asked.load(Relaxed).wrapping_add(1), Relaxed);
        self.is_waiting.store(is_waiting, Relaxed);
    }

    /// Sets the task that runs the stream.
    pub fn runs(&self, task: AbortHandle) {
        // A stream has one.
        let _ = self.task.set(task);
    }

    /// Resets the stream when `end` is cancelled.
    pub fn ends_with(&self, end: CancellationToken) {
        // A stream has one.
        let _ = self.end.set(end);
    }

    /// Returns `true` if it ends without a reply.
    pub fn is_reset(&self) -> bool {
        self.is_reset.load(Relaxed) || self.end.get().is_some_and(CancellationToken::is_cancelled)
    }

    /// Notes that the stream has read data, in bytes.
    #[inline]
    pub fn read(&self, bytes: i64) {
        self.unread.fetch_sub(bytes, Relaxed);
    }

    /// Marks the request body as discarded: HTTP/2 drops further data.
    pub fn discard_body(&self) {
        self.discards_input.store(true, Relaxed);
    }

    /// Bytes that arrived and aren't read.
    pub(super) fn unread(&self) -> u64 {
        u64::try_from(self.unread.load(Relaxed)).unwrap_or(0)
    }

    /// Replies of so many bytes wait for its client.
    pub(super) fn add_unsent(&self, bytes: u64) {
        self.unsent.fetch_add(bytes, Relaxed);
    }

    /// Notes written bytes.
    pub(super) fn written(&self, bytes: usize) {
        // By the thread of the connection alone.
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.written.store(self.written.load(Relaxed).wrapping_add(bytes), Relaxed);
    }

    /// Replies of so many bytes wait no more.
    pub(super) fn sent(&self, bytes: u64) {
        if self.unsent.fetch_sub(bytes, Relaxed) == bytes {
            self.all_written.wake();
        }
    }

    /// Bytes of replies that wait for its client.
    pub fn unsent(&self) -> u64 {
        self.unsent.load(Relaxed)
    }

    /// Returns `true` if so much waits that the stream should stay until it is written. Wakes the task then.
    pub fn waits_for_client(&self, stream: &Waker) -> bool {
        if self.unsent() <= FREE_UNSENT {
            return false;
        }
        self.all_written.register(stream);
        self.unsent() > 0
    }

    /// Bytes that come back when it ends.
    pub(super) fn held(&self) -> u64 {
        self.unread() + self.unsent()
    }

    /// The task that runs it.
    pub(super) fn task(&self) -> Option<Id> {
        self.task.get().map(AbortHandle::id)
    }

    /// Returns `true` if a task runs it that hasn't ended.
    pub(super) fn is_running(&self) -> bool {
        self.task.get().is_some_and(|task| !task.is_finished())
    }

    /// Unsent bytes of a reset stream: nothing can be written to its client.
    pub(super) fn stuck(&self) -> u64 {
        if self.is_reset() && !self.is_running() { self.unsent() } else { 0 }
    }

    /// Resets the stream. Returns `true` if it wasn't reset before.
    pub(super) fn reset(&self) -> bool {
        let Some(task) = self.task.get().filter(|_| !self.is_reset.swap(true, Relaxed)) else { return false };
        task.abort();
        true
    }

    /// Returns `true` if its client takes replies, as far as is known since the last check.
    fn makes_progress(&self) -> bool {
        if self.unsent() > FREE_UNSENT {
            // It may be asked for more, which HTTP/2 keeps for the client.
            let since = self.written.load(Relaxed).wrapping_sub(self.written_before.load(Relaxed));
            return since >= SLOWEST;
        }
        self.is_waiting.load(Relaxed) || self.asked.load(Relaxed) != self.asked_before.load(Relaxed)
    }

    /// Notes whether it has gone on since the last check.
    pub(super) fn check(&self) {
        let checks = if self.makes_progress() { 0 } else { self.stalled.load(Relaxed).saturating_add(1) };
        self.stalled.store(checks, Relaxed);
        self.asked_before.store(self.asked.load(Relaxed), Relaxed);
        self.written_before.store(self.written.load(Relaxed), Relaxed);
    }

    /// Returns `true` if the last checks found it stalled, and it is still.
    pub(super) fn is_stalled(&self) -> bool {
        // Nobody looks while there is room, so it may have gone on since the last time.
        self.stalled.load(Relaxed) >= STALLED_CHECKS && !self.makes_progress()
    }
}

/// The streams of a connection.
#[derive(Debug, Default)]
pub(super) struct Streams {
    // Taken for every frame of headers and data, by the thread of the connection, and when all are looked
    // at because unread data takes too much.
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// By their numbers, which rise.
    streams: Vec<(u32, Weak<StreamState>)>,
    /// Number of the last one.
    last: u32,
    /// Streams whose headers have arrived and that haven't begun, in this order. HTTP/2 doesn't say the
    /// number of one that begins, but begins them in the order in which they came.
    coming: VecDeque<Arc<StreamState>>,
    /// Number of those that HTTP/2 read in this turn of the connection. They begin before its end, except
    /// for those that HTTP/2 refuses itself.
    were_read: usize,
    turn: u64,
    /// From so many on, those that are over are taken out before another comes.
    tidy_at: usize,
}

/// Number of streams up to which ended ones are not looked for.
const FEW: usize = 16;

impl Streams {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Headers have arrived on the stream of this number. Returns whether they are those of a new one, or
    /// trailers.
    pub(super) fn headers_arrived(&self, number: u32) -> bool {
        let mut open = self.open();
        let is_new = number > open.last;
        if is_new {
            open.last = number;
            let stream = open.add();
            open.coming.push_back(stream);
        }
        is_new
    }

    /// Data has arrived on the stream of this number that takes so many bytes. Returns whether it is
    /// kept, as far as is known.
    pub(super) fn data_arrived(&self, number: u32, bytes: i64) -> bool {
        let open = self.open();
        if let Ok(place) = open.streams.binary_search_by_key(&number, |(number, _)| *number)
            && let Some(stream) = open.streams[place].1.upgrade()
        {
            if stream.discards_input.load(Relaxed) {
                return false;
            }
            stream.unread.fetch_add(bytes, Relaxed);
        }
        true
    }

    /// HTTP/2 has read all headers that have arrived completely, in this turn of the connection or
    /// before. Returns whether some haven't begun.
    pub(super) fn were_read(&self, turn: u64, is_within_headers: bool) -> bool {
        let mut open = self.open();
        if turn != open.turn {
            open.turn = turn;
            let refused = open.were_read.min(open.coming.len());
            open.coming.drain(..refused);
        }
        open.were_read = open.coming.len().saturating_sub(usize::from(is_within_headers));
        !open.coming.is_empty()
    }

    /// The next stream begins.
    pub(super) fn begin(&self) -> Arc<StreamState> {
        let mut open = self.open();
        open.were_read = open.were_read.saturating_sub(1);
        // There is one: its headers have arrived.
        open.coming.pop_front().unwrap_or_else(|| open.add())
    }

    /// All streams that are open.
    pub(super) fn all(&self) -> Vec<Arc<StreamState>> {
        self.open().streams.iter().filter_map(|(_, stream)| stream.upgrade()).collect()
    }
}

impl Open {
    /// Adds a stream of the last number.
    fn add(&mut self) -> Arc<StreamState> {
        if self.streams.len() >= self.tidy_at {
            self.streams.retain(|(_, stream)| stream.strong_count() > 0);
            self.tidy_at = FEW.max(2 * self.streams.len());
        }
        let stream = Arc::<StreamState>::default();
        self.streams.push((self.last, Arc::downgrade(&stream)));
        stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_streams_do_not_shift_stream_ids() {
        let streams = Streams::default();
        let unread = |stream: &Arc<StreamState>| stream.unread();
        // Two come in a turn, of which the second is refused, and the head of a third.
        [1, 3, 5].iter().for_each(|number| assert!(streams.headers_arrived(*number)));
        streams.data_arrived(1, 10);
        assert!(streams.were_read(1, true));
        let first = streams.begin();
        assert_eq!(unread(&first), 10);
        assert!(streams.were_read(2, true), "the rest of the third is to come");
        assert!(streams.were_read(2, false));
        streams.data_arrived(5, 20);
        streams.data_arrived(3, 100);
        assert_eq!(unread(&streams.begin()), 20);
        // Trailers of the first, and headers that are refused.
        assert!(!streams.headers_arrived(1), "trailers");
        assert!(!streams.were_read(3, false));
        for turn in 4..10_000 {
            streams.headers_arrived(2 * turn as u32 + 1);
            streams.were_read(turn, false);
        }
        let open = streams.open();
        assert!(open.coming.len() <= 1 && open.streams.len() <= 2 * FEW);
    }
}
