//! Puts blocks into the index away from the request that they came with.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use crate::endpoints::Endpoint;

use super::{Blocks, PrefixIndex};

/// What an [`Adder`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdderCounts {
    /// Requests that were put into the queue.
    pub queued: u64,
    /// Requests that were dropped, because the queue was full.
    pub dropped: u64,
}

/// The queue in front of a [`PrefixIndex`], and the thread that empties it.
///
/// Whoever owns the index starts one adder for it and keeps both for as long as the index
/// should learn; both outlive a configuration. The thread is named `prefix-adder`; it ends
/// when the adder is dropped, after what is queued by then.
pub struct Adder {
    queue: SyncSender<Work>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Blocks in the queue.
    blocks: AtomicUsize,
    queued: AtomicU64,
    dropped: AtomicU64,
}

enum Work {
    Add {
        endpoint: Arc<Endpoint>,
        blocks: Arc<Blocks>,
        capacity: usize,
    },
    /// Says that everything before it is done.
    Flush(SyncSender<()>),
}

impl Adder {
    /// Requests that wait at most.
    pub const MAX_REQUESTS: usize = 4096;
    /// Blocks that wait at most, over all requests: 8 MiB of hashes.
    pub const MAX_BLOCKS: usize = 1 << 20;

    /// Starts the thread that adds to `index`.
    ///
    /// # Errors
    /// When the system has no room for another thread.
    pub fn start(index: Arc<PrefixIndex>) -> io::Result<Self> {
        let (queue, work) = sync_channel(Self::MAX_REQUESTS);
        let shared = Arc::new(Shared::default());
        let drained = Arc::clone(&shared);
        thread::Builder::new()
            .name("prefix-adder".to_owned())
            .spawn(move || drain(&index, &work, &drained))?;
        Ok(Self { queue, shared })
    }

    /// An endpoint is sent these blocks, and its cache holds `capacity` of them. Costs the
    /// same however many they are, and never waits: when the queue is full, the blocks are
    /// dropped and counted. Returns whether they were queued.
    pub fn push(&self, endpoint: Arc<Endpoint>, blocks: Arc<Blocks>, capacity: usize) -> bool {
        let len = blocks.len();
        let waiting = self.shared.blocks.fetch_add(len, Relaxed);
        let fits = waiting.saturating_add(len) <= Self::MAX_BLOCKS;
        if fits && self.queue.try_send(Work::Add { endpoint, blocks, capacity }).is_ok() {
            self.shared.queued.fetch_add(1, Relaxed);
            return true;
        }
        self.shared.blocks.fetch_sub(len, Relaxed);
        self.shared.dropped.fetch_add(1, Relaxed);
        false
    }

    /// Waits until everything that was pushed before is in the index.
    pub fn flush(&self) {
        let (done, wait) = sync_channel(1);
        if self.queue.send(Work::Flush(done)).is_ok() {
            // An error means that the thread is gone, and with it the queue.
            let _ = wait.recv();
        }
    }

    /// What was queued and dropped so far.
    pub fn counts(&self) -> AdderCounts {
        AdderCounts { queued: self.shared.queued.load(Relaxed), dropped: self.shared.dropped.load(Relaxed) }
    }
}

fn drain(index: &PrefixIndex, work: &Receiver<Work>, shared: &Shared) {
    for work in work {
        match work {
            Work::Add { endpoint, blocks, capacity } => {
                index.add(&endpoint, blocks.hashes(), capacity);
                shared.blocks.fetch_sub(blocks.len(), Relaxed);
            }
            Work::Flush(done) => {
                // Whoever asked may not wait any more.
                let _ = done.send(());
            }
        }
    }
}

impl fmt::Debug for Adder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Adder").field(&self.counts()).finish()
    }
}
