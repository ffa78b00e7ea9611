//! Prefixes that replicas publish in a stream of the store.
//!
//! One connection takes turns: new entries are read, new blocks are added, and the stream is trimmed. Turns are short, so
//! that no batch waits for a reply of another kind; while the store is slow, blocks wait in the index's queue, and the
//! oldest are dropped. At the start, and after a gap, the stream is read from its end.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, timeout};
use usher_core::endpoints::{Clock, Store};
use usher_core::memory::Budget;
use usher_core::prefix::share::{Exchange, Fingerprint, Received};
use usher_core::prefix::{IndexWriter, OriginId};

use super::connection::{CONNECT, Connection, Connector};
use super::entries::{self, Entry};
use super::failure::{Failure, Retries};
use super::metrics::PrefixMetrics;
use super::position::Position;
use super::resp::Value;

/// Time between two turns. A batch waits up to 100 ms before it is published, and one turn on either side.
const TURN: Duration = Duration::from_millis(50);

/// Interval at which the beginning of the stream is looked at.
const CHECK_MS: u64 = 5000;

/// Interval at which a new index is looked for while there is none.
const IDLE: Duration = Duration::from_millis(500);

/// Time for a reply. A page is up to 1 MiB.
const REPLY: Duration = Duration::from_secs(5);

/// Entries of a reply at most: at 64 KiB each, a quarter of what a reply may have.
const PAGE: usize = 16;

/// Pages of one turn at most in either direction: 16 MiB.
const PAGES: usize = 16;

/// Batches added in one turn at most: 20 MiB a second.
const BATCHES: usize = 16;

/// Seconds after which the store drops a stream to which nobody comes back: caches of engines are younger.
const EXPIRY: &str = "86400";

/// Indexes that take part now, each with the fingerprint of its blocks.
pub type Indexes = Box<dyn Fn() -> Vec<(Fingerprint, Arc<IndexWriter>)> + Send + Sync>;

/// Reads and writes the stream of a pool.
pub(super) struct Prefixes {
    connector: Connector,
    key: String,
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
    /// Signalled once nothing is left to wait for at the start.
    warm: Option<oneshot::Sender<()>>,
    metrics: PrefixMetrics,
}

impl Prefixes {
    /// Exchange over the stream `key`, of at most `bound` bytes.
    pub(super) fn new(
        (connector, key, bound): (Connector, String, u64),
        (clock, budget): (Clock, &Arc<Budget>),
        indexes: Indexes,
        endpoints: Arc<Store>,
        warm: oneshot::Sender<()>,
    ) -> Self {
        let metrics = connector.metrics.prefixes.clone();
        let exchange = Exchange::new(OriginId::random(), Exchange::TTL, bound, budget);
        let (position, warm) = (Position::default(), Some(warm));
        Self {
            connector,
            key,
            clock,
            indexes,
            endpoints,
            exchange,
            position,
            check_at_ms: 0,
            pending: None,
            began: None,
            warm,
            metrics,
        }
    }

    /// Connects while there are indexes, and begins again when a connection ends. Never returns.
    pub(super) async fn run(mut self) {
        let (mut retries, mut is_first) = (Retries::default(), true);
        loop {
            if !self.follow() {
                self.metrics.connected.set(1);
                self.is_warm();
                tokio::time::sleep(IDLE).await;
                continue;
            }
            self.metrics.connected.set(0);
            let connected = timeout(CONNECT, self.connector.connect()).await;
            let failure = match connected.unwrap_or(Err(Failure::Timeout(CONNECT))) {
                Err(failure) => failure,
                Ok(connection) => {
                    let began = Instant::now();
                    let ended = self.serve(connection, &mut retries, &mut is_first).await;
                    self.metrics.connected.set(0);
                    retries.lasted(began.elapsed());
                    let Err(failure) = ended else { continue };
                    failure
                }
            };
            if failure.needs_somebody() {
                self.is_warm();
            }
            let message =
                "prefixes are not shared; requests go on, by the prefixes that this replica knows itself";
            let pause = self.connector.failed(&failure, &mut retries, message);
            tokio::time::sleep(pause).await;
        }
    }

    /// Takes turns until the connection fails, or no index takes part any more.
    async fn serve(
        &mut self,
        mut connection: Connection,
        retries: &mut Retries,
        is_first: &mut bool,
    ) -> Result<(), Failure> {
        let mut turns = tokio::time::interval(TURN);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.check_at_ms = 0;
        loop {
            turns.tick().await;
            if !self.follow() {
                return Ok(());
            }
            self.turn(&mut connection).await?;
            // A store that refuses to write connects all the same.
            if retries.connected() | std::mem::take(is_first) {
                tracing::info!(store = %self.connector.store.address, "prefixes are shared");
            }
            self.metrics.connected.set(1);
        }
    }

    /// Follows the configuration and the membership. Returns `false` if no index takes part.
    fn follow(&mut self) -> bool {
        let (members, now) = ((self.indexes)(), self.clock.now_ms());
        if self.exchange.set_members(&members, now) {
            self.position.begin();
        }
        self.exchange.discover(&self.endpoints.snapshot(), now);
        !members.is_empty()
    }

    /// Finds out now and then what has become of the stream.
    async fn check(&mut self, connection: &mut Connection) -> Result<(), Failure> {
        let now_ms = self.clock.now_ms();
        if now_ms < self.check_at_ms {
            return Ok(());
        }
        let reply =
            self.ask(connection, &[b"XRANGE", self.key.as_bytes(), b"-", b"+", b"COUNT", b"1"]).await?;
        let oldest = entries::of_range(reply).first().map(|(id, _)| *id);
        if self.position.is_lost(oldest) {
            self.exchange.publish_all();
        }
        self.ask(connection, &[b"EXPIRE", self.key.as_bytes(), EXPIRY.as_bytes()]).await?;
        self.check_at_ms = now_ms + CHECK_MS;
        Ok(())
    }

    /// Reads before it writes: a store without memory is still read.
    async fn turn(&mut self, connection: &mut Connection) -> Result<(), Failure> {
        let turned = self.take_turn(connection).await;
        self.metrics.show(&self.exchange);
        turned
    }

    async fn take_turn(&mut self, connection: &mut Connection) -> Result<(), Failure> {
        self.check(connection).await?;
        self.read_back(connection).await?;
        self.read(connection).await?;
        if let Some(oldest) = self.exchange.trim() {
            let oldest = oldest.to_string();
            self.ask(connection, &[b"XTRIM", self.key.as_bytes(), b"MINID", oldest.as_bytes()]).await?;
        }
        self.write(connection).await
    }

    /// Adds new blocks. A batch stays until the store has it.
    async fn write(&mut self, connection: &mut Connection) -> Result<(), Failure> {
        for _ in 0..BATCHES {
            if self.pending.is_none() {
                self.pending = self.exchange.poll(self.clock.now_ms());
            }
            let Some(batch) = &self.pending else { break };
            let reply = self.ask(connection, &[b"XADD", self.key.as_bytes(), b"*", b"b", batch]).await?;
            self.pending = None;
            let id = reply.text().and_then(entries::id);
            if id.is_some_and(|id| self.position.added(id)) {
                self.exchange.publish_all();
            }
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Reads the entries that came since the last turn.
    async fn read(&mut self, connection: &mut Connection) -> Result<(), Failure> {
        for _ in 0..PAGES {
            let Some(after) = self.position.after() else { break };
            let (key, count, after) = (self.key.as_bytes(), PAGE.to_string(), after.to_string());
            let command: [&[u8]; 6] =
                [b"XREAD", b"COUNT", count.as_bytes(), b"STREAMS", key, after.as_bytes()];
            let page = entries::of_key(self.ask(connection, &command).await?, key);
            let is_last = page.len() < PAGE;
            for entry in page {
                self.receive(entry);
                // A batch takes a millisecond.
                tokio::task::yield_now().await;
            }
            if is_last {
                break;
            }
        }
        Ok(())
    }

    fn receive(&mut self, (id, payload): Entry) {
        if !self.position.read(id) {
            return;
        }
        let received = self.exchange.receive(id, &payload, self.clock.now_ms());
        if let Received::Foreign { fingerprint, first: true } = received {
            tracing::info!(
                %fingerprint,
                "another configuration or version adds prefixes to the stream; they are left out"
            );
        }
    }

    /// Reads pages from the stream's end towards its beginning, once endpoints are known.
    async fn read_back(&mut self, connection: &mut Connection) -> Result<(), Failure> {
        if self.endpoints.snapshot().endpoints().is_empty() {
            return Ok(());
        }
        for _ in 0..PAGES {
            let Some(warm_up) = &self.position.warm_up else { break };
            self.began.get_or_insert_with(|| (Instant::now(), self.exchange.counts().restored));
            let before = warm_up.before().map_or("+".to_owned(), |before| format!("({before}"));
            let (before, count) = (before.as_bytes(), PAGE.to_string());
            let command: [&[u8]; 6] =
                [b"XREVRANGE", self.key.as_bytes(), before, b"-", b"COUNT", count.as_bytes()];
            let page = entries::of_range(self.ask(connection, &command).await?);
            self.restore(page).await;
        }
        Ok(())
    }

    /// Takes a page of the warm-up; an empty one is behind the stream's beginning.
    async fn restore(&mut self, page: Vec<Entry>) {
        let Some(mut warm_up) = self.position.warm_up.take() else { return };
        if page.is_empty() {
            warm_up.page(&mut self.exchange, [], self.clock.now_ms());
        }
        for (id, payload) in page {
            warm_up.page(&mut self.exchange, [(id, payload.as_slice())], self.clock.now_ms());
            if warm_up.is_over() {
                break;
            }
            tokio::task::yield_now().await;
        }
        self.position.found_end(warm_up.after());
        if !warm_up.is_over() {
            self.position.warm_up = Some(warm_up);
            return;
        }
        if let Some((began, before)) = self.began.take() {
            let (blocks, seconds) = (self.exchange.counts().restored - before, began.elapsed().as_secs_f64());
            self.metrics.warm_up_seconds.set(seconds);
            tracing::info!(blocks, seconds, "prefixes read from the state store");
        }
        self.is_warm();
    }

    /// Has the start wait no longer.
    fn is_warm(&mut self) {
        if let Some(warm) = self.warm.take() {
            // Nobody may wait.
            let _ = warm.send(());
        }
    }

    async fn ask(&self, connection: &mut Connection, command: &[&[u8]]) -> Result<Value, Failure> {
        let reply = timeout(REPLY, self.connector.ask_plainly(connection, command)).await;
        reply.unwrap_or(Err(Failure::Timeout(REPLY)))
    }
}

#[cfg(test)]
#[path = "prefixes_tests.rs"]
mod tests;
