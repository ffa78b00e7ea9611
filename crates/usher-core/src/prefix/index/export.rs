//! Export of the blocks that this process added and endpoints still hold.

use super::endpoint_blocks::{EndpointBlocks, EndpointId};
use super::holders::Holders;
use super::lru::OWN;

/// Progress of an export, endpoint by endpoint.
#[derive(Debug)]
pub struct Export {
    /// Slots of the endpoints that are left.
    slots: Vec<u32>,
    /// Blocks of an endpoint at most, the most recent ones.
    most: usize,
}

impl Export {
    /// An export of at most so many blocks, shared out evenly over the endpoints.
    pub(super) fn new(holders: &Holders, most: usize) -> Self {
        let slots: Vec<u32> = holders.all().iter().map(|holder| holder.slot_number()).collect();
        let most = most / slots.len().max(1);
        Self { slots, most }
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
            let own = |(_, sources): &(_, u16)| sources & OWN != 0;
            let hashes: Vec<u64> =
                recent.recent_first().filter(own).take(self.most).map(|(key, _)| key.hash()).collect();
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
