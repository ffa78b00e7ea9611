//! Export of the blocks that this process added, or that nobody else would publish, and endpoints still hold.

use super::endpoint_blocks::{EndpointBlocks, EndpointId, OriginId};
use super::holders::Holders;
use super::lru::{OWN, PUBLISHED, RESTORED};

/// Progress of an export, endpoint by endpoint.
#[derive(Debug)]
pub struct Export {
    /// Slots of the endpoints that are left.
    slots: Vec<u32>,
    /// Blocks of an endpoint at most, the most recent ones.
    most: usize,
    /// Has restored blocks, too, that are not published.
    restored: bool,
}

impl Export {
    /// An export of at most so many own blocks, shared out evenly over the endpoints.
    pub(super) fn own(holders: &Holders, most: usize) -> Self {
        let slots: Vec<u32> = holders.all().iter().map(|holder| holder.slot_number()).collect();
        let most = most / slots.len().max(1);
        Self { slots, most, restored: false }
    }

    /// An export of restored blocks as well. The process decides with which endpoint it begins.
    pub(super) fn lost(holders: &Holders, most: usize, OriginId(process): OriginId) -> Self {
        let mut export = Self { restored: true, ..Self::own(holders, most) };
        let at = u128::from_le_bytes(process) % export.slots.len().max(1) as u128;
        export.slots.rotate_left(at as usize);
        export
    }

    /// Blocks of the next endpoint, the most recent first.
    pub(super) fn next(&mut self, holders: &Holders) -> Option<EndpointBlocks> {
        loop {
            let Some(holder) = holders.by_number(self.slots.pop()?) else { continue };
            // A copy is made much faster than a list of it, and whoever adds waits for the lock.
            let (recent, capacity) = {
                let held = holder.lock();
                (held.recent.clone(), held.capacity())
            };
            let is_exported = |(_, sources): &(_, u16)| {
                sources & OWN != 0 || self.restored && sources & (RESTORED | PUBLISHED) == RESTORED
            };
            let hashes: Vec<u64> = recent
                .recent_first()
                .filter(is_exported)
                .take(self.most)
                .map(|(key, _)| key.hash())
                .collect();
            if !hashes.is_empty() {
                let capacity = u32::try_from(capacity).unwrap_or(u32::MAX);
                return Some(EndpointBlocks {
                    endpoint: EndpointId::named(&holder.identity),
                    capacity,
                    hashes,
                });
            }
        }
    }
}
