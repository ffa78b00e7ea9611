//! The blocks of all endpoints, spread over shards.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::{ArcSwap, Guard};

use super::key::{Key, SHARDS};
use super::shard::Shard;
use super::table::Table;

/// The tables of all shards. Matchers take one reference to all of them.
pub(super) type Tables = Box<[Arc<Table>]>;

/// Slots that hold each block.
#[derive(Debug)]
pub(super) struct Shards {
    /// Replaced when a shard has a new table.
    tables: ArcSwap<Tables>,
    /// Held while `tables` is replaced, so that no change is lost.
    publishing: Mutex<()>,
    /// Each taken for one change of one block. Matchers take none.
    shards: Box<[Mutex<Shard>]>,
    /// Bytes of the tables.
    bytes: AtomicUsize,
}

impl Shards {
    pub(super) fn new() -> Self {
        let shards: Vec<Shard> = (0..SHARDS).map(|_| Shard::new()).collect();
        let tables: Tables = shards.iter().map(|shard| Arc::clone(shard.table())).collect();
        let bytes = tables.iter().map(|table| table.bytes()).sum();
        Self {
            tables: ArcSwap::from_pointee(tables),
            publishing: Mutex::default(),
            shards: shards.into_iter().map(Mutex::new).collect(),
            bytes: AtomicUsize::new(bytes),
        }
    }

    /// The current tables. Whoever holds them sees changes as long as a table has room for
    /// the changes, and should not hold them for long.
    pub(super) fn tables(&self) -> Guard<Arc<Tables>> {
        self.tables.load()
    }

    /// A slot holds a block from now on. Returns whether there was room to write it down;
    /// only with more sets of holders than any pool has there is not.
    pub(super) fn insert(&self, key: Key, slot: u16) -> bool {
        let mut shard = self.shard(key.shard());
        let done = shard.insert(key.tag(), slot);
        if done == Some(true) {
            self.publish(key.shard(), &shard);
        }
        done.is_some()
    }

    /// A slot holds a block no more.
    pub(super) fn remove(&self, key: Key, slot: u16) {
        let mut shard = self.shard(key.shard());
        if shard.remove(key.tag(), slot) {
            self.publish(key.shard(), &shard);
        }
    }

    /// Makes all tables as small as what they hold allows.
    pub(super) fn fit(&self) {
        for index in 0..self.shards.len() {
            let mut shard = self.shard(index);
            if shard.fit() {
                self.publish(index, &shard);
            }
        }
    }

    /// Bytes that the tables take, and what leads to them.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed) + self.shards.len() * (size_of::<Mutex<Shard>>() + size_of::<Arc<Table>>())
    }

    fn shard(&self, index: usize) -> MutexGuard<'_, Shard> {
        // A key's shard is one of them.
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows matchers a shard's new table.
    fn publish(&self, index: usize, shard: &Shard) {
        let _one_at_a_time = self.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tables = Tables::clone(&self.tables.load());
        let new = Arc::clone(shard.table());
        self.bytes.fetch_add(new.bytes(), Relaxed);
        if let Some(table) = tables.get_mut(index) {
            let old = std::mem::replace(table, new);
            self.bytes.fetch_sub(old.bytes(), Relaxed);
        }
        self.tables.store(Arc::new(tables));
    }
}
