//! Stores that wait for their parent.

use std::collections::{BTreeMap, HashMap};

use smallvec::SmallVec;

use super::blocks::SourceId;

/// A store whose parent is not known.
#[derive(Debug)]
pub(super) struct PendingStore {
    pub(super) hashes: Box<[u64]>,
    pub(super) tokens: Box<[u32]>,
    /// Digests of what is beside the tokens, by the block's place.
    pub(super) extras: Box<[(u32, u64)]>,
    pub(super) block_size: u16,
}

impl PendingStore {
    /// Bytes with the tables that lead to it.
    fn bytes(&self) -> usize {
        size_of_val(&*self.hashes) + size_of_val(&*self.tokens) + size_of_val(&*self.extras) + 256
    }
}

/// All of them, the oldest first.
#[derive(Debug, Default)]
pub(super) struct PendingStores {
    by_number: BTreeMap<u64, (SourceId, u64, PendingStore)>,
    by_parent: HashMap<(SourceId, u64), SmallVec<[u64; 1]>>,
    next: u64,
    bytes: usize,
}

impl PendingStores {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn push(&mut self, source: SourceId, parent: u64, waiting: PendingStore) {
        self.bytes += waiting.bytes();
        self.by_number.insert(self.next, (source, parent, waiting));
        self.by_parent.entry((source, parent)).or_default().push(self.next);
        self.next += 1;
    }

    /// Takes those that wait for a block.
    pub(super) fn take(&mut self, source: SourceId, parent: u64) -> Vec<PendingStore> {
        let numbers = self.by_parent.remove(&(source, parent)).unwrap_or_default();
        let taken: Vec<PendingStore> =
            numbers.iter().filter_map(|number| Some(self.by_number.remove(number)?.2)).collect();
        self.bytes -= taken.iter().map(PendingStore::bytes).sum::<usize>();
        taken
    }

    /// Takes the oldest.
    pub(super) fn pop(&mut self) -> Option<(SourceId, PendingStore)> {
        let (number, (source, parent, waiting)) = self.by_number.pop_first()?;
        self.bytes -= waiting.bytes();
        if let Some(numbers) = self.by_parent.get_mut(&(source, parent)) {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.by_parent.remove(&(source, parent));
            }
        }
        Some((source, waiting))
    }

    /// Drops those of a source.
    pub(super) fn forget(&mut self, source: SourceId) {
        self.by_parent.retain(|(other, _), _| *other != source);
        let bytes = &mut self.bytes;
        self.by_number.retain(|_, (other, _, waiting)| {
            if *other == source {
                *bytes -= waiting.bytes();
            }
            *other != source
        });
    }
}
