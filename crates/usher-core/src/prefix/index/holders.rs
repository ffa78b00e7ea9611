//! The endpoints that hold something, and how much they may hold.

use std::collections::HashMap;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;

use crate::endpoints::{Endpoint, Slot};

use smallvec::SmallVec;

use super::key::Key;
use super::limits::Limits;
use super::lru::{LruList, OWN};
use super::set::MAX_SLOTS;
use super::shards::Shards;

/// An endpoint that holds something, or did until now.
#[derive(Debug)]
pub(super) struct Holder {
    /// Keeps the number from being given to another endpoint.
    slot: Arc<Slot>,
    number: u16,
    /// The endpoint's [identity](Endpoint::identity).
    pub(super) identity: Arc<str>,
    // Guards what the endpoint holds together with its slot in the shards: who changes one
    // changes both. Taken by those that add to this endpoint or evict from it.
    held: Mutex<HolderState>,
    /// Number of blocks, to be read without the lock.
    len: AtomicUsize,
}

/// Blocks that an endpoint holds.
#[derive(Debug)]
pub(super) struct HolderState {
    pub(super) recent: LruList,
    /// Blocks that it may hold.
    capacity: usize,
    /// `true` if this process has set the number, which takes precedence over others.
    decided: bool,
    /// The holder is not among the others any more: look it up again.
    pub(super) dropped: bool,
}

/// Sources that blocks get when they are added.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sources {
    /// Blocks that are held already.
    pub(super) held: u16,
    /// New ones.
    pub(super) new: u16,
}

/// All holders, by slot.
#[derive(Debug)]
pub(super) struct Holders {
    // Written when an endpoint gets its first block and when it goes.
    by_slot: RwLock<HashMap<u32, Arc<Holder>>>,
    pub(super) shards: Shards,
    entries: AtomicUsize,
    limits: Limits,
    /// Entries at most, of those that the limits allow.
    most: AtomicUsize,
    /// Entries that had to make room because all endpoints together held too many.
    crowded_out: AtomicUsize,
    bytes: AtomicUsize,
}

/// Blocks that are evicted from the largest endpoint before another one is looked for, and blocks of
/// other processes that are added while an endpoint is locked: some microseconds.
pub(super) const AT_ONCE: usize = 64;

/// Blocks that are read before they are added.
const AHEAD: usize = 32;

/// Bytes of the index from which on blocks are read ahead. A smaller one stays in the processor's caches, where
/// reading ahead takes longer than it saves: 15 % of an addition to two endpoints of 31,250 blocks.
const AHEAD_FROM: usize = 8 << 20;

/// Bytes of a holder beside its blocks: itself, and its row among the others.
const HOLDER_BYTES: usize = 2 * size_of::<Holder>();

impl HolderState {
    /// Blocks that it may hold.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Sets it, as this process or others say.
    pub(super) fn set_capacity(&mut self, capacity: usize, own: bool) {
        if own || !self.decided {
            self.capacity = capacity.min(LruList::MAX);
            self.decided |= own;
        }
    }
}

impl Holder {
    /// Number of blocks.
    pub(super) fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    pub(super) fn slot_number(&self) -> u32 {
        self.slot.number()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HolderState> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Holders {
    /// No holder yet.
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            by_slot: RwLock::default(),
            shards: Shards::new(),
            entries: AtomicUsize::new(0),
            limits,
            most: AtomicUsize::new(limits.entries),
            crowded_out: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        }
    }

    pub(super) fn entries(&self) -> usize {
        self.entries.load(Relaxed)
    }

    /// Returns `true` if there may be another entry without evicting one.
    pub(super) fn has_room(&self) -> bool {
        self.entries() < self.most.load(Relaxed)
    }

    pub(super) fn crowded_out(&self) -> usize {
        self.crowded_out.load(Relaxed)
    }

    /// Entries that there may be within the limits.
    pub(super) fn limit(&self) -> usize {
        self.limits.entries
    }

    /// Keeps the index from growing, or lets it grow to its limit.
    pub(super) fn may_grow(&self, may: bool) {
        let most = if may { self.limits.entries } else { self.entries().min(self.limits.entries) };
        self.most.store(most, Relaxed);
    }

    pub(super) fn bytes(&self) -> usize {
        self.shards.bytes() + self.bytes.load(Relaxed)
    }

    /// All holders, by their slots.
    pub(super) fn all(&self) -> Vec<Arc<Holder>> {
        let by_slot = self.by_slot.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = by_slot.values().cloned().collect();
        all.sort_unstable_by_key(|holder| holder.number);
        all
    }

    /// An endpoint gets the blocks of a prompt: they become its most recent ones, the first of
    /// them the most recent of all, and it keeps the `capacity` most recent, from now on; `None`
    /// leaves that as it is. Shows `show` the position of each, and the sources that it had; `None`: it is new. The
    /// endpoint is unlocked now and then for others than this process.
    pub(super) fn add(
        &self,
        endpoint: &Endpoint,
        hashes: &[u64],
        sources: Sources,
        capacity: Option<usize>,
        mut show: impl FnMut(usize, Option<u16>),
    ) {
        let is_own = sources.new & OWN != 0;
        let mut added = 0;
        while added < hashes.len() {
            let Some(holder) = self.holder(endpoint) else { return };
            let mut held = holder.lock();
            if held.dropped {
                continue;
            }
            let before = held.recent.bytes();
            match hashes[..added].last() {
                None => self.begin(&holder, &mut held, capacity, is_own),
                // Others may have evicted it meanwhile, and nothing finds what is behind it then.
                Some(last) if !held.recent.continue_after(Key::of(*last)) => return,
                Some(_) => {}
            }
            let end = if is_own { hashes.len() } else { hashes.len().min(added + AT_ONCE) };
            let shown = |index, had| show(added + index, had);
            let now = self.add_to(&holder, &mut held, &hashes[added..end], sources, shown);
            self.resized(before, held.recent.bytes());
            drop(held);
            let ControlFlow::Continue(now) = now else { return };
            added += now;
            let left = hashes.len() - added;
            if added < end && !self.evict_from_largest(left.min(AT_ONCE), &holder) {
                return;
            }
            if left > 0 && !is_own {
                // Or it would have the lock again before whoever waits for it wakes up.
                thread::yield_now();
            }
        }
    }

    /// Sets how many blocks a holder may have, and drops those beyond it.
    fn begin(&self, holder: &Holder, held: &mut HolderState, capacity: Option<usize>, is_own: bool) {
        if let Some(capacity) = capacity {
            held.set_capacity(capacity, is_own);
        }
        while held.recent.len() > held.capacity {
            self.evict(holder, &mut held.recent);
        }
        held.recent.begin();
    }

    /// Adds what there is room for without taking it from others, and returns how many. What
    /// the holder has no room for itself is left out, the tail: nothing goes on then.
    fn add_to(
        &self,
        holder: &Holder,
        held: &mut HolderState,
        hashes: &[u64],
        sources: Sources,
        show: impl FnMut(usize, Option<u16>),
    ) -> ControlFlow<(), usize> {
        let mut freed = 0;
        let added = self.replace(holder, held, hashes, sources, &mut freed, show);
        self.left(holder, &held.recent, freed);
        added
    }

    /// The same, before evicted entries that no block took over are given back: `freed`. A full endpoint
    /// takes one block for another, and the count of all, which every thread writes, stays as it is.
    fn replace(
        &self,
        holder: &Holder,
        held: &mut HolderState,
        hashes: &[u64],
        sources: Sources,
        freed: &mut usize,
        mut show: impl FnMut(usize, Option<u16>),
    ) -> ControlFlow<(), usize> {
        let capacity = held.capacity;
        for (index, &hash) in hashes.iter().enumerate() {
            if index % AHEAD == 0 {
                self.read_ahead(held, &hashes[index..hashes.len().min(index + AHEAD)]);
            }
            let key = Key::of(hash);
            if let Some(had) = held.recent.touch(key, sources.held) {
                show(index, Some(had));
                continue;
            }
            if held.recent.len() >= capacity {
                if !held.recent.has_earlier() {
                    return ControlFlow::Break(());
                }
                *freed += usize::from(self.remove_oldest(holder, &mut held.recent));
            }
            while *freed == 0 && !self.reserve() {
                if !held.recent.has_earlier() {
                    return ControlFlow::Continue(index);
                }
                *freed += usize::from(self.remove_oldest(holder, &mut held.recent));
                self.crowded_out.fetch_add(1, Relaxed);
            }
            // One is counted for it now, as it was freed or reserved.
            *freed = freed.saturating_sub(1);
            if !self.hold(holder, key) {
                return ControlFlow::Break(());
            }
            held.recent.push(key, sources.new, capacity);
            show(index, None);
        }
        ControlFlow::Continue(hashes.len())
    }

    /// Writes down that a holder has a block, for which there is an entry. Returns whether there was room for
    /// it; if not, the entry is given back.
    fn hold(&self, holder: &Holder, key: Key) -> bool {
        let is_held = self.shards.insert(key, holder.number);
        if !is_held {
            self.entries.fetch_sub(1, Relaxed);
        }
        is_held
    }

    /// Adds a block behind all that a holder has. Returns whether there was room for it.
    pub(super) fn add_oldest(&self, holder: &Holder, held: &mut HolderState, key: Key, sources: u16) -> bool {
        let has_room = held.recent.len() < held.capacity && self.reserve() && self.hold(holder, key);
        if has_room {
            held.recent.push_oldest(key, sources, held.capacity);
            holder.len.store(held.recent.len(), Relaxed);
        }
        has_room
    }

    /// Reads what adding these blocks will read and write, and does nothing else: what is read of several comes from
    /// memory at the same time, and the changes, one after the other, need not wait for it.
    fn read_ahead(&self, held: &HolderState, hashes: &[u64]) {
        if hashes.len() < 2 || self.bytes() < AHEAD_FROM {
            return;
        }
        let keys = hashes.iter().map(|hash| Key::of(*hash));
        black_box(keys.clone().fold(0, |all, key| all ^ held.recent.read(key)));
        let new: SmallVec<[Key; AHEAD]> = keys.filter(|key| !held.recent.contains(*key)).collect();
        let entries = self.entries() + new.len();
        let is_full = held.recent.len() + new.len() > held.capacity || entries > self.most.load(Relaxed);
        let evicted = held.recent.iter().take(if is_full { new.len() } else { 0 }).map(|(key, _)| key);
        let tables = self.shards.tables();
        let in_table = |key: Key| tables.get(key.shard()).map_or(0, |table| table.look_up(key.tag()).bits());
        black_box(new.iter().copied().chain(evicted).fold(0, |all, key| all ^ in_table(key)));
    }

    /// Drops everything that holders hold, and the holders themselves. Those to which
    /// somebody adds meanwhile stay, with what they get.
    pub(super) fn drop_all(&self, gone: impl IntoIterator<Item = Arc<Holder>>) {
        for holder in gone {
            let mut held = holder.lock();
            let before = held.recent.bytes();
            let dropped = std::mem::take(&mut held.recent);
            for (key, _) in dropped.iter() {
                self.shards.remove(key, holder.number);
            }
            self.left(&holder, &held.recent, dropped.len());
            self.resized(before, held.recent.bytes());
            drop(held);
            let mut by_slot = self.by_slot.write().unwrap_or_else(PoisonError::into_inner);
            // Who adds has the lock, and may keep it for long.
            let Ok(mut held) = holder.held.try_lock() else { continue };
            if held.recent.len() == 0 && !held.dropped {
                held.dropped = true;
                by_slot.remove(&holder.slot_number());
                self.bytes.fetch_sub(HOLDER_BYTES, Relaxed);
            }
        }
    }

    /// The holder in a slot.
    pub(super) fn get(&self, slot: &Slot) -> Option<Arc<Holder>> {
        self.by_number(slot.number())
    }

    /// The holder with this number.
    pub(super) fn by_number(&self, slot: u32) -> Option<Arc<Holder>> {
        self.by_slot.read().unwrap_or_else(PoisonError::into_inner).get(&slot).cloned()
    }

    /// Counts the blocks that have only these sources as restored. An endpoint is locked for one look at all its blocks.
    pub(super) fn retire(&self, sources: u16) {
        for holder in self.all() {
            let mut held = holder.lock();
            let before = held.recent.bytes();
            held.recent.retire(sources);
            self.resized(before, held.recent.bytes());
        }
    }

    /// Drops the oldest blocks of the largest endpoints until no more than so many entries
    /// are left, and gives back what is empty.
    pub(super) fn shrink_to(&self, entries: usize) {
        loop {
            let more = self.entries().saturating_sub(entries);
            let Some(largest) = self.largest().filter(|_| more > 0) else { break };
            self.evict_many(&largest, more.min(AT_ONCE));
        }
        for holder in self.all() {
            let mut held = holder.lock();
            let before = held.recent.bytes();
            held.recent.fit();
            self.resized(before, held.recent.bytes());
        }
        self.shards.fit();
    }

    /// The holder for an endpoint, made when there is none. `None` for a slot that can't be
    /// written down.
    pub(super) fn holder(&self, endpoint: &Endpoint) -> Option<Arc<Holder>> {
        let slot = endpoint.slot();
        if let Some(holder) = self.get(slot) {
            return Some(holder);
        }
        let number = u16::try_from(slot.number()).ok().filter(|number| *number < MAX_SLOTS)?;
        let mut by_slot = self.by_slot.write().unwrap_or_else(PoisonError::into_inner);
        let holder = by_slot.entry(slot.number()).or_insert_with(|| {
            self.bytes.fetch_add(HOLDER_BYTES, Relaxed);
            Arc::new(Holder {
                slot: Arc::clone(slot),
                number,
                identity: Arc::clone(endpoint.identity()),
                held: Mutex::new(HolderState {
                    recent: LruList::default(),
                    capacity: self.limits.capacity.min(LruList::MAX),
                    decided: false,
                    dropped: false,
                }),
                len: AtomicUsize::new(0),
            })
        });
        Some(Arc::clone(holder))
    }

    /// Counts one entry more, if there may be one.
    fn reserve(&self) -> bool {
        let most = self.most.load(Relaxed);
        let more = |entries: usize| (entries < most).then_some(entries + 1);
        self.entries.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// Drops an endpoint's oldest block.
    fn evict(&self, holder: &Holder, recent: &mut LruList) -> bool {
        let evicted = self.remove_oldest(holder, recent);
        if evicted {
            self.left(holder, recent, 1);
        }
        evicted
    }

    /// Drops an endpoint's oldest block, whose entry is still counted.
    fn remove_oldest(&self, holder: &Holder, recent: &mut LruList) -> bool {
        let oldest = recent.pop();
        oldest.inspect(|key| self.shards.remove(*key, holder.number)).is_some()
    }

    /// The endpoint with the most blocks; of several with as many, the one with the lowest
    /// slot. `None`: no block is held.
    fn largest(&self) -> Option<Arc<Holder>> {
        let by_slot = self.by_slot.read().unwrap_or_else(PoisonError::into_inner);
        let size = |holder: &&Arc<Holder>| (holder.len.load(Relaxed), u16::MAX - holder.number);
        by_slot.values().max_by_key(size).filter(|holder| size(holder).0 > 0).cloned()
    }

    /// Drops up to so many of the oldest blocks of the endpoint with the most, so that another
    /// one has room. Returns whether it did: an endpoint that has the most itself gets no more.
    fn evict_from_largest(&self, count: usize, by: &Arc<Holder>) -> bool {
        let largest = self.largest().filter(|largest| !Arc::ptr_eq(largest, by));
        largest.inspect(|largest| self.evict_many(largest, count)).is_some()
    }

    /// Drops up to so many of an endpoint's oldest blocks, as the whole index has no room.
    fn evict_many(&self, holder: &Holder, count: usize) {
        let mut held = holder.lock();
        let before = held.recent.bytes();
        let evicted = (0..count).take_while(|_| self.evict(holder, &mut held.recent)).count();
        self.resized(before, held.recent.bytes());
        self.crowded_out.fetch_add(evicted, Relaxed);
    }

    /// Entries are gone from a holder, which has `recent` now.
    fn left(&self, holder: &Holder, recent: &LruList, gone: usize) {
        self.entries.fetch_sub(gone, Relaxed);
        holder.len.store(recent.len(), Relaxed);
    }

    pub(super) fn resized(&self, before: usize, now: usize) {
        self.bytes.fetch_add(now, Relaxed);
        self.bytes.fetch_sub(before, Relaxed);
    }
}
