//! Batches of blocks to publish, and when they are due.

use std::collections::VecDeque;
use std::ops::Add;
use std::time::Duration;

use super::batch::{self, Batch};
use super::fingerprint::Fingerprint;
use crate::prefix::index::{EndpointBlocks, Export, OriginId, PrefixIndex};

/// Limits and intervals of a [`Publisher`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublisherConfig {
    /// Time that a block waits at most for a batch to fill up. Longer than a store needs for a batch, and short beside
    /// the time in which a conversation goes on.
    pub interval: Duration,
    /// Blocks that wait at most; the oldest are dropped. 2 MiB of hashes, some seconds of a busy replica.
    pub waiting: usize,
    /// Time after which an origin that is silent is forgotten.
    pub ttl: Duration,
    /// Time after which a batch is due even without blocks, so that an origin is known to live.
    pub keep_alive: Duration,
    /// Bytes that the stream has room for.
    pub stream_bytes: u64,
}

impl PublisherConfig {
    /// The configuration for origins that expire after `ttl`, and a stream of so many bytes.
    pub fn new(ttl: Duration, stream_bytes: u64) -> Self {
        let interval = Duration::from_millis(100);
        Self { interval, waiting: 1 << 18, ttl, keep_alive: ttl / 3, stream_bytes }
    }
}

/// Counts of a publisher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublisherCounts {
    /// Batches that were made.
    pub batches: u64,
    /// Blocks in them.
    pub blocks: u64,
    /// Blocks that were dropped because too many waited. Those that are still held are published by an export.
    pub dropped: u64,
    /// Exports of all that is held.
    pub exports: u64,
}

impl Add for PublisherCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            batches: self.batches + other.batches,
            blocks: self.blocks + other.blocks,
            dropped: self.dropped + other.dropped,
            exports: self.exports + other.exports,
        }
    }
}

/// Makes batches of what is new in an index: one when 64 KiB are there or the oldest block has waited for the interval,
/// and of all that is held after some were lost, a little at a time and after what is new.
#[derive(Debug)]
pub struct Publisher {
    fingerprint: Fingerprint,
    origin: OriginId,
    config: PublisherConfig,
    /// Blocks that were taken from the index and are in no batch yet; little more than a batch.
    ready: VecDeque<EndpointBlocks>,
    export: Option<Export>,
    /// Another one follows: what was lost meanwhile may be of endpoints that this one is past.
    export_again: bool,
    /// The next export is of a stream that has lost everything.
    is_lost: bool,
    /// End of the time in which origins expire that may have died before the stream was last lost.
    dying_until_ms: u64,
    /// Origins of the index that had expired at the last look.
    expiries: u64,
    /// Blocks of one endpoint that the export has still to publish, the most recent first.
    exporting: Option<EndpointBlocks>,
    /// Batches of the export that may still be made in this interval.
    export_batches: usize,
    /// End of the interval.
    next_ms: u64,
    last_batch_ms: u64,
    republished_ms: u64,
    /// Bytes that came into the stream since all that is used was republished.
    stream_moved: u64,
    counts: PublisherCounts,
}

/// Batches of an export in an interval: 160,000 blocks a second.
const EXPORT_BATCHES: usize = 2;

/// Time between two looks at how old the published blocks have become.
const REPUBLISH_CHECK_MS: u64 = 1000;

/// Part of the stream that may be blocks of any replica that are republished because it has moved on, though little is
/// new there.
const REPUBLISHED_PART: u64 = 8;

impl Publisher {
    /// Begins to queue the updates of an index, and to publish what it holds already.
    pub fn start(
        index: &PrefixIndex,
        (fingerprint, origin): (Fingerprint, OriginId),
        config: PublisherConfig,
        now_ms: u64,
    ) -> Self {
        index.keep_updates(config.waiting);
        let mut publisher = Self {
            fingerprint,
            origin,
            config,
            ready: VecDeque::new(),
            export: None,
            export_again: false,
            is_lost: false,
            dying_until_ms: 0,
            expiries: index.expiries(),
            exporting: None,
            export_batches: EXPORT_BATCHES,
            next_ms: now_ms,
            last_batch_ms: now_ms,
            republished_ms: now_ms,
            stream_moved: 0,
            counts: PublisherCounts::default(),
        };
        publisher.request_export(index);
        publisher
    }

    /// Publishes everything again that is still held, up to half of the stream, which has lost all: what this process added,
    /// and what it read of processes that may be gone. Several processes do so at the same time: what one has published
    /// the others leave out, as soon as they have read it. What is of a process that died shortly before follows
    /// when that has expired.
    pub fn publish_all(&mut self, index: &PrefixIndex, now_ms: u64) {
        self.is_lost = true;
        // One that was heard just before it, and is looked for a little late.
        self.dying_until_ms = now_ms.saturating_add(millis(self.config.ttl + self.config.keep_alive));
        index.republish(Some(0));
        self.request_export(index);
    }

    /// Counts an entry that came into the stream, whoever wrote it.
    pub fn count_entry(&mut self, bytes: u64) {
        self.stream_moved += bytes;
    }

    /// The next batch that is due. Asked for again and again until there is none, and not while the last one waits to be
    /// sent: what is new waits in the index meanwhile.
    pub fn poll(&mut self, index: &PrefixIndex, now_ms: u64) -> Option<Vec<u8>> {
        let is_due = now_ms >= self.next_ms;
        if self.ready.is_empty() && (is_due || index.pending_updates() >= Batch::MAX_BLOCKS) {
            self.take_updates(index);
        }
        if is_due && index.pending_updates() < Batch::MAX_BLOCKS {
            self.next_ms = now_ms.saturating_add(millis(self.config.interval));
            self.export_batches = EXPORT_BATCHES;
            self.republish(index, now_ms);
        }
        if self.ready.is_empty() && self.export_batches > 0 {
            self.export_batches -= 1;
            self.fill(index);
        }
        let is_silent = now_ms.saturating_sub(self.last_batch_ms) >= millis(self.config.keep_alive);
        (is_silent || !self.ready.is_empty()).then(|| self.batch(now_ms))
    }

    /// Counts since the start.
    pub fn counts(&self) -> PublisherCounts {
        self.counts
    }

    /// Bytes that are held beside the index.
    pub fn bytes(&self) -> usize {
        let held = self.ready.iter().chain(&self.exporting);
        held.map(|held| size_of::<EndpointBlocks>() + held.hashes.capacity() * size_of::<u64>()).sum()
    }

    /// Begins an export, after the current one if there is one.
    fn request_export(&mut self, index: &PrefixIndex) {
        match self.export {
            Some(_) => self.export_again = true,
            None => self.begin_export(index),
        }
    }

    fn begin_export(&mut self, index: &PrefixIndex) {
        let most = self.config.stream_bytes / 2 / size_of::<u64>() as u64;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        self.export = Some(match std::mem::take(&mut self.is_lost) {
            true => index.export_lost(most, self.origin),
            false => index.export(most),
        });
        self.export_again = false;
    }

    fn take_updates(&mut self, index: &PrefixIndex) {
        let taken = index.take_updates(Batch::MAX_BLOCKS);
        self.ready.extend(taken.held);
        if taken.dropped > 0 {
            self.counts.dropped += taken.dropped;
            self.request_export(index);
        }
    }

    fn batch(&mut self, now_ms: u64) -> Vec<u8> {
        let blocks =
            |ready: &VecDeque<EndpointBlocks>| ready.iter().map(|held| held.hashes.len() as u64).sum::<u64>();
        let before = blocks(&self.ready);
        let bytes = batch::encode(self.fingerprint, self.origin, &mut self.ready);
        self.counts.batches += 1;
        self.counts.blocks += before - blocks(&self.ready);
        self.last_batch_ms = now_ms;
        bytes
    }

    /// Takes a batch full of the export. Of each endpoint the oldest blocks come first: an import takes those that come later
    /// for more recent.
    fn fill(&mut self, index: &PrefixIndex) {
        let mut room = batch::ROOM;
        while batch::fits(room) > 0
            && let Some(export) = &mut self.export
        {
            let Some(mut held) = self.exporting.take().or_else(|| index.export_next(export)) else {
                self.export = None;
                self.counts.exports += 1;
                if self.export_again {
                    self.begin_export(index);
                }
                return;
            };
            let hashes = held.hashes.split_off(held.hashes.len().saturating_sub(batch::fits(room)));
            room -= batch::size(hashes.len());
            self.ready.push_back(EndpointBlocks { hashes, ..held });
            if !held.hashes.is_empty() {
                self.exporting = Some(held);
            }
        }
    }

    /// Republishes blocks that are in use, before they are too far from the stream's end for a start to read them: when a
    /// quarter of an endpoint's blocks is new, or when half of the stream is.
    fn republish(&mut self, index: &PrefixIndex, now_ms: u64) {
        if now_ms.saturating_sub(self.republished_ms) >= REPUBLISH_CHECK_MS {
            self.republished_ms = now_ms;
            self.follow_expiries(index, now_ms);
            let has_moved = self.stream_moved >= self.config.stream_bytes / 2;
            let replicas = index.origins() as u64 + 1;
            let blocks = self.stream_moved / REPUBLISHED_PART / replicas / size_of::<u64>() as u64;
            if has_moved {
                self.stream_moved = 0;
            }
            index.republish(has_moved.then(|| usize::try_from(blocks).unwrap_or(usize::MAX)));
        }
    }

    /// Publishes the blocks of processes that died before the stream was lost.
    fn follow_expiries(&mut self, index: &PrefixIndex, now_ms: u64) {
        let expiries = index.expiries();
        if std::mem::replace(&mut self.expiries, expiries) != expiries && now_ms < self.dying_until_ms {
            self.is_lost = true;
            self.request_export(index);
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "publisher_tests.rs"]
mod tests;
