//! Imports of the blocks that other processes learned of.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::endpoints::{Endpoint, Snapshot};

use super::export::Held;
use super::holders::Holders;
use super::recent::OWN;

/// Result of an import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Blocks that were taken, those that the index had already included.
    pub blocks: usize,
    /// Blocks of endpoints that are not in the snapshot.
    pub unknown: usize,
    /// Blocks that were not taken, because there are too many origins.
    pub refused: usize,
}

/// Other processes that reported.
#[derive(Debug, Default)]
pub(super) struct Origins {
    // Taken for a whole import and for the end of an origin, so that nothing comes in under
    // a bit that is about to be another's.
    by_name: Mutex<HashMap<String, Origin>>,
}

#[derive(Debug)]
struct Origin {
    /// Its bit among the sources of a block.
    source: u16,
    expires_ms: u64,
}

impl Origins {
    /// Origins at most; others are refused until one expires.
    pub(super) const MAX: usize = u16::BITS as usize - 1;

    /// Adds what an origin exported to what is held, of the endpoints in the snapshot.
    pub(super) fn import(
        &self,
        holders: &Holders,
        origin: &str,
        held: &[Held],
        snapshot: &Snapshot,
        now_ms: u64,
        ttl: Duration,
    ) -> Imported {
        let mut origins = self.lock();
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let mut done = Imported::default();
        let Some(source) = source_of(&mut origins, origin, now_ms.saturating_add(ttl_ms)) else {
            done.refused = held.iter().map(|held| held.hashes.len()).sum();
            return done;
        };
        let endpoints = if held.is_empty() { &[] } else { snapshot.endpoints() };
        let known: HashMap<&str, &Arc<Endpoint>> =
            endpoints.iter().map(|endpoint| (endpoint.identity().as_ref(), endpoint)).collect();
        for Held { endpoint, hashes } in held {
            match known.get(endpoint.as_ref()) {
                Some(endpoint) => {
                    holders.add(endpoint, hashes, source, None, |_| {});
                    done.blocks += hashes.len();
                }
                None => done.unknown += hashes.len(),
            }
        }
        done
    }

    /// Drops what only origins told of that have not reported for their time.
    pub(super) fn expire(&self, holders: &Holders, now_ms: u64) {
        let mut origins = self.lock();
        let expired = |origin: &Origin| origin.expires_ms <= now_ms;
        let sources =
            origins.values().filter(|origin| expired(origin)).fold(0, |all, origin| all | origin.source);
        if sources != 0 {
            origins.retain(|_, origin| !expired(origin));
            holders.forget(sources);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Origin>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The origin's source; `None` when all are taken.
fn source_of(by_name: &mut HashMap<String, Origin>, name: &str, expires_ms: u64) -> Option<u16> {
    if let Some(origin) = by_name.get_mut(name) {
        origin.expires_ms = expires_ms;
        return Some(origin.source);
    }
    let taken = by_name.values().fold(OWN, |taken, origin| taken | origin.source);
    let source = 1u16.checked_shl(taken.trailing_ones())?;
    by_name.insert(name.to_owned(), Origin { source, expires_ms });
    Some(source)
}
