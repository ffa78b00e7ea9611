//! Prefixes that replicas publish in a stream of the store.
//!
//! One connection takes turns: new entries are read, new blocks are added, and the stream is trimmed. Turns are short, so
//! that no batch waits for a reply of another kind; while the store is slow, blocks wait in the index's queue, and the
//! oldest are dropped. At the start the stream is read from its end; after a gap all of it is new, and read in its order.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use usher_core::endpoints::{Clock, Store};
use usher_core::memory::Budget;
use usher_core::prefix::share::{Exchange, Fingerprint, Received};
use usher_core::prefix::{IndexWriter, OriginId};

use super::entries::{Entry, Payload};
use super::failure::Failure;
use super::metrics::PrefixMetrics;
use super::position::Position;
use super::stream::Stream;
use super::turns::{Readiness, Shared};

/// Time between two turns. A batch waits up to 100 ms before it is published, and one turn on either side.
const TURN: Duration = Duration::from_millis(50);

/// Interval at which the beginning of the stream is looked at.
const CHECK_MS: u64 = 5000;

/// Pages of one turn at most in either direction: 16 MiB.
const PAGES: usize = 16;

/// Batches added in one turn at most: 20 MiB a second.
const BATCHES: usize = 16;

/// Indexes that take part now, each with the fingerprint of its blocks.
pub type Indexes = Box<dyn Fn() -> Vec<(Fingerprint, Arc<IndexWriter>)> + Send + Sync>;

/// Prefixes of a pool that are read from its stream and written to it.
pub(super) struct Prefixes {
    clock: Clock,
    indexes: Indexes,
    endpoints: Arc<Store>,
    exchange: Exchange,
    position: Position,
    /// Time of the next look at the beginning of the stream.
    check_at_ms: u64,
    /// Batch that the store has not confirmed.
    pending: Option<Vec<u8>>,
    /// Beginning of the warm-up, and blocks restored by earlier ones.
    began: Option<(Instant, u64)>,
    metrics: PrefixMetrics,
}

impl Shared for Prefixes {
    const SHARED: &'static str = "prefixes are shared";
    const NOT_SHARED: &'static str =
        "prefixes are not shared; requests go on, by the prefixes that this replica knows itself";
    /// An index comes with a new configuration.
    const IDLE: Duration = Duration::from_millis(500);

    fn readiness(&mut self) -> Readiness {
        let (members, now) = ((self.indexes)(), self.clock.now_ms());
        if self.exchange.set_members(&members, now) {
            self.position.begin();
        }
        self.exchange.discover(&self.endpoints.snapshot(), now);
        if members.is_empty() { Readiness::Nothing } else { Readiness::Ready }
    }

    async fn begin(&mut self, _: &mut Stream) -> Result<Duration, Failure> {
        self.check_at_ms = 0;
        Ok(Duration::ZERO)
    }

    async fn turn(&mut self, stream: &mut Stream) -> Result<Duration, Failure> {
        let turned = self.take_turn(stream).await;
        self.metrics.show(&self.exchange);
        turned.map(|()| TURN)
    }
}

impl Prefixes {
    /// Exchange over a stream of at most `bound` bytes.
    pub(super) fn new(
        (bound, budget): (u64, &Arc<Budget>),
        clock: Clock,
        indexes: Indexes,
        endpoints: Arc<Store>,
        metrics: PrefixMetrics,
    ) -> Self {
        let exchange = Exchange::new(OriginId::random(), Exchange::TTL, bound, budget);
        Self {
            clock,
            indexes,
            endpoints,
            exchange,
            position: Position::default(),
            check_at_ms: 0,
            pending: None,
            began: None,
            metrics,
        }
    }

    /// Reads before it writes, at the start to the end: a store that refuses to write is still read.
    async fn take_turn(&mut self, stream: &mut Stream) -> Result<(), Failure> {
        self.check(stream).await?;
        self.read_back(stream).await?;
        self.read(stream).await?;
        if self.position.warm_up.is_some() {
            return Ok(());
        }
        if let Some(oldest) = self.exchange.trim() {
            stream.trim(oldest).await?;
        }
        self.write(stream).await
    }

    /// Finds out now and then what has become of the stream.
    async fn check(&mut self, stream: &mut Stream) -> Result<(), Failure> {
        let now_ms = self.clock.now_ms();
        if now_ms < self.check_at_ms {
            return Ok(());
        }
        let oldest = stream.oldest().await?;
        self.exchange.begins_at(oldest);
        if self.position.is_lost(oldest) {
            self.exchange.publish_all(now_ms);
        }
        stream.keep().await?;
        self.check_at_ms = now_ms + CHECK_MS;
        Ok(())
    }

    /// Adds new blocks. A batch stays until the store has it.
    async fn write(&mut self, stream: &mut Stream) -> Result<(), Failure> {
        for _ in 0..BATCHES {
            if self.pending.is_none() {
                self.pending = self.exchange.poll(self.clock.now_ms());
            }
            let Some(batch) = &self.pending else { break };
            let id = stream.add(None, b"b", batch).await?;
            self.pending = None;
            if id.is_some_and(|id| self.position.added(id)) {
                self.exchange.begins_at(None);
                self.exchange.publish_all(self.clock.now_ms());
            }
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Reads the entries that came since the last turn.
    async fn read(&mut self, stream: &mut Stream) -> Result<(), Failure> {
        for _ in 0..PAGES {
            let Some(after) = self.position.after() else { break };
            let page = stream.after(after).await?;
            for entry in page.entries {
                self.receive(entry);
                // A batch takes a millisecond.
                tokio::task::yield_now().await;
            }
            if page.is_last {
                break;
            }
        }
        Ok(())
    }

    fn receive(&mut self, Entry { id, payload }: Entry) {
        if !self.position.read(id) {
            return;
        }
        let payload = match payload {
            Payload::Read(payload) => payload,
            Payload::LeftOut(bytes) => return self.exchange.skip(id, bytes),
        };
        let received = self.exchange.receive(id, &payload, self.clock.now_ms());
        if let Received::Foreign { fingerprint, first: true } = received {
            tracing::info!(
                %fingerprint,
                "another configuration or version adds prefixes to the stream; they are left out"
            );
        }
    }

    /// Reads pages from the stream's end towards its beginning, once endpoints are known.
    async fn read_back(&mut self, stream: &mut Stream) -> Result<(), Failure> {
        if self.endpoints.snapshot().endpoints().is_empty() {
            return Ok(());
        }
        for _ in 0..PAGES {
            let Some(warm_up) = &self.position.warm_up else { break };
            self.began.get_or_insert_with(|| (Instant::now(), self.exchange.counts().restored));
            let page = stream.before(warm_up.before()).await?;
            if self.restore(page.entries).await {
                stream.is_warm();
            }
        }
        Ok(())
    }

    /// Takes a page of the warm-up; an empty one is behind the stream's beginning. Returns `true` at its end.
    async fn restore(&mut self, page: Vec<Entry>) -> bool {
        let Some(mut warm_up) = self.position.warm_up.take() else { return true };
        if page.is_empty() {
            warm_up.page(&mut self.exchange, [], self.clock.now_ms());
        }
        for Entry { id, payload } in page {
            match payload {
                Payload::Read(payload) => {
                    warm_up.page(&mut self.exchange, [(id, payload.as_slice())], self.clock.now_ms());
                }
                Payload::LeftOut(bytes) => warm_up.skip(&mut self.exchange, id, bytes),
            }
            if warm_up.is_over() {
                break;
            }
            tokio::task::yield_now().await;
        }
        self.position.found_end(warm_up.after());
        if !warm_up.is_over() {
            self.position.warm_up = Some(warm_up);
            return false;
        }
        if let Some((began, before)) = self.began.take() {
            let (blocks, seconds) = (self.exchange.counts().restored - before, began.elapsed().as_secs_f64());
            self.metrics.warm_up_seconds.set(seconds);
            tracing::info!(blocks, seconds, "prefixes read from the state store");
        }
        true
    }
}

#[cfg(test)]
#[path = "prefixes_tests.rs"]
mod tests;
