//! Imports of the blocks that other processes published.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::endpoints::Endpoint;

use super::endpoint_blocks::{EndpointBlocks, OriginId};
use super::holders::{AT_ONCE, Holders, Sources};
use super::key::Key;
use super::lru::{OTHERS, PUBLISHED, RESTORED};

/// Other processes that reported.
#[derive(Debug, Default)]
pub(super) struct Origins {
    // Taken for a whole import and for the end of an origin, so that nothing comes in under
    // a bit that is about to be another's.
    by_id: Mutex<HashMap<OriginId, Origin>>,
    /// Times that blocks were left behind by those that expired.
    expiries: AtomicU64,
}

#[derive(Debug)]
struct Origin {
    /// Bit among the sources of a block.
    source: u16,
    expires_ms: u64,
}

/// Bit of the origins that come when all others are taken. It is free when all of them have expired.
const SHARED: u16 = 1 << (u16::BITS - 1);

impl Origins {
    /// Origins that are known at a time. More are refused until one expires.
    pub(super) const MAX: usize = 1024;

    /// Adds the blocks of an origin. Returns whether there was room for the origin.
    pub(super) fn import(
        &self,
        holders: &Holders,
        origin: OriginId,
        held: &[(Arc<Endpoint>, EndpointBlocks)],
        now_ms: u64,
        ttl: Duration,
    ) -> bool {
        let mut origins = self.lock();
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let Some(source) = source_of(&mut origins, origin, now_ms.saturating_add(ttl_ms)) else {
            return false;
        };
        for (endpoint, EndpointBlocks { capacity, hashes, .. }) in held {
            let capacity = Some(*capacity as usize).filter(|capacity| *capacity > 0);
            // The stream has them.
            let sources = Sources { held: source | PUBLISHED, new: source | PUBLISHED };
            holders.add(endpoint, hashes, sources, capacity, |_, _| {});
        }
        true
    }

    /// Forgets origins that have not reported for their time. The engines hold their blocks all the same:
    /// these stay, as if they had been read at the start.
    pub(super) fn expire(&self, holders: &Holders, now_ms: u64) {
        let mut origins = self.lock();
        let before = sources(&origins);
        origins.retain(|_, origin| origin.expires_ms > now_ms);
        let gone = before & !sources(&origins);
        if gone != 0 {
            holders.retire(gone);
            self.expiries.fetch_add(1, Relaxed);
        }
    }

    /// Times that origins have expired whose blocks count as restored since.
    pub(super) fn expiries(&self) -> u64 {
        self.expiries.load(Relaxed)
    }

    /// Origins that are known.
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<OriginId, Origin>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bits of the origins.
fn sources(origins: &HashMap<OriginId, Origin>) -> u16 {
    origins.values().fold(0, |all, origin| all | origin.source)
}

/// The origin's source; `None` when there are too many.
fn source_of(origins: &mut HashMap<OriginId, Origin>, id: OriginId, expires_ms: u64) -> Option<u16> {
    if let Some(origin) = origins.get_mut(&id) {
        origin.expires_ms = expires_ms;
        return Some(origin.source);
    }
    if origins.len() >= Origins::MAX {
        return None;
    }
    let free = OTHERS & !sources(origins);
    let source = if free == 0 { SHARED } else { 1 << free.trailing_zeros() };
    origins.insert(id, Origin { source, expires_ms });
    Some(source)
}

/// Result of [`restore`](super::PrefixIndex::restore).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Blocks that were not held before, and are now.
    pub added: usize,
    /// All are held, or their endpoint is gone.
    pub fits: bool,
}

/// Adds blocks behind those that an endpoint holds, as far as there is room without evicting others.
pub(super) fn restore(holders: &Holders, endpoint: &Endpoint, held: &EndpointBlocks) -> Restored {
    let mut restored = Restored { added: 0, fits: true };
    let mut first = true;
    for hashes in held.hashes.chunks(AT_ONCE) {
        let Some(holder) = holders.holder(endpoint) else { return restored };
        let mut now = holder.lock();
        if now.dropped {
            return restored;
        }
        if std::mem::take(&mut first) && now.recent.len() == 0 && held.capacity > 0 {
            now.set_capacity(held.capacity as usize, false);
        }
        let before = now.recent.bytes();
        restored.fits = hashes.iter().map(|hash| Key::of(*hash)).all(|key| {
            if now.recent.confirm(key, RESTORED) {
                return true;
            }
            let is_added = holders.add_oldest(&holder, &mut now, key, RESTORED);
            restored.added += usize::from(is_added);
            is_added
        });
        holders.resized(before, now.recent.bytes());
        if !restored.fits {
            break;
        }
    }
    restored
}
