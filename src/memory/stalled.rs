//! Streams whose client takes no replies, so that what it sends on them stays unread.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use tokio::task::AbortHandle;

use super::connection::Unread;
use super::{Budget, Windows};

/// Looks at a stream that is not asked for replies before it may be reset: at least a second.
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
    task: OnceLock<AbortHandle>,
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

    fn look(&self) {
        let asked = self.asked.load(Relaxed);
        let goes_on = self.is_waiting.load(Relaxed) || self.seen.swap(asked, Relaxed) != asked;
        let looks = if goes_on { 0 } else { self.stalled.load(Relaxed).saturating_add(1) };
        self.stalled.store(looks, Relaxed);
    }

    fn is_stalled(&self) -> bool {
        self.stalled.load(Relaxed) >= LOOKS && !self.is_waiting.load(Relaxed)
    }
}

/// The streams of a connection.
#[derive(Debug, Default)]
pub(super) struct Streams {
    // Taken when a stream begins, and when all are looked at because unread data takes too much.
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    streams: Vec<Weak<Replying>>,
    /// From so many on, those that are over are taken out before another comes.
    tidy_at: usize,
}

/// So many streams are never worth a look for those that are over.
const FEW: usize = 16;

impl Streams {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self) -> Arc<Replying> {
        let stream = Arc::<Replying>::default();
        let mut open = self.open();
        if open.streams.len() >= open.tidy_at {
            open.streams.retain(|stream| stream.strong_count() > 0);
            open.tidy_at = FEW.max(2 * open.streams.len());
        }
        open.streams.push(Arc::downgrade(&stream));
        stream
    }

    fn all(&self) -> Vec<Arc<Replying>> {
        self.open().streams.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Budget {
    /// Looks at the streams of connections with unread data, and resets those that stall where that takes
    /// more than its share.
    pub(super) fn look_at_unread(&self) {
        let is_full = self.was_full();
        if self.used(super::Kind::Unread) == 0 {
            return;
        }
        let connections = self.connections_with_unread();
        connections.iter().for_each(|connection| {
            connection.streams.all().iter().for_each(|stream| stream.look());
        });
        if let Some(excess) = self.excess_unread(is_full, 1) {
            self.end_stalled(excess);
        }
        // One on which nothing arrives doesn't see by itself what its streams have read since.
        connections.iter().for_each(|connection| connection.wake());
    }

    fn connections_with_unread(&self) -> Vec<Arc<Unread>> {
        let open = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().filter(|connection| connection.kept() > 0).cloned().collect()
    }

    /// Resets streams whose replies nobody takes, the longest first, until so many bytes of unread data
    /// are given back, or none is left. Returns how many bytes that is, those of streams that are about
    /// to end among them: about, as it is known of a connection alone how much is unread on it.
    pub(super) fn end_stalled(&self, bytes: u64) -> u64 {
        let mut stalled = Vec::new();
        for connection in self.connections_with_unread() {
            let streams: Vec<_> =
                connection.streams.all().into_iter().filter(|stream| stream.is_stalled()).collect();
            let each = connection.kept() / streams.len().max(1) as u64;
            stalled.extend(streams.into_iter().map(|one| (each.min(Windows::LARGEST.stream.into()), one)));
        }
        stalled.sort_by_key(|(bytes, stream)| Reverse((stream.stalled.load(Relaxed), *bytes)));
        let mut freed = 0;
        for (each, stream) in stalled {
            if freed >= bytes {
                break;
            }
            let Some(task) = stream.task.get() else { continue };
            freed += each;
            // Those that were reset before stall for the longest, until they are gone.
            if stream.stalled.swap(u32::MAX, Relaxed) != u32::MAX {
                task.abort();
                self.count_refused();
            }
        }
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ConnectionRoom, Kind};
    use super::*;

    const MI: u64 = 1 << 20;
    const EACH: u64 = 256 << 10;

    fn stream(room: &ConnectionRoom) -> (Arc<Replying>, tokio::task::JoinHandle<()>) {
        let (stream, task) = (room.unread().begin_stream(), tokio::spawn(std::future::pending()));
        stream.runs(task.abort_handle());
        (stream, task)
    }

    #[tokio::test]
    async fn streams_that_stall_are_reset_before_a_connection_is_closed() {
        let budget = Arc::new(Budget::of_process(128 * MI, None));
        let mut room = ConnectionRoom::new(&budget, Windows::LARGEST);
        let mut streams: Vec<_> = (0..68).map(|_| stream(&room)).collect();
        let unread = Arc::clone(room.unread());
        let mut settle = |bytes: u64| {
            unread.add(bytes as i64 - unread.bytes() as i64);
            room.settle(0);
        };
        settle(68 * EACH);
        // The first waits for its request, the second goes on.
        streams[0].0.asked(true);
        for look in 0..3 {
            streams[1].0.asked(false);
            budget.look_at_unread();
            assert_eq!(budget.refused() > 0, look >= 1, "{look}");
        }
        // 17 MiB are unread, of which an eighth of the budget may be.
        assert_eq!((budget.refused(), budget.evicted()), (4, 0));
        for (place, (_, task)) in streams.iter_mut().enumerate() {
            if (2..6).contains(&place) {
                assert!(task.await.unwrap_err().is_cancelled(), "{place}");
            } else {
                assert!(!task.is_finished(), "{place}");
            }
        }
        streams.drain(2..6);
        settle(31 * MI);
        assert_eq!((budget.refused(), budget.evicted()), (4, 0));
        // More at once than the looks can keep up with.
        settle(33 * MI);
        assert!(budget.refused() > 30 && budget.evicted() == 0, "{}", budget.refused());
        streams.truncate(2);
        settle(34 * MI);
        assert_eq!(budget.evicted(), 1, "none is left that stalls");
        drop(room);
        assert_eq!(budget.used(Kind::Unread), 0);
    }
}
