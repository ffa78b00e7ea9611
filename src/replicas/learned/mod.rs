//! Learned state of plugins, handed on through a stream of the store to replicas that start or run.
//!
//! Every replica writes all of it now and then as a snapshot of its own. At the start the newest snapshots of all are
//! read; later the new ones, so that sessions which a gateway sends elsewhere keep their endpoint. What of it counts is the
//! plugins' own decision ([`Learned`](usher_plugin::Learned)). A snapshot is in entries of their own (`entry`), so that damage costs no more
//! than itself.

mod clock;
mod entry;
mod history;
mod transfer;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use usher_core::endpoints::Store;
use usher_core::prefix::share::EntryId;
use usher_plugin::State;

use self::clock::StoreClock;
use self::history::History;
use self::transfer::{Aged, Tally, export, import};
use super::connection::{CONNECT, Connection, Connector};
use super::entries::{self, Entry};
use super::failure::{Failure, Retries};
use super::metrics::LearnedMetrics;
use super::resp::Value;

/// Time between two turns, and how much shorter or longer it may be: replicas shouldn't write at once.
const TURN: Duration = Duration::from_secs(10);
const JITTER: Duration = Duration::from_secs(2);

/// Time until the first turn after the start.
const FIRST_TURN: Duration = Duration::from_secs(1);

/// Interval at which endpoints, and plugins that learn, are looked for while there are none.
const IDLE: Duration = Duration::from_millis(50);

/// Longest time without a snapshot, though nothing is new: older ones are dropped.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// Age, compared with the newest, from which on entries are dropped, and are not read any more.
const KEPT_MS: u64 = 120_000;

/// Entries of the stream at most: 32 MiB.
const MOST_ENTRIES: usize = 512;

/// Time for a reply, and for all that is left to do at the end.
const REPLY: Duration = Duration::from_secs(5);
const END: Duration = Duration::from_secs(2);

/// Entries of a reply at most: at 64 KiB each, a quarter of what a reply may have.
const PAGE: usize = 16;

/// Seconds after which the store drops a stream to which nobody comes back.
const EXPIRY: &str = "86400";

/// Reads and writes the stream of a pool.
pub(super) struct LearnedExchange {
    connector: Connector,
    key: String,
    state: Arc<State>,
    endpoints: Arc<Store>,
    /// This process, as entries name it.
    origin: u128,
    /// Number of the last snapshot.
    number: u64,
    /// Hash of the last snapshot that the store has, and when it was written.
    written: Option<(u64, Instant)>,
    /// Last entry that was read; `None`: nothing was.
    last: Option<EntryId>,
    /// Signalled once nothing is left to wait for at the start.
    warm: Option<oneshot::Sender<()>>,
    /// The log says that entries of others were left out.
    is_logged: bool,
    metrics: LearnedMetrics,
}

impl LearnedExchange {
    /// Exchange of this state over the stream `key`.
    pub(super) fn new(
        (connector, key): (Connector, String),
        (state, endpoints): (Arc<State>, Arc<Store>),
        warm: oneshot::Sender<()>,
    ) -> Self {
        let metrics = connector.metrics.learned.clone();
        Self {
            connector,
            key,
            state,
            endpoints,
            origin: rand::random(),
            number: 0,
            written: None,
            last: None,
            warm: Some(warm),
            is_logged: false,
            metrics,
        }
    }

    /// Takes turns until the end, where what is new since the last one is written.
    pub(super) async fn run(mut self, ending: CancellationToken) {
        tokio::select! {
            () = self.take_turns() => {}
            () = ending.cancelled() => {}
        }
        let knows_others = self.last.is_some();
        let end = async {
            let mut connection = self.connector.connect().await?;
            self.write(&mut connection).await
        };
        if knows_others && !matches!(timeout(END, end).await, Ok(Ok(()))) {
            tracing::info!("what was learned since the last snapshot is lost: the state store is away");
        }
    }

    /// Connects while plugins learn, and begins again when a connection ends. Never returns.
    async fn take_turns(&mut self) {
        let (mut retries, mut is_first) = (Retries::default(), true);
        loop {
            let is_learning = !self.state.learned().is_empty();
            if !is_learning {
                self.is_warm();
            }
            // Nothing can be read before endpoints are known, which it is of.
            if !is_learning || self.endpoints.snapshot().endpoints().is_empty() {
                tokio::time::sleep(IDLE).await;
                continue;
            }
            let connected = timeout(CONNECT, self.connector.connect()).await;
            let failure = match connected.unwrap_or(Err(Failure::Timeout(CONNECT))) {
                Err(failure) => failure,
                Ok(connection) => {
                    let began = Instant::now();
                    let ended = self.serve(connection, &mut retries, &mut is_first).await;
                    retries.lasted(began.elapsed());
                    let Err(failure) = ended else { continue };
                    failure
                }
            };
            if failure.needs_somebody() {
                self.is_warm();
            }
            let message =
                "learned state is not handed on; requests go on, by what this replica learned itself";
            let pause = self.connector.failed(&failure, &mut retries, message);
            tokio::time::sleep(pause).await;
        }
    }

    /// Takes turns until the connection fails, or no plugin learns any more.
    async fn serve(
        &mut self,
        mut connection: Connection,
        retries: &mut Retries,
        is_first: &mut bool,
    ) -> Result<(), Failure> {
        let mut pause = match self.last {
            None => self.read_back(&mut connection).await.map(|()| FIRST_TURN)?,
            Some(_) => Duration::ZERO,
        };
        self.is_warm();
        loop {
            tokio::time::sleep(pause).await;
            if self.state.learned().is_empty() {
                return Ok(());
            }
            // Before it writes: a store without memory is still read.
            self.read(&mut connection).await?;
            self.write(&mut connection).await?;
            // A store that refuses to write connects all the same.
            if retries.connected() | std::mem::take(is_first) {
                tracing::info!(store = %self.connector.store.address, "learned state is handed on");
            }
            pause = TURN - JITTER + JITTER.mul_f64(2.0 * rand::random::<f64>());
        }
    }

    /// Reads the newest snapshots, from the stream's end towards its beginning.
    async fn read_back(&mut self, connection: &mut Connection) -> Result<(), Failure> {
        let (began, mut imported) = (Instant::now(), 0);
        let clock = self.read_clock(connection).await?;
        let (mut history, mut before, mut newest) = (History::default(), "+".to_owned(), None);
        for _ in 0..MOST_ENTRIES.div_ceil(PAGE) {
            let count = PAGE.to_string();
            let command: [&[u8]; 6] =
                [b"XREVRANGE", self.key.as_bytes(), before.as_bytes(), b"-", b"COUNT", count.as_bytes()];
            let page = entries::of_range(self.ask(connection, &command).await?);
            let [(first, _), ..] = &page[..] else { break };
            let newest = *newest.get_or_insert(*first);
            let oldest = page.last().map_or(newest, |(id, _)| *id);
            let is_last = page.len() < PAGE || oldest.ms.saturating_add(KEPT_MS) < newest.ms;
            before = format!("({oldest}");
            (history, imported) = self.import((page, clock), Some(history), imported).await;
            if is_last {
                break;
            }
        }
        self.last = Some(newest.unwrap_or_default());
        let seconds = began.elapsed().as_secs_f64();
        tracing::info!(imported, seconds, "learned state read from the state store");
        Ok(())
    }

    /// Reads the entries that came since the last turn.
    async fn read(&mut self, connection: &mut Connection) -> Result<(), Failure> {
        let clock = self.read_clock(connection).await?;
        for _ in 0..MOST_ENTRIES.div_ceil(PAGE) {
            let after = self.last.unwrap_or_default().to_string();
            let (key, count) = (self.key.as_bytes(), PAGE.to_string());
            let command: [&[u8]; 6] =
                [b"XREAD", b"COUNT", count.as_bytes(), b"STREAMS", key, after.as_bytes()];
            let page = entries::of_key(self.ask(connection, &command).await?, key);
            let Some((newest, _)) = page.last() else { break };
            self.last = Some(*newest);
            let is_last = page.len() < PAGE;
            self.import((page, clock), None, 0).await;
            if is_last {
                break;
            }
        }
        Ok(())
    }

    /// Imports a page on a thread of its own. Returns the history, and how much was taken over in all.
    async fn import(
        &mut self,
        (page, clock): (Vec<Entry>, StoreClock),
        history: Option<History>,
        before: u64,
    ) -> (History, u64) {
        let (state, endpoints, origin) = (Arc::clone(&self.state), self.endpoints.snapshot(), self.origin);
        let now = Instant::now();
        let aged = move |(id, bytes): Entry| (clock.age_ms(id, now), bytes);
        let imported = tokio::task::spawn_blocking(move || {
            let (entries, mut history): (Aged, _) = (page.into_iter().map(aged).collect(), history);
            let tally = import(&state, &endpoints, origin, &entries, history.as_mut());
            (tally, history.unwrap_or_default())
        });
        // It fails only where the process ends.
        let Ok((tally, history)) = imported.await else { return (History::default(), before) };
        let imported = before + tally.imported.values().sum::<u64>();
        self.count(&tally);
        (history, imported)
    }

    fn count(&mut self, tally: &Tally) {
        self.metrics.received(tally.bytes, (tally.foreign, tally.malformed));
        for (plugin, imported) in &tally.imported {
            self.metrics.imported.with_label_values(&[plugin]).inc_by(*imported);
        }
        if tally.foreign > 0 && !std::mem::replace(&mut self.is_logged, true) {
            tracing::info!("another configuration or version hands on learned state; it is left out");
        }
    }

    /// Writes a snapshot if something is new, or the last one is old.
    async fn write(&mut self, connection: &mut Connection) -> Result<(), Failure> {
        let (state, endpoints) = (Arc::clone(&self.state), self.endpoints.snapshot());
        let draft = tokio::task::spawn_blocking(move || export(&state, &endpoints)).await;
        let Some((draft, hash)) = draft.ok().and_then(|draft| draft.hash().map(|hash| (draft, hash))) else {
            return Ok(());
        };
        if self.written.is_some_and(|(last, at)| last == hash && at.elapsed() < KEEP_ALIVE) {
            return Ok(());
        }
        self.number += 1;
        let (mut id, most) = (EntryId::default(), MOST_ENTRIES.to_string());
        let clock = self.state.clock().clone();
        for entry in draft.entries(self.origin, self.number, || clock.now_ms()) {
            let command: [&[u8]; 7] =
                [b"XADD", self.key.as_bytes(), b"MAXLEN", most.as_bytes(), b"*", b"l", &entry];
            let reply = self.ask(connection, &command).await?;
            id = reply.text().and_then(entries::id).unwrap_or(id);
            self.metrics.sent(entry.len());
        }
        // Whatever the rest comes to: what is in the stream isn't written again.
        self.written = Some((hash, Instant::now()));
        // Of another stream than what was read, as ids grow.
        if self.last.is_some_and(|last| id <= last) {
            self.last = Some(id);
        }
        let oldest = EntryId { ms: id.ms.saturating_sub(KEPT_MS), seq: 0 }.to_string();
        self.ask(connection, &[b"XTRIM", self.key.as_bytes(), b"MINID", oldest.as_bytes()]).await?;
        self.ask(connection, &[b"EXPIRE", self.key.as_bytes(), EXPIRY.as_bytes()]).await?;
        Ok(())
    }

    /// Has the start wait no longer.
    fn is_warm(&mut self) {
        if let Some(warm) = self.warm.take() {
            // Nobody may wait.
            let _ = warm.send(());
        }
    }

    async fn read_clock(&self, connection: &mut Connection) -> Result<StoreClock, Failure> {
        let reply = timeout(REPLY, self.connector.ask(connection, &[b"TIME"])).await;
        Ok(StoreClock::of(&reply.unwrap_or(Err(Failure::Timeout(REPLY)))?, Instant::now()))
    }

    async fn ask(&self, connection: &mut Connection, command: &[&[u8]]) -> Result<Value, Failure> {
        let reply = timeout(REPLY, self.connector.ask_plainly(connection, command)).await;
        reply.unwrap_or(Err(Failure::Timeout(REPLY)))
    }
}
