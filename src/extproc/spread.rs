//! Spreads connections and their streams over the threads that serve them.
//!
//! A connection stays on its thread. It gets the one with the fewest open streams. Gateways fill
//! one connection before they use the next, and use some of them no more when load falls, so that
//! this alone doesn't keep threads equal: a thread that carries a fifth more streams than the
//! mean runs new ones on the thread with the fewest. The connection still reads and writes their
//! frames.

use std::iter::repeat_with;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::memory::Windows;

/// Streams that a thread carries itself, whatever the others do: those of a full connection. To
/// wake another thread costs more than they gain by it.
const ALONE: usize = Windows::LARGEST.streams as usize;

/// Streams of a thread after which it looks at those of the others again.
const CHECK_EVERY: u64 = 64;

/// Streams of a thread. Written for every stream, so on cache lines of their own.
#[derive(Debug)]
#[repr(align(128))]
struct Load {
    open: AtomicUsize,
    total: AtomicU64,
    /// From so many open streams on it hands new ones over.
    most: AtomicUsize,
}

/// Streams of all threads that serve connections.
#[derive(Debug)]
pub struct Threads {
    loads: Box<[Load]>,
    runtimes: Box<[Handle]>,
    /// Thread at which the next search for the fewest streams begins: equals take turns.
    turn: AtomicUsize,
}

impl Threads {
    /// Threads with these runtimes, and without streams.
    pub fn new(runtimes: Box<[Handle]>) -> Self {
        let load = || Load { open: 0.into(), total: 0.into(), most: ALONE.into() };
        let loads = repeat_with(load).take(runtimes.len()).collect();
        Self { loads, runtimes, turn: AtomicUsize::new(0) }
    }

    /// The thread with the fewest open streams.
    pub fn idlest(&self) -> usize {
        let (count, turn) = (self.loads.len(), self.turn.fetch_add(1, Relaxed));
        let places = (0..count).map(|place| turn.wrapping_add(place) % count);
        places.min_by_key(|place| self.loads[*place].open.load(Relaxed)).unwrap_or(0)
    }

    /// Open streams per thread.
    pub fn open(&self) -> Vec<usize> {
        self.loads.iter().map(|load| load.open.load(Relaxed)).collect()
    }

    /// Streams per thread since the start.
    pub fn total(&self) -> Vec<u64> {
        self.loads.iter().map(|load| load.total.load(Relaxed)).collect()
    }

    /// The thread for a new stream of a connection of the thread `own`.
    fn place(&self, own: usize) -> usize {
        let load = &self.loads[own];
        let open = load.open.load(Relaxed);
        if open < load.most.load(Relaxed) && !load.total.load(Relaxed).is_multiple_of(CHECK_EVERY) {
            return own;
        }
        let sum: usize = self.loads.iter().map(|load| load.open.load(Relaxed)).sum();
        let most = ALONE.max(sum * 6 / 5 / self.loads.len());
        load.most.store(most, Relaxed);
        if open < most { own } else { self.idlest() }
    }
}

/// Counts an open stream of a thread until it is dropped.
struct Carried {
    threads: Arc<Threads>,
    place: usize,
}

impl Carried {
    fn new(threads: &Arc<Threads>, place: usize) -> Self {
        let load = &threads.loads[place];
        load.open.fetch_add(1, Relaxed);
        load.total.fetch_add(1, Relaxed);
        Self { threads: Arc::clone(threads), place }
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        self.threads.loads[self.place].open.fetch_sub(1, Relaxed);
    }
}

/// Runs the streams of a connection.
#[derive(Clone, Debug)]
pub struct Streams {
    /// All threads, and the index of the connection's own.
    threads: Option<(Arc<Threads>, usize)>,
}

impl Streams {
    /// Streams of a connection of the thread `own`.
    pub fn of(threads: &Arc<Threads>, own: usize) -> Self {
        Self { threads: Some((Arc::clone(threads), own)) }
    }

    /// On the current runtime, uncounted.
    pub fn here() -> Self {
        Self { threads: None }
    }
}

impl Streams {
    /// Runs a stream that weighs nothing, on the current runtime. Returns what ends it.
    pub fn spawn_uncounted(&self, stream: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        tokio::spawn(stream).abort_handle()
    }

    /// Runs a stream. Returns what ends it.
    pub fn run(&self, stream: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let Some((threads, own)) = &self.threads else { return self.spawn_uncounted(stream) };
        let place = threads.place(*own);
        let carried = Carried::new(threads, place);
        let stream = stream.map(move |()| drop(carried));
        let task = if place == *own { tokio::spawn(stream) } else { threads.runtimes[place].spawn(stream) };
        task.abort_handle()
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn threads(count: usize) -> (Arc<Threads>, Vec<Runtime>) {
        let runtimes: Vec<_> =
            repeat_with(|| Builder::new_current_thread().build().unwrap()).take(count).collect();
        let handles = runtimes.iter().map(|runtime| runtime.handle().clone()).collect();
        (Arc::new(Threads::new(handles)), runtimes)
    }

    fn carry(threads: &Arc<Threads>, place: usize, count: usize) -> Vec<Carried> {
        repeat_with(|| Carried::new(threads, place)).take(count).collect()
    }

    #[test]
    fn connections_go_to_the_thread_with_fewest_streams() {
        let (threads, _runtimes) = threads(4);
        let mut places: Vec<_> = (0..8).map(|_| threads.idlest()).collect();
        places.sort_unstable();
        assert_eq!(places, [0, 0, 1, 1, 2, 2, 3, 3], "all at once, before their streams");
        let streams = [5, 2, 3, 9].iter().enumerate().map(|(place, count)| carry(&threads, place, *count));
        let mut streams: Vec<_> = streams.collect();
        assert_eq!([threads.idlest(), threads.idlest()], [1, 1]);
        streams[3].truncate(1);
        assert_eq!(threads.idlest(), 3);
        assert_eq!((threads.open(), threads.total()), (vec![5, 2, 3, 1], vec![5, 2, 3, 9]));
    }

    #[test]
    fn no_thread_carries_more_than_a_fifth_above_the_mean() {
        for (count, streams) in [(8, 2000), (3, 5000), (1, 500)] {
            let (threads, _runtimes) = threads(count);
            let mut open = Vec::new();
            // All on one connection, as a gateway may that doesn't open others.
            for _ in 0..streams {
                let place = threads.place(0);
                open.push(Carried::new(&threads, place));
            }
            let most = threads.open().into_iter().max().unwrap();
            assert!(most <= streams * 6 / 5 / count + 1, "{:?}", threads.open());
        }
    }

    #[test]
    fn few_streams_stay_with_their_connection() {
        let (threads, _runtimes) = threads(8);
        for _ in 0..10 * CHECK_EVERY {
            let place = threads.place(2);
            assert_eq!(place, 2);
            drop(carry(&threads, place, ALONE - 1));
        }
    }

    #[test]
    fn stream_limit_shrinks_after_a_busy_period() {
        let (threads, _runtimes) = threads(4);
        let mut streams: Vec<_> = (0..4).map(|place| carry(&threads, place, 1000)).collect();
        assert_eq!(threads.place(0), 0);
        streams.drain(1..);
        streams[0].truncate(800);
        let handed = (0..=CHECK_EVERY).position(|_| {
            let place = threads.place(0);
            streams[0].push(Carried::new(&threads, place));
            place != 0
        });
        assert!(handed.is_some());
    }

    #[test]
    fn streams_end_where_they_run() {
        let (threads, runtimes) = threads(2);
        let _busy = carry(&threads, 0, 2 * ALONE);
        let handle = runtimes[0].handle().clone();
        let _context = handle.enter();
        Streams::of(&threads, 0).run(std::future::ready(()));
        assert_eq!(threads.open(), [2 * ALONE, 1]);
        runtimes[1].block_on(async { tokio::task::yield_now().await });
        assert_eq!(threads.open(), [2 * ALONE, 0]);
    }

    #[test]
    fn health_streams_run_on_the_thread_of_their_connection() {
        let (threads, runtimes) = threads(2);
        let _busy = carry(&threads, 0, 2 * ALONE);
        let handle = runtimes[0].handle().clone();
        let _context = handle.enter();
        let stream = Streams::of(&threads, 0).spawn_uncounted(std::future::pending());
        assert_eq!((threads.open(), threads.total()), (vec![2 * ALONE, 0], vec![2 * ALONE as u64, 0]));
        stream.abort();
        runtimes[0].block_on(async { tokio::task::yield_now().await });
        assert!(stream.is_finished());
    }
}
