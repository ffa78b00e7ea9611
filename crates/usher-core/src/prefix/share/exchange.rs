//! Exchange of prefixes with other replicas of a pool.

use std::collections::HashMap;
use std::ops::Add;
use std::sync::Arc;
use std::time::Duration;

use super::batch::{Batch, BatchError};
use super::bound::{EntryId, StreamBound};
use super::fingerprint::Fingerprint;
use super::publisher::{Publisher, PublisherConfig, PublisherCounts};
use super::waiting::{Waiting, WaitingBlocks};
use crate::endpoints::{Endpoint, Snapshot};
use crate::memory::{Budget, Kind, Reservation};
use crate::prefix::index::{EndpointBlocks, EndpointId, Matched, OriginId};
use crate::prefix::index_writer::IndexWriter;

/// Result of reading an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Blocks that count from now on.
    Imported,
    /// Written by this process.
    Own,
    /// Hashes of another fingerprint: another configuration or version wrote them. The first is worth a log line.
    Foreign {
        /// The fingerprint.
        fingerprint: Fingerprint,
        /// Not seen before.
        first: bool,
    },
    /// No batch.
    Malformed(BatchError),
}

/// Counts of an [`Exchange`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExchangeCounts {
    /// Blocks that came from other origins.
    pub imported: u64,
    /// Blocks that were read at the start.
    pub restored: u64,
    /// Blocks that were left out because their endpoint did not turn up.
    pub unknown: u64,
    /// Blocks that were left out because there were too many origins.
    pub refused: u64,
    /// Batches of another fingerprint.
    pub foreign: u64,
    /// Entries that could not be read.
    pub malformed: u64,
}

/// Prefixes that a replica publishes, and those that it receives, without I/O: whoever has the stream adds what
/// [`poll`](Self::poll) gives, hands in all entries, its own included, and trims as [`trim`](Self::trim) says, on a thread that
/// decides nothing: a batch takes a millisecond. Times are those of the clock with which the indexes are swept.
#[derive(Debug)]
pub struct Exchange {
    origin: OriginId,
    ttl: Duration,
    publisher_config: PublisherConfig,
    members: Vec<Member>,
    endpoints: HashMap<EndpointId, Arc<Endpoint>>,
    snapshot: Option<Arc<Snapshot>>,
    waiting: Waiting,
    bound: StreamBound,
    /// Other fingerprints that were seen, a few of them.
    foreign: Vec<Fingerprint>,
    counts: ExchangeCounts,
    matched: Matched,
    /// Counts of the publishers of indexes that are gone.
    counts_before: PublisherCounts,
    memory: Reservation,
}

/// An index that takes part.
#[derive(Debug)]
struct Member {
    fingerprint: Fingerprint,
    writer: Arc<IndexWriter>,
    publisher: Publisher,
}

/// Other fingerprints that are remembered.
const MAX_FOREIGN: usize = 16;

/// Bytes of an entry at most, whatever the store says: sums have to hold them.
const MAX_SKIPPED: u64 = 1 << 40;

impl Exchange {
    /// Time after which an origin that is silent is forgotten, as in llm-d-router. Its blocks stay.
    pub const TTL: Duration = Duration::from_secs(180);

    /// An exchange of no index yet, over a stream of so many bytes.
    pub fn new(origin: OriginId, ttl: Duration, stream_bytes: u64, budget: &Arc<Budget>) -> Self {
        Self {
            origin,
            ttl,
            publisher_config: PublisherConfig::new(ttl, stream_bytes),
            members: Vec::new(),
            endpoints: HashMap::new(),
            snapshot: None,
            waiting: Waiting::default(),
            bound: StreamBound::new(stream_bytes),
            foreign: Vec::new(),
            counts: ExchangeCounts::default(),
            matched: Matched::default(),
            counts_before: PublisherCounts::default(),
            memory: Reservation::new(budget, Kind::PrefixIndex),
        }
    }

    /// Has these indexes take part, and no others: those of the producers of a configuration. One that comes publishes all that
    /// it has added. Returns whether one came: the stream has to be read from its end for it. An index has the same
    /// fingerprint for ever: what it holds is not hashed again.
    pub fn set_members(&mut self, members: &[(Fingerprint, Arc<IndexWriter>)], now_ms: u64) -> bool {
        let mut before = std::mem::take(&mut self.members);
        let mut is_new = false;
        for (fingerprint, writer) in members {
            let is_same =
                |member: &Member| member.fingerprint == *fingerprint && Arc::ptr_eq(&member.writer, writer);
            let member = match before.iter().position(is_same) {
                Some(at) => before.swap_remove(at),
                None => {
                    is_new = true;
                    let ids = (*fingerprint, self.origin);
                    let publisher = Publisher::start(writer.index(), ids, self.publisher_config, now_ms);
                    Member { fingerprint: *fingerprint, writer: Arc::clone(writer), publisher }
                }
            };
            self.members.push(member);
        }
        for gone in before {
            self.counts_before = self.counts_before + gone.publisher.counts();
            if !self.members.iter().any(|member| Arc::ptr_eq(&member.writer, &gone.writer)) {
                gone.writer.index().keep_updates(0);
            }
        }
        is_new
    }

    /// Takes the endpoints of a snapshot as those that are known, and what waited for them. Called now and then even if
    /// nothing has changed.
    pub fn discover(&mut self, snapshot: &Arc<Snapshot>, now_ms: u64) {
        if self.snapshot.as_ref().is_none_or(|known| !Arc::ptr_eq(known, snapshot)) {
            let id = |endpoint: &Arc<Endpoint>| (EndpointId::of(endpoint), Arc::clone(endpoint));
            self.endpoints = snapshot.endpoints().iter().map(id).collect();
            self.snapshot = Some(Arc::clone(snapshot));
            for waiting in self.waiting.take(|held| self.endpoints.contains_key(&held.endpoint)) {
                let at = self.members.iter().position(|member| member.fingerprint == waiting.fingerprint);
                let endpoint = self.endpoints.get(&waiting.held.endpoint);
                if let (Some(at), Some(endpoint)) = (at, endpoint) {
                    let known = [(Arc::clone(endpoint), waiting.held)];
                    match waiting.origin {
                        Some(origin) => self.import(at, origin, &known, now_ms),
                        None => drop(self.restore_known(at, &known)),
                    }
                }
            }
        }
        self.counts.unknown += self.waiting.expire(now_ms) as u64;
        self.members.iter().for_each(|member| self.matched += member.writer.index().take_matched());
        self.count_memory();
    }

    /// The next batch to be added to the stream. Asked again until there is none, then again some 20 ms later, but not
    /// before the last one was added.
    pub fn poll(&mut self, now_ms: u64) -> Option<Vec<u8>> {
        let poll = |member: &mut Member| member.publisher.poll(member.writer.index(), now_ms);
        let batch = self.members.iter_mut().find_map(poll);
        self.count_memory();
        batch
    }

    /// Takes the oldest entry of the stream; `None`: it has none.
    pub fn begins_at(&mut self, oldest: Option<EntryId>) {
        self.bound.begins_at(oldest);
    }

    /// Publishes everything again, also what other replicas published that may be gone: the stream was lost.
    pub fn publish_all(&mut self, now_ms: u64) {
        let publish = |member: &mut Member| member.publisher.publish_all(member.writer.index(), now_ms);
        self.members.iter_mut().for_each(publish);
    }

    /// Reads a new entry of the stream.
    pub fn receive(&mut self, id: EntryId, payload: &[u8], now_ms: u64) -> Received {
        self.bound.entry(id, payload.len());
        self.members.iter_mut().for_each(|member| member.publisher.count_entry(payload.len() as u64));
        let (batch, at) = match self.read(payload) {
            Ok(read) => read,
            Err(received) => return received,
        };
        let origin = batch.origin();
        let known = self.known(&batch, Some(origin), now_ms);
        self.import(at, origin, &known, now_ms);
        Received::Imported
    }

    /// Counts a new entry that was not read, as it is longer than any of a replica.
    pub fn skip(&mut self, id: EntryId, bytes: u64) {
        self.members.iter_mut().for_each(|member| member.publisher.count_entry(bytes.min(MAX_SKIPPED)));
        self.skip_older(id, bytes);
    }

    /// Counts such an entry that is older than all that were read. Returns `false` if nothing older is of use.
    pub(super) fn skip_older(&mut self, id: EntryId, bytes: u64) -> bool {
        self.counts.malformed += 1;
        self.bound.entry(id, bytes.min(MAX_SKIPPED) as usize);
        !self.bound.is_full()
    }

    /// Begins to read the stream from its end, whatever it was like before.
    pub(super) fn restart_reading(&mut self) {
        self.bound.clear();
    }

    /// Reads an entry that is older than all that were read, at the start. Its blocks become the oldest ones and evict
    /// nothing. Their origin may be gone for long: the engines hold them all the same. Returns `false` if nothing older is of use: there is no room for it, or it is about to be trimmed.
    pub fn restore(&mut self, id: EntryId, payload: &[u8], now_ms: u64) -> bool {
        self.bound.entry(id, payload.len());
        let mut has_room = true;
        if let Ok((batch, at)) = self.read(payload) {
            let known = self.known(&batch, None, now_ms);
            has_room = self.restore_known(at, &known) || !self.is_full();
        }
        has_room && !self.bound.is_full()
    }

    /// Oldest entry that has to stay, when the stream has grown beyond its bound.
    pub fn trim(&mut self) -> Option<EntryId> {
        self.bound.trim()
    }

    /// Bytes of the stream, as far as it was read.
    pub fn stream_bytes(&self) -> u64 {
        self.bound.bytes()
    }

    /// Counts of received blocks.
    pub fn counts(&self) -> ExchangeCounts {
        self.counts
    }

    /// Blocks that endpoints held when they got prompts, up to the last [`discover`](Self::discover).
    pub fn matched(&self) -> Matched {
        self.matched
    }

    /// Counts of published blocks, of all indexes, those that are gone included.
    pub fn published(&self) -> PublisherCounts {
        let counts = self.members.iter().map(|member| member.publisher.counts());
        counts.fold(self.counts_before, PublisherCounts::add)
    }

    /// A batch of another process, and the member that it is for.
    fn read<'a>(&mut self, payload: &'a [u8]) -> Result<(Batch<'a>, usize), Received> {
        let batch = Batch::parse(payload).map_err(|error| {
            self.counts.malformed += 1;
            Received::Malformed(error)
        })?;
        if batch.origin() == self.origin {
            return Err(Received::Own);
        }
        let fingerprint = batch.fingerprint();
        let at = self.members.iter().position(|member| member.fingerprint == fingerprint);
        let at = at.ok_or_else(|| {
            self.counts.foreign += 1;
            let first = !self.foreign.contains(&fingerprint) && self.foreign.len() < MAX_FOREIGN;
            if first {
                self.foreign.push(fingerprint);
            }
            Received::Foreign { fingerprint, first }
        })?;
        Ok((batch, at))
    }

    /// The blocks of known endpoints; those of others wait for them.
    fn known(
        &mut self,
        batch: &Batch<'_>,
        origin: Option<OriginId>,
        now_ms: u64,
    ) -> Vec<(Arc<Endpoint>, EndpointBlocks)> {
        let mut known = Vec::new();
        for held in batch.held() {
            match self.endpoints.get(&held.endpoint) {
                Some(endpoint) => known.push((Arc::clone(endpoint), held)),
                None => {
                    let fingerprint = batch.fingerprint();
                    let waiting = WaitingBlocks { fingerprint, origin, held, since_ms: now_ms };
                    self.counts.unknown += self.waiting.push(waiting) as u64;
                }
            }
        }
        known
    }

    fn import(
        &mut self,
        at: usize,
        origin: OriginId,
        known: &[(Arc<Endpoint>, EndpointBlocks)],
        now_ms: u64,
    ) {
        let (ttl, blocks) = (self.ttl, blocks(known));
        let writer = &self.members[at].writer;
        match writer.import(blocks, |index| index.import(origin, known, now_ms, ttl)) {
            true => self.counts.imported += blocks as u64,
            false => self.counts.refused += blocks as u64,
        }
    }

    /// Returns `false` if not all found room.
    fn restore_known(&mut self, at: usize, known: &[(Arc<Endpoint>, EndpointBlocks)]) -> bool {
        let (mut added, mut fit) = (0, true);
        self.members[at].writer.import(blocks(known), |index| {
            for (endpoint, held) in known {
                let restored = index.restore(endpoint, held);
                added += restored.added;
                fit &= restored.fits;
            }
        });
        self.counts.restored += added as u64;
        fit
    }

    /// Returns `true` if no index has room for an older block of any endpoint.
    fn is_full(&self) -> bool {
        self.members
            .iter()
            .map(|member| member.writer.index())
            .all(|index| !index.has_room() || self.endpoints.values().all(|endpoint| index.is_full(endpoint)))
    }

    fn count_memory(&mut self) {
        let publishers: usize = self.members.iter().map(|member| member.publisher.bytes()).sum();
        let endpoints = self.endpoints.capacity() * size_of::<(EndpointId, Arc<Endpoint>)>();
        self.memory.set((publishers + endpoints + self.waiting.bytes()) as u64);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.members.iter().for_each(|member| member.writer.index().keep_updates(0));
    }
}

fn blocks(held: &[(Arc<Endpoint>, EndpointBlocks)]) -> usize {
    held.iter().map(|(_, held)| held.hashes.len()).sum()
}

#[cfg(test)]
#[path = "exchange_tests.rs"]
mod tests;
