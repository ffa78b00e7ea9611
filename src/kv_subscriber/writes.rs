//! Changes on their way into an index.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;
use usher_core::endpoints::Slot;
use usher_core::kv_events::{Change, SourceId};
use usher_core::prefix::EngineIndex;

/// Changes that are written together.
const TOGETHER: usize = 32;

/// Writes changes into an index, several at a time, and counts blocks that come. All are written when it is dropped.
pub(super) struct Writes<'a> {
    index: &'a EngineIndex,
    slots: &'a HashMap<SourceId, Arc<Slot>>,
    admitted: &'a mut u64,
    pending: SmallVec<[(&'a Slot, u64, Option<u8>); TOGETHER]>,
}

impl<'a> Writes<'a> {
    pub(super) fn new(
        index: &'a EngineIndex,
        slots: &'a HashMap<SourceId, Arc<Slot>>,
        admitted: &'a mut u64,
    ) -> Self {
        Self { index, slots, admitted, pending: SmallVec::new() }
    }

    pub(super) fn push(&mut self, Change { source, key, tier }: Change) {
        let Some(slot) = self.slots.get(&source) else { return };
        *self.admitted += u64::from(tier.is_some());
        self.pending.push((slot, key, tier.map(|tier| tier.number())));
        if self.pending.len() == TOGETHER {
            self.write();
        }
    }

    fn write(&mut self) {
        self.index.set_all(&self.pending);
        self.pending.clear();
    }
}

impl Drop for Writes<'_> {
    fn drop(&mut self) {
        self.write();
    }
}
