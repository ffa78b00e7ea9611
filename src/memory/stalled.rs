//! Streams whose client takes no replies, so that what it sends on them stays unread.

use std::cmp::Reverse;
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use tokio::task::{AbortHandle, Id};
use tokio_util::sync::CancellationToken;

use super::connection::Unread;
use super::{Budget, Kind};

/// Looks at a stream that is not asked for replies before it may be reset. They are a second apart.
const LOOKS: u32 = 2;

/// A stream of a connection: whether its replies are taken.
#[derive(Debug, Default)]
pub struct Replying {
    /// Times that it was asked for a reply.
    asked: AtomicU32,
    /// It had none when it was asked last.
    is_waiting: AtomicBool,
    /// Looks since it was asked last while it had one, and the number of that time.
    stalled: AtomicU32,
    seen: AtomicU32,
    /// Bytes that have arrived on it and that it hasn't read.
    unread: AtomicI64,
    task: OnceLock<AbortHandle>,
    /// It is reset: by this.
    is_reset: AtomicBool,
    /// By this it is reset as well.
    end: OnceLock<CancellationToken>,
}

impl Replying {
    /// The client has taken what there was, and the stream is asked for the next reply.
    #[inline]
    pub fn asked(&self, is_waiting: bool) {
        // Written by the thread of the stream alone.
        self.asked.store(self.asked.load(Relaxed).wrapping_add(1), Relaxed);
        self.is_waiting.store(is_waiting, Relaxed);
    }

    /// This task runs the stream.
    pub fn runs(&self, task: AbortHandle) {
        // A stream has one.
        let _ = self.task.set(task);
    }

    /// It is reset when this is cancelled.
    pub fn ends_with(&self, end: CancellationToken) {
        // A stream has one.
        let _ = self.end.set(end);
    }

    /// Whether it ends without a reply.
    pub fn is_reset(&self) -> bool {
        self.is_reset.load(Relaxed) || self.end.get().is_some_and(CancellationToken::is_cancelled)
    }

    /// It has read data, of so many bytes.
    #[inline]
    pub fn read(&self, bytes: i64) {
        self.unread.fetch_sub(bytes, Relaxed);
    }

    /// In bytes.
    fn unread(&self) -> u64 {
        u64::try_from(self.unread.load(Relaxed)).unwrap_or(0)
    }

    /// Whether a task runs it that hasn't ended.
    pub(super) fn is_running(&self) -> bool {
        self.task.get().is_some_and(|task| !task.is_finished())
    }

    /// Ends it without a reply, and says whether that is new.
    pub(super) fn reset(&self) -> bool {
        let Some(task) = self.task.get().filter(|_| !self.is_reset.swap(true, Relaxed)) else { return false };
        task.abort();
        true
    }

    fn look(&self) {
        let asked = self.asked.load(Relaxed);
        let goes_on = self.is_waiting.load(Relaxed) || self.seen.swap(asked, Relaxed) != asked;
        let looks = if goes_on { 0 } else { self.stalled.load(Relaxed).saturating_add(1) };
        self.stalled.store(looks, Relaxed);
    }

    fn is_stalled(&self) -> bool {
        // Nobody looks while its connection has read everything, so it may have been asked since then.
        let was_asked = self.asked.load(Relaxed) != self.seen.load(Relaxed);
        self.stalled.load(Relaxed) >= LOOKS && !self.is_waiting.load(Relaxed) && !was_asked
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
    streams: Vec<(u32, Weak<Replying>)>,
    /// Number of the last one.
    last: u32,
    /// Streams whose headers have arrived and that haven't begun, in this order. HTTP/2 doesn't say the
    /// number of one that begins, but begins them in the order in which they came.
    coming: VecDeque<Arc<Replying>>,
    /// So many of those were read by HTTP/2 in this turn of the connection. They begin before its end,
    /// except for those that HTTP/2 refuses itself.
    were_read: usize,
    turn: u64,
    /// From so many on, those that are over are taken out before another comes.
    tidy_at: usize,
}

/// So many streams are never worth a look for those that are over.
const FEW: usize = 16;

impl Streams {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Headers have arrived on the stream of this number: they are those of a new one, or trailers.
    pub(super) fn headers_arrived(&self, number: u32) {
        let mut open = self.open();
        if number > open.last {
            open.last = number;
            let stream = open.add();
            open.coming.push_back(stream);
        }
    }

    /// Data has arrived on the stream of this number that takes so many bytes.
    pub(super) fn data_arrived(&self, number: u32, bytes: i64) {
        let open = self.open();
        if let Ok(place) = open.streams.binary_search_by_key(&number, |(number, _)| *number)
            && let Some(stream) = open.streams[place].1.upgrade()
        {
            stream.unread.fetch_add(bytes, Relaxed);
        }
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
    pub(super) fn begin(&self) -> Arc<Replying> {
        let mut open = self.open();
        open.were_read = open.were_read.saturating_sub(1);
        // There is one: its headers have arrived.
        open.coming.pop_front().unwrap_or_else(|| open.add())
    }

    fn all(&self) -> Vec<Arc<Replying>> {
        self.open().streams.iter().filter_map(|(_, stream)| stream.upgrade()).collect()
    }
}

impl Open {
    /// Adds a stream of the last number.
    fn add(&mut self) -> Arc<Replying> {
        if self.streams.len() >= self.tidy_at {
            self.streams.retain(|(_, stream)| stream.strong_count() > 0);
            self.tidy_at = FEW.max(2 * self.streams.len());
        }
        let stream = Arc::<Replying>::default();
        self.streams.push((self.last, Arc::downgrade(&stream)));
        stream
    }
}

impl Budget {
    /// Looks at the streams of connections with unread data, and resets those that stall where that takes
    /// more than its share. To be called every second.
    pub(super) fn look_at_replies(&self) {
        let is_full = self.was_full();
        if self.used(Kind::Unread) == 0 {
            return;
        }
        let connections = self.connections_with(|connection| connection.kept() > 0);
        connections.iter().for_each(|connection| {
            connection.streams.all().iter().for_each(|stream| stream.look());
        });
        if let Some(excess) = self.excess_unread(is_full, 1) {
            self.end_stalled(excess);
        }
        // One on which nothing arrives doesn't see by itself what its streams have read since.
        connections.iter().for_each(|connection| connection.wake());
    }

    fn connections_with(&self, is_meant: impl Fn(&Unread) -> bool) -> Vec<Arc<Unread>> {
        let open = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().filter(|connection| is_meant(connection)).cloned().collect()
    }

    /// The streams that these tasks run.
    pub(super) fn streams_of(&self, tasks: &HashSet<Id>) -> Vec<Arc<Replying>> {
        let connections = self.connections_with(|_| true);
        let streams = connections.iter().flat_map(|connection| connection.streams.all());
        streams.filter(|stream| stream.task.get().is_some_and(|task| tasks.contains(&task.id()))).collect()
    }

    /// Resets streams whose replies nobody takes, those with the most unread data first, until so many
    /// bytes of it are given back, or none is left. Returns how many bytes that is, those of streams that
    /// are about to end among them.
    pub(super) fn end_stalled(&self, bytes: u64) -> u64 {
        let mut stalled: Vec<_> = self
            .connections_with(|connection| connection.kept() > 0)
            .iter()
            .flat_map(|connection| connection.streams.all())
            .filter(|stream| stream.is_stalled() && stream.is_running())
            // Nobody gains by the end of one that only takes its replies slowly.
            .map(|stream| (stream.is_reset(), stream.unread(), stream))
            .filter(|(_, unread, _)| *unread > 0)
            .collect();
        // Those that were reset before are about to end.
        stalled.sort_by_key(|(is_reset, unread, _)| Reverse((*is_reset, *unread)));
        let mut freed = 0;
        for (_, unread, stream) in stalled {
            if freed >= bytes {
                break;
            }
            freed += unread;
            if stream.reset() {
                self.count_refused();
            }
        }
        freed
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use super::super::{ConnectionRoom, Windows, watch_uploads};
    use super::*;

    const MI: u64 = 1 << 20;
    const EACH: u64 = 256 << 10;

    type Stream = (Arc<Replying>, tokio::task::JoinHandle<()>);

    /// A new stream, on which so many bytes have arrived that it hasn't read.
    fn stream(room: &ConnectionRoom, bytes: u64) -> Stream {
        let streams = &room.unread().streams;
        let number = streams.open().last + 2;
        streams.headers_arrived(number);
        streams.data_arrived(number, bytes as i64);
        let (stream, task) = (room.unread().begin_stream(), tokio::spawn(std::future::pending()));
        stream.runs(task.abort_handle());
        (stream, task)
    }

    /// So much is unread on the connection.
    fn settle(room: &mut ConnectionRoom, bytes: u64) {
        let unread = Arc::clone(room.unread());
        unread.add(bytes as i64 - unread.bytes() as i64);
        room.settle(0);
    }

    /// Places of the streams that were reset.
    fn reset(streams: &[Stream]) -> Vec<usize> {
        (0..streams.len()).filter(|place| streams[*place].0.is_reset()).collect()
    }

    #[tokio::test]
    async fn streams_that_stall_are_reset_before_a_connection_is_closed() {
        let budget = Arc::new(Budget::of_process(128 * MI, None));
        let mut room = ConnectionRoom::new(&budget, Windows::LARGEST);
        let mut streams: Vec<_> = (0..68).map(|_| stream(&room, EACH)).collect();
        settle(&mut room, 68 * EACH);
        // The first waits for its request, the second goes on.
        streams[0].0.asked(true);
        for look in 0..3 {
            streams[1].0.asked(false);
            budget.look_at_replies();
            assert_eq!(budget.refused() > 0, look >= 1, "{look}");
        }
        // 17 MiB are unread, of which an eighth of the budget may be.
        assert_eq!((budget.refused(), budget.evicted()), (4, 0));
        assert_eq!(reset(&streams), [2, 3, 4, 5]);
        for (_, task) in streams.drain(2..6) {
            assert!(task.await.unwrap_err().is_cancelled());
        }
        settle(&mut room, 31 * MI);
        assert_eq!((budget.refused(), budget.evicted()), (4, 0));
        // More at once than the looks can keep up with. Those that stall have 15.5 MiB.
        settle(&mut room, 33 * MI);
        assert!(budget.refused() > 30 && budget.evicted() == 0, "{}", budget.refused());
        streams.truncate(2);
        settle(&mut room, 34 * MI);
        assert_eq!(budget.evicted(), 1, "none is left that stalls");
        drop(room);
        assert_eq!(budget.used(Kind::Unread), 0);
    }

    #[tokio::test]
    async fn streams_with_the_most_unread_data_go_first() {
        let budget = Arc::new(Budget::of_process(64 * MI, None));
        let mut room = ConnectionRoom::new(&budget, Windows::LARGEST);
        // Of the third's data two thirds are read, and the fourth only takes its replies slowly.
        let mut streams: Vec<_> = [1, 6, 9, 0, 5].map(|part| stream(&room, part * MI)).into();
        streams[2].0.read(6 * MI as i64);
        settle(&mut room, 15 * MI);
        (0..2).for_each(|_| budget.look_at_replies());
        // 8 MiB may be unread.
        assert_eq!(reset(&streams), [1, 4]);
        budget.look_at_replies();
        assert_eq!(reset(&streams), [1, 4], "those are about to end");
        for place in [4, 1] {
            assert!(streams.remove(place).1.await.unwrap_err().is_cancelled());
        }
        settle(&mut room, 17 * MI);
        assert_eq!((reset(&streams), budget.evicted()), (vec![0, 1], 1), "the last has nothing unread");
    }

    #[tokio::test]
    async fn a_stream_that_stalled_before_and_goes_on_is_not_reset() {
        let budget = Arc::new(Budget::of_process(16 * MI, None));
        let mut room = ConnectionRoom::new(&budget, Windows::LARGEST);
        let streams = [stream(&room, EACH), stream(&room, EACH)];
        settle(&mut room, MI);
        (0..2).for_each(|_| budget.look_at_replies());
        // Asked since, and nobody looked.
        streams[0].0.asked(false);
        settle(&mut room, 5 * MI);
        assert_eq!(reset(&streams), [1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_is_a_second_whatever_the_timeout_of_bodies() {
        // In milliseconds.
        for timeout in [Some(40), Some(1000), Some(30_000), None] {
            let budget = Arc::new(Budget::of_process(16 * MI, None));
            let mut room = ConnectionRoom::new(&budget, Windows::LARGEST);
            let streams = [stream(&room, EACH)];
            settle(&mut room, 3 * MI);
            let timeout = timeout.map(Duration::from_millis);
            let mut watch = pin!(watch_uploads(Arc::clone(&budget), timeout));
            let _goes_on = tokio::time::timeout(Duration::from_millis(950), watch.as_mut()).await;
            assert!(reset(&streams).is_empty(), "{timeout:?}");
            let _goes_on = tokio::time::timeout(Duration::from_millis(100), watch).await;
            assert_eq!(reset(&streams), [0], "{timeout:?}");
        }
    }

    #[test]
    fn streams_that_http2_refuses_leave_the_others_their_numbers() {
        let streams = Streams::default();
        let unread = |stream: &Arc<Replying>| stream.unread();
        // Two come in a turn, of which the second is refused, and the head of a third.
        [1, 3, 5].iter().for_each(|number| streams.headers_arrived(*number));
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
        streams.headers_arrived(1);
        assert!(!streams.were_read(3, false));
        for turn in 4..10_000 {
            streams.headers_arrived(2 * turn as u32 + 1);
            streams.were_read(turn, false);
        }
        let open = streams.open();
        assert!(open.coming.len() <= 1 && open.streams.len() <= 2 * FEW);
    }
}
