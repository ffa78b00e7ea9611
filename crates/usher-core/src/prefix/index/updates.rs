//! Queue of the blocks that this process added and has not published yet.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::endpoint_blocks::{EndpointBlocks, EndpointId};

/// Blocks to publish, taken from the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Updates {
    /// Blocks, one item per endpoint, what was added first in front.
    pub held: Vec<EndpointBlocks>,
    /// Blocks that were dropped since the last time, because the queue was full.
    pub dropped: u64,
}

/// Blocks that wait to be published, the oldest first. A full queue drops these.
#[derive(Debug, Default)]
pub(super) struct UpdateQueue {
    // Taken once for every request that is added and has new blocks, and by the publisher.
    queue: Mutex<Queue>,
    /// Blocks at most; 0 without a reader.
    room: AtomicUsize,
    /// Blocks in the queue, to be read without the lock.
    len: AtomicUsize,
    /// `true` if there is a credit, to be read without the lock.
    may_republish: AtomicBool,
}

/// New blocks for every block that is published again: these are a third of the stream at most.
const NEW_PER_REPUBLISHED: i64 = 2;

#[derive(Debug, Default)]
struct Queue {
    hashes: VecDeque<u64>,
    /// Endpoints that got them.
    runs: VecDeque<Run>,
    dropped: u64,
    /// New blocks for which none was published again; below 0 after a prompt that took more than there was.
    credit: i64,
}

/// Blocks in a row that one endpoint got.
#[derive(Clone, Copy, Debug)]
struct Run {
    endpoint: EndpointId,
    capacity: u32,
    count: u32,
}

impl Queue {
    fn push(&mut self, run: Run, hashes: &[u64], room: usize) {
        let (hashes, over) = hashes.split_at(hashes.len().min(room));
        self.drop_oldest((self.hashes.len() + hashes.len()).saturating_sub(room));
        self.dropped += over.len() as u64;
        grow(&mut self.hashes, hashes.len(), room);
        self.hashes.extend(hashes);
        let count = hashes.len() as u32;
        match self.runs.back_mut() {
            Some(last) if last.endpoint == run.endpoint => {
                last.count += count;
                last.capacity = run.capacity;
            }
            _ => {
                grow(&mut self.runs, 1, room);
                self.runs.push_back(Run { count, ..run });
            }
        }
    }

    fn drop_oldest(&mut self, count: usize) {
        self.hashes.drain(..count);
        self.take_runs(count, |_| {});
        self.dropped += count as u64;
    }

    /// Takes out the runs of the first blocks.
    fn take_runs(&mut self, count: usize, mut visit: impl FnMut(Run)) {
        let mut left = count as u32;
        while left > 0
            && let Some(first) = self.runs.front_mut()
        {
            let run = Run { count: first.count.min(left), ..*first };
            first.count -= run.count;
            left -= run.count;
            if first.count == 0 {
                self.runs.pop_front();
            }
            visit(run);
        }
    }
}

/// Makes room for some more where there is none, and never for more than `most`.
fn grow<T>(queue: &mut VecDeque<T>, more: usize, most: usize) {
    let len = queue.len();
    if len + more > queue.capacity() {
        queue.reserve_exact((len / 2).max(16).min(most.saturating_sub(len)).max(more));
    }
}

impl UpdateQueue {
    /// Bounds the queue, and empties it without a reader.
    pub(super) fn set_room(&self, room: usize) {
        let mut queue = self.lock();
        self.room.store(room, Relaxed);
        if room == 0 {
            *queue = Queue::default();
            self.may_republish.store(false, Relaxed);
        }
        let over = queue.hashes.len().saturating_sub(room);
        queue.drop_oldest(over);
        self.len.store(queue.hashes.len(), Relaxed);
    }

    pub(super) fn is_on(&self) -> bool {
        self.room.load(Relaxed) > 0
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    /// Returns `true` if published blocks may be published again.
    pub(super) fn may_republish(&self) -> bool {
        self.may_republish.load(Relaxed)
    }

    /// Lets so many more published blocks be published again.
    pub(super) fn republish(&self, more: usize) {
        let mut queue = self.lock();
        self.earn(&mut queue, more as i64 * NEW_PER_REPUBLISHED, 0);
    }

    /// Queues the blocks that an endpoint got, if there is a reader. `again`: those that were published before.
    pub(super) fn record<'a>(
        &self,
        endpoint: EndpointId,
        capacity: usize,
        parts: impl IntoIterator<Item = &'a [u64]>,
        again: usize,
    ) {
        let mut queue = self.lock();
        // Under the lock, so that nothing is left behind when it is set to 0.
        let room = self.room.load(Relaxed);
        if room > 0 {
            let capacity = u32::try_from(capacity).unwrap_or(u32::MAX);
            let run = Run { endpoint, capacity, count: 0 };
            let mut queued = 0;
            for hashes in parts {
                queued += hashes.len();
                queue.push(run, hashes, room);
            }
            self.len.store(queue.hashes.len(), Relaxed);
            self.earn(&mut queue, (queued - again) as i64, again as i64);
        }
    }

    /// Counts new blocks and republished ones. The credit is worth a full queue at most.
    fn earn(&self, queue: &mut Queue, new: i64, again: i64) {
        let most = self.room.load(Relaxed) as i64;
        queue.credit = (queue.credit + new).min(most) - again * NEW_PER_REPUBLISHED;
        self.may_republish.store(queue.credit > 0, Relaxed);
    }

    /// Takes up to so many of the oldest blocks.
    pub(super) fn take(&self, max_blocks: usize) -> Updates {
        let (hashes, runs, dropped) = {
            let mut queue = self.lock();
            let count = queue.hashes.len().min(max_blocks);
            let hashes: Vec<u64> = queue.hashes.drain(..count).collect();
            let mut runs = Vec::new();
            queue.take_runs(count, |run| runs.push(run));
            self.len.store(queue.hashes.len(), Relaxed);
            (hashes, runs, std::mem::take(&mut queue.dropped))
        };
        // Sorted by endpoint without the lock, which requests take.
        let mut taken = Updates { held: Vec::new(), dropped };
        let mut places = HashMap::new();
        let mut rest = hashes.as_slice();
        for Run { endpoint, capacity, count } in runs {
            let (these, behind) = rest.split_at_checked(count as usize).unwrap_or((rest, &[]));
            rest = behind;
            let at = *places.entry(endpoint).or_insert(taken.held.len());
            match taken.held.get_mut(at) {
                Some(held) => {
                    held.hashes.extend_from_slice(these);
                    held.capacity = capacity;
                }
                None => taken.held.push(EndpointBlocks { endpoint, capacity, hashes: these.to_vec() }),
            }
        }
        taken
    }

    pub(super) fn bytes(&self) -> usize {
        let queue = self.lock();
        queue.hashes.capacity() * size_of::<u64>() + queue.runs.capacity() * size_of::<Run>()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
