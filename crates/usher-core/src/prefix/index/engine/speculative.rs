//! Blocks that endpoints are about to hold.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arc_swap::Guard;

use crate::endpoints::Slot;
use crate::prefix::Blocks;
use crate::prefix::index::key::Key;
use crate::prefix::index::shards::{Shards, Tables};

/// Blocks of requests that were decided, until the engine reports them or a time is over. A block that several
/// requests bring lasts as long as the last of them lets it.
#[derive(Debug, Default)]
pub(super) struct Speculative {
    shards: OnceLock<Shards>,
    /// Held to add the blocks of one request, to take out one block, or to drop what is over.
    pending: Mutex<Pending>,
    /// Blocks in `pending`, so that who confirms takes no lock where there are none.
    len: AtomicUsize,
}

#[derive(Debug, Default)]
struct Pending {
    /// Time until which each block of a slot lasts.
    until: HashMap<(u16, u64), u64>,
    /// Requests in the order in which they were decided. Each keeps its slot from being given to another endpoint.
    requests: VecDeque<Request>,
}

#[derive(Debug)]
struct Request {
    slot: Arc<Slot>,
    blocks: Arc<Blocks>,
    until_ms: u64,
}

impl Speculative {
    /// Blocks of all requests at most; 16 MiB.
    pub(super) const MAX_BLOCKS: usize = 1 << 18;
    /// Requests at most.
    const MAX_REQUESTS: usize = 1 << 14;

    pub(super) fn add(&self, slot: &Arc<Slot>, blocks: &Arc<Blocks>, now_ms: u64, until_ms: u64) {
        let shards = self.shards.get_or_init(Shards::new);
        let mut pending = self.lock();
        self.drop_old(&mut pending, now_ms);
        let has_room = pending.requests.len() < Self::MAX_REQUESTS
            && pending.until.len() + blocks.len() <= Self::MAX_BLOCKS;
        if !has_room || blocks.is_empty() {
            return;
        }
        let number = slot.number() as u16;
        for hash in blocks.hashes() {
            let until = pending.until.entry((number, *hash)).or_insert_with(|| {
                shards.insert(Key::of(*hash), number);
                0
            });
            *until = until_ms.max(*until);
        }
        let request = Request { slot: Arc::clone(slot), blocks: Arc::clone(blocks), until_ms };
        pending.requests.push_back(request);
        self.len.store(pending.until.len(), Relaxed);
    }

    /// The engine has reported a block.
    pub(super) fn confirm(&self, slot: u16, hash: u64) {
        if self.len.load(Relaxed) == 0 {
            return;
        }
        let mut pending = self.lock();
        if pending.until.remove(&(slot, hash)).is_some() {
            self.forget(slot, hash);
            self.len.store(pending.until.len(), Relaxed);
        }
    }

    pub(super) fn expire(&self, now_ms: u64) {
        if self.shards.get().is_some() {
            self.drop_old(&mut self.lock(), now_ms);
        }
    }

    fn drop_old(&self, pending: &mut Pending, now_ms: u64) {
        while let Some(request) = pending.requests.pop_front_if(|request| request.until_ms <= now_ms) {
            let number = request.slot.number() as u16;
            for hash in request.blocks.hashes() {
                // A later request may rely on it.
                if pending.until.get(&(number, *hash)).is_some_and(|until| *until <= now_ms) {
                    pending.until.remove(&(number, *hash));
                    self.forget(number, *hash);
                }
            }
        }
        if pending.until.is_empty() && pending.until.capacity() > 1 << 10 {
            *pending = Pending { requests: std::mem::take(&mut pending.requests), ..Pending::default() };
        }
        self.len.store(pending.until.len(), Relaxed);
    }

    fn forget(&self, slot: u16, hash: u64) {
        if let Some(shards) = self.shards.get() {
            shards.remove(Key::of(hash), slot);
        }
    }

    /// Tables to look blocks up in; `None` where there are none.
    pub(super) fn tables(&self) -> Option<Guard<Arc<Tables>>> {
        let has_some = self.len.load(Relaxed) > 0;
        self.shards.get().filter(|_| has_some).map(Shards::tables)
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    pub(super) fn bytes(&self) -> usize {
        let Some(shards) = self.shards.get() else { return 0 };
        let pending = self.lock();
        let requests = pending.requests.iter().map(|request| request.blocks.len() * size_of::<u64>());
        shards.bytes()
            + pending.until.capacity() * (size_of::<((u16, u64), u64)>() + 1)
            + pending.requests.capacity() * size_of::<Request>()
            + requests.sum::<usize>()
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
