//! What one process learned, for the others.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::endpoints::{Endpoint, Snapshot};

use super::PrefixIndex;

/// Blocks that an endpoint holds, for another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// `namespace/name` of the endpoint. Slots mean nothing in another process.
    pub endpoint: Arc<str>,
    /// Block hashes in the order in which they were added.
    pub hashes: Vec<u64>,
}

/// How far an export has come. Good for the index that gave it only: another one takes it
/// as too old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u64);

impl Mark {
    /// The mark as a number, to be sent.
    pub fn to_number(self) -> u64 {
        self.0
    }

    /// A mark that was sent as a number.
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }
}

/// What was added since a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Where the next export goes on.
    pub mark: Mark,
    /// What was added, the oldest first.
    pub held: Vec<Held>,
    /// The mark was too old or another index's: what was added in between is not
    /// remembered. `held` is empty, and [`PrefixIndex::export_all`] has everything.
    pub missed: bool,
}

/// What an import did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Blocks that were taken, those that the index had already included.
    pub blocks: usize,
    /// Blocks of endpoints that are not in the snapshot.
    pub unknown: usize,
    /// Blocks that were not taken, because there are too many origins.
    pub refused: usize,
}

#[derive(Debug, Default)]
pub(super) struct State {
    recent: VecDeque<(Arc<str>, u64)>,
    /// Number of the first one in `recent`.
    first: u64,
    /// By name: the bit, and when it expires.
    origins: HashMap<String, (u16, u64)>,
}

impl State {
    pub(super) fn record(&mut self, id: &Arc<str>, hashes: &[u64], bound: usize) {
        for &hash in hashes {
            self.recent.push_back((Arc::clone(id), hash));
            if self.recent.len() > bound {
                self.recent.pop_front();
                self.first += 1;
            }
        }
    }

    /// The bits of origins that expired.
    pub(super) fn expire(&mut self, now_ms: u64) -> u16 {
        let expired =
            self.origins.values().filter(|(_, at)| *at <= now_ms).fold(0, |bits, (bit, _)| bits | bit);
        self.origins.retain(|_, (_, at)| *at > now_ms);
        expired
    }

    fn origin(&mut self, name: &str, expires_ms: u64) -> Option<u16> {
        if let Some((bit, at)) = self.origins.get_mut(name) {
            *at = expires_ms;
            return Some(*bit);
        }
        let used = self.origins.values().fold(super::OWN, |bits, (bit, _)| bits | bit);
        let bit = 1u16.checked_shl(used.trailing_ones())?;
        self.origins.insert(name.to_owned(), (bit, expires_ms));
        Some(bit)
    }
}

impl PrefixIndex {
    /// Origins whose blocks are known at a time. Others are refused.
    pub const MAX_ORIGINS: usize = 15;

    /// Where exports stand now: what is added from here on comes with
    /// [`export_since`](Self::export_since) this mark.
    pub fn mark(&self) -> Mark {
        let inner = self.lock();
        Mark(inner.exchange.first + inner.exchange.recent.len() as u64)
    }

    /// What this process added since a mark, but no more than `max_blocks`; the rest comes
    /// with the next export. What was imported is not exported.
    ///
    /// Only what an endpoint did not hold yet is told. What it lost is not: whoever imports
    /// has a capacity of its own.
    pub fn export_since(&self, mark: Mark, max_blocks: usize) -> Export {
        let inner = self.lock();
        let State { recent, first, .. } = &inner.exchange;
        let end = first + recent.len() as u64;
        if mark.0 < *first || mark.0 > end {
            return Export { mark: Mark(end), held: Vec::new(), missed: true };
        }
        let mut held: Vec<Held> = Vec::new();
        let mut next = mark.0;
        for (endpoint, hash) in recent.iter().skip((mark.0 - first) as usize).take(max_blocks) {
            next += 1;
            match held.last_mut() {
                Some(last) if last.endpoint == *endpoint => last.hashes.push(*hash),
                _ => held.push(Held { endpoint: Arc::clone(endpoint), hashes: vec![*hash] }),
            }
        }
        Export { mark: Mark(next), held, missed: false }
    }

    /// Everything that this process added and that is still held, endpoint by endpoint, each
    /// from its oldest block to its most recent. The mark is where to go on.
    ///
    /// A hash may differ from the one that was added; it stands for the same block.
    pub fn export_all(&self, mut visit: impl FnMut(Held)) -> Mark {
        let mark = self.mark();
        let inner = self.lock();
        for holder in inner.endpoints.values() {
            let own = |hash: &&u64| holder.blocks.get(hash).is_some_and(|(_, told)| told & super::OWN != 0);
            let hashes: Vec<u64> = holder.order.values().filter(own).copied().collect();
            if !hashes.is_empty() {
                visit(Held { endpoint: Arc::clone(&holder.id), hashes });
            }
        }
        mark
    }

    /// Takes what another process exported. It counts as if it had been added here, until
    /// the origin has not reported for `ttl`: an import without blocks is a report, too.
    /// The endpoints are found in the snapshot by their names.
    pub fn import(
        &self,
        origin: &str,
        held: &[Held],
        snapshot: &Snapshot,
        now_ms: u64,
        ttl: Duration,
    ) -> Imported {
        let mut inner = self.lock();
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let mut done = Imported::default();
        let Some(source) = inner.exchange.origin(origin, now_ms.saturating_add(ttl_ms)) else {
            done.refused = held.iter().map(|held| held.hashes.len()).sum();
            return done;
        };
        let by_id: HashMap<&str, &Arc<Endpoint>> =
            snapshot.endpoints().iter().map(|e| (e.id().as_ref(), e)).collect();
        for Held { endpoint, hashes } in held {
            let Some(endpoint) = by_id.get(endpoint.as_ref()) else {
                done.unknown += hashes.len();
                continue;
            };
            inner.holder(endpoint.slot(), endpoint.id(), self.limits.capacity);
            inner.insert(endpoint.slot().number(), hashes, source, self.limits.entries);
            done.blocks += hashes.len();
        }
        done
    }
}
