//! Blocks that endpoints are about to hold.

use std::collections::{BTreeMap, HashMap};
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
    /// Requests by the time until which they last, then by number. Each keeps its slot from being given to another
    /// endpoint.
    requests: BTreeMap<(u64, u64), Request>,
    /// Request of a slot with these blocks, by the last of them, which follows from those before it.
    by_last: HashMap<(u16, u64), (u64, u64)>,
    /// Blocks of all requests, those that they share counted each time.
    queued: usize,
    next: u64,
}

#[derive(Debug)]
struct Request {
    slot: Arc<Slot>,
    blocks: Arc<Blocks>,
}

impl Request {
    fn last(&self) -> Option<(u16, u64)> {
        self.blocks.hashes().last().map(|last| (self.slot.number() as u16, *last))
    }
}

impl Pending {
    /// A request for the same blocks of a slot.
    fn same(&self, request: &Request) -> Option<(u64, u64)> {
        let at = *self.by_last.get(&request.last()?)?;
        self.requests.get(&at).filter(|same| same.blocks.hashes() == request.blocks.hashes()).map(|_| at)
    }

    fn push(&mut self, request: Request, until_ms: u64) {
        let at = (until_ms, self.next);
        self.next += 1;
        self.queued += request.blocks.len();
        if let Some(last) = request.last() {
            self.by_last.insert(last, at);
        }
        self.requests.insert(at, request);
    }

    fn take(&mut self, at: (u64, u64)) -> Option<Request> {
        let request = self.requests.remove(&at)?;
        self.queued -= request.blocks.len();
        if let Some(last) = request.last().filter(|last| self.by_last.get(last) == Some(&at)) {
            self.by_last.remove(&last);
        }
        Some(request)
    }

    /// Takes the first request whose time is over.
    fn pop(&mut self, now_ms: u64) -> Option<Request> {
        let (&at, _) = self.requests.first_key_value()?;
        if at.0 <= now_ms { self.take(at) } else { None }
    }
}

impl Speculative {
    /// Blocks at most; 16 MiB.
    pub(super) const MAX_BLOCKS: usize = 1 << 18;
    /// Requests at most, and blocks of all of them, which most share; 8 MiB.
    const MAX_REQUESTS: usize = 1 << 14;
    pub(super) const MAX_QUEUED: usize = 1 << 20;

    pub(super) fn add(&self, slot: &Arc<Slot>, blocks: &Arc<Blocks>, now_ms: u64, until_ms: u64) {
        let shards = self.shards.get_or_init(Shards::new);
        let mut pending = self.lock();
        self.drop_old(&mut pending, now_ms);
        let number = slot.number() as u16;
        let request = Request { slot: Arc::clone(slot), blocks: Arc::clone(blocks) };
        let same = pending.same(&request);
        let is_short =
            pending.requests.len() < Self::MAX_REQUESTS && pending.queued + blocks.len() <= Self::MAX_QUEUED;
        let is_known = |hash: &u64| pending.until.contains_key(&(number, *hash));
        let has_room = pending.until.len() + blocks.len() <= Self::MAX_BLOCKS
            || same.is_some() && blocks.hashes().iter().all(is_known);
        if !(is_short || same.is_some()) || !has_room || blocks.is_empty() {
            return;
        }
        for hash in blocks.hashes() {
            let until = pending.until.entry((number, *hash)).or_insert_with(|| {
                shards.insert(Key::of(*hash), number);
                0
            });
            *until = until_ms.max(*until);
        }
        // The same prompt once more lasts longer.
        let last_ms = same.and_then(|at| pending.take(at).map(|_| at.0)).unwrap_or(0);
        pending.push(request, until_ms.max(last_ms));
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
        while let Some(request) = pending.pop(now_ms) {
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
            pending.until = HashMap::new();
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
        let of_request = size_of::<((u64, u64), Request)>();
        shards.bytes()
            + pending.until.capacity() * (size_of::<((u16, u64), u64)>() + 1)
            + pending.by_last.capacity() * (size_of::<((u16, u64), (u64, u64))>() + 1)
            + pending.requests.len() * of_request
            + pending.queued * size_of::<u64>()
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
