//! State of a connection: its unread data, and how long it has had no stream.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::Waker;

use futures_util::task::AtomicWaker;
use tokio_util::sync::CancellationToken;

use super::stream_state::{StreamState, Streams};

/// Data of a connection that has arrived and that no stream has read.
///
/// On a connection that is never without streams this may be too much: data for a stream that has ended
/// is dropped as it comes, and counts all the same until RST_STREAM is written. A client that keeps to
/// the windows adds no more than twice that of the stream each time, and in all 65,793 frames of one
/// byte, as h2 doesn't give back its allowance for such ones. Nothing that h2 sends corrects the
/// count: a WINDOW_UPDATE of the connection comes after half of its window, and says nothing of the
/// number of frames. The worst that comes of it is that the connection is closed as the one with the
/// most unread data.
#[derive(Debug)]
pub struct Unread {
    /// In bytes. Below zero for a moment where a stream ends while data of another arrives.
    bytes: AtomicI64,
    /// The part that was there when streams had a turn to read.
    kept: AtomicU64,
    /// Charge of HTTP/2 for small frames among them.
    small: AtomicI64,
    /// Trailers that no stream has read.
    trailers: AtomicI64,
    /// Streams that read.
    readers: AtomicUsize,
    /// Cancelled when the connection has to be closed, as its unread data takes too much memory.
    pub(super) evicted: CancellationToken,
    pub(super) streams: Streams,
    /// Wakes the connection, to settle.
    connection: AtomicWaker,
    /// State that says how long the connection has been without streams.
    pub(super) idle: Idle,
}

impl Unread {
    /// Data has arrived.
    pub fn add(&self, bytes: i64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// A stream has read data.
    pub fn read(&self, bytes: i64) {
        self.bytes.fetch_sub(bytes, Relaxed);
    }

    /// HTTP/2 charges so much for a small frame that has arrived, or less than nothing for one that a
    /// stream has read.
    pub fn add_small(&self, charge: i64) {
        self.small.fetch_add(charge, Relaxed);
    }

    /// Charge of HTTP/2 for small frames that no stream has read.
    pub(super) fn small(&self) -> u64 {
        u64::try_from(self.small.load(Relaxed)).unwrap_or(0)
    }

    /// Unread data of a new connection.
    pub(super) fn new(idle: Idle) -> Self {
        Self {
            bytes: AtomicI64::new(0),
            kept: AtomicU64::new(0),
            small: AtomicI64::new(0),
            trailers: AtomicI64::new(0),
            readers: AtomicUsize::new(0),
            evicted: CancellationToken::new(),
            streams: Streams::default(),
            connection: AtomicWaker::new(),
            idle,
        }
    }

    /// Returns `true` if no stream is [open](OpenStream).
    pub fn is_idle(&self) -> bool {
        self.idle.is_idle()
    }

    /// Cancelled when the connection has to end without a request on it, as it is idle and others need
    /// its memory.
    pub fn retired(&self) -> &CancellationToken {
        &self.idle.retired
    }

    /// Cancelled when it has no time left to do so, if it is idle still.
    pub fn close_now(&self) -> &CancellationToken {
        &self.idle.close_now
    }

    /// Returns `true` if the connection is about to end.
    pub(super) fn is_leaving(&self) -> bool {
        self.evicted.is_cancelled() || self.idle.retired.is_cancelled()
    }

    /// Headers have arrived on a stream of this number. Returns whether they begin it, or are trailers.
    pub fn headers_arrived(&self, stream: u32) -> bool {
        self.streams.headers_arrived(stream)
    }

    /// Data has arrived on a stream of this number. Returns whether it is to be [added](Self::add) to that
    /// of all.
    pub fn data_arrived(&self, stream: u32, bytes: i64) -> bool {
        self.streams.data_arrived(stream, bytes)
    }

    /// Trailers have arrived on a stream.
    pub fn trailers_arrived(&self) {
        self.trailers.fetch_add(1, Relaxed);
    }

    /// A stream has read its trailers.
    pub fn trailers_read(&self) {
        self.trailers.fetch_sub(1, Relaxed);
    }

    /// Trailers that no stream has read.
    pub fn trailers(&self) -> i64 {
        self.trailers.load(Relaxed)
    }

    /// HTTP/2 has read all headers that have arrived completely, in this turn of the connection or
    /// before. Returns whether some of their streams haven't [begun](Self::begin_stream).
    pub fn were_read(&self, turn: u64, is_within_headers: bool) -> bool {
        self.streams.were_read(turn, is_within_headers)
    }

    /// A stream begins, whose replies the client may or may not take: the first of those whose headers
    /// have arrived.
    pub fn begin_stream(&self) -> Arc<StreamState> {
        self.streams.begin()
    }

    /// The connection [is unsettled](super::ConnectionRoom::is_unsettled), and is woken with this to settle.
    pub fn settles_with(&self, connection: &Waker) {
        self.connection.register(connection);
    }

    pub(super) fn wake(&self) {
        self.connection.wake();
    }

    /// The part that was there when streams had a turn to read, in bytes.
    pub(super) fn kept(&self) -> u64 {
        self.kept.load(Relaxed)
    }

    /// Notes the part that is there when streams have a turn to read, in bytes.
    pub(super) fn keep(&self, bytes: u64) {
        self.kept.store(bytes, Relaxed);
    }

    /// Returns `true` if streams read.
    pub(super) fn has_readers(&self) -> bool {
        self.readers.load(Relaxed) > 0
    }

    /// A stream begins to read.
    pub fn open(&self) {
        self.readers.fetch_add(1, Relaxed);
    }

    /// A stream will read no more. Its unread data was dropped when no other stream is
    /// left: the count is right again then, even if data came for streams that had ended. Where it
    /// changes at that moment, data comes for streams that begin to read next: the end of those
    /// puts it right.
    pub fn close(&self) {
        let (left, small) = (self.bytes.load(Relaxed), self.small.load(Relaxed));
        let trailers = self.trailers.load(Relaxed);
        if self.readers.fetch_sub(1, Relaxed) == 1 {
            let _ = self.bytes.compare_exchange(left, 0, Relaxed, Relaxed);
            let _ = self.small.compare_exchange(small, 0, Relaxed, Relaxed);
            let _ = self.trailers.compare_exchange(trailers, 0, Relaxed, Relaxed);
        }
    }

    /// In bytes.
    pub fn bytes(&self) -> u64 {
        u64::try_from(self.bytes.load(Relaxed)).unwrap_or(0)
    }
}

/// Counts an open stream of a connection until it is dropped: one whose response isn't written yet,
/// whether its request is still read or not.
#[derive(Debug)]
pub struct OpenStream(Arc<Unread>);

impl OpenStream {
    /// One more stream of this connection.
    pub fn new(connection: &Arc<Unread>) -> Self {
        connection.idle.open_stream();
        Self(Arc::clone(connection))
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.idle.close_stream();
    }
}

/// The part of a connection's state that says how long it has been idle.
#[derive(Debug)]
pub(super) struct Idle {
    pub(super) peer: IpAddr,
    /// Place in the order of all connections.
    pub(super) number: u64,
    /// Open streams.
    streams: AtomicUsize,
    /// Number of connections that there had been when its last stream ended: a clock that ticks
    /// with every connection, as only a new one needs room.
    pub(super) since: AtomicU64,
    clock: Arc<AtomicU64>,
    /// Bytes that it counts; 0 where it never makes room.
    bytes: AtomicU64,
    pub(super) retired: CancellationToken,
    pub(super) close_now: CancellationToken,
}

impl Idle {
    /// The state of a new connection, from this address, that counts so many bytes. The clock is that
    /// of all connections.
    pub(super) fn new(clock: &Arc<AtomicU64>, peer: IpAddr, bytes: u64) -> Self {
        let clock = Arc::clone(clock);
        let number = clock.fetch_add(1, Relaxed);
        let (since, bytes) = (AtomicU64::new(number), AtomicU64::new(bytes));
        Self {
            peer,
            number,
            streams: AtomicUsize::new(0),
            since,
            clock,
            bytes,
            retired: CancellationToken::new(),
            close_now: CancellationToken::new(),
        }
    }

    /// A stream has begun.
    pub(super) fn open_stream(&self) {
        self.streams.fetch_add(1, Relaxed);
    }

    /// A stream has ended.
    pub(super) fn close_stream(&self) {
        if self.streams.fetch_sub(1, Relaxed) == 1 {
            self.since.store(self.clock.load(Relaxed), Relaxed);
        }
    }

    /// Returns `true` if it has no stream.
    pub(super) fn is_idle(&self) -> bool {
        self.streams.load(Relaxed) == 0
    }

    /// Bytes that it counts.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Sets the bytes that it counts.
    pub(super) fn set_bytes(&self, bytes: u64) {
        self.bytes.store(bytes, Relaxed);
    }
}
