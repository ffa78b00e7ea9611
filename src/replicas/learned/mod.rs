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

use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use usher_core::endpoints::Store;
use usher_core::prefix::share::EntryId;
use usher_plugin::State;

use self::clock::StoreClock;
use self::history::History;
use self::transfer::{Aged, Tally, export, import};
use super::entries::{Entry, Payload};
use super::failure::Failure;
use super::metrics::LearnedMetrics;
use super::stream::{PAGE, Stream};
use super::turns::{Readiness, Shared, take_turns};

/// Time between two turns, and how much shorter or longer it may be: replicas shouldn't write at once.
const TURN: Duration = Duration::from_secs(10);
const JITTER: Duration = Duration::from_secs(2);

/// Time until the first turn after the start.
const FIRST_TURN: Duration = Duration::from_secs(1);

/// Longest time without a snapshot, though nothing is new: older ones are dropped.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// Age, compared with the newest, from which on entries are dropped, and are not read any more.
const KEPT_MS: u64 = 120_000;

/// Entries of the stream at most: 32 MiB.
const MOST_ENTRIES: usize = 512;

/// Pages that are read in a row at most: those of the whole stream, of which some are shorter after a late one.
const MOST_PAGES: usize = 2 * MOST_ENTRIES.div_ceil(PAGE);

/// Time for all that is left to do at the end.
const END: Duration = Duration::from_secs(2);

/// Learned state of a pool that is read from its stream and written to it.
pub(super) struct LearnedExchange {
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
    /// The log says that entries of others were left out.
    is_logged: bool,
    metrics: LearnedMetrics,
}

impl Shared for LearnedExchange {
    const SHARED: &'static str = "learned state is handed on";
    const NOT_SHARED: &'static str =
        "learned state is not handed on; requests go on, by what this replica learned itself";
    /// Short beside the time for which a start waits.
    const IDLE: Duration = Duration::from_millis(50);

    fn readiness(&mut self) -> Readiness {
        if self.state.learned().is_empty() {
            return Readiness::Nothing;
        }
        // Nothing can be read before endpoints are known, which it is of.
        if self.endpoints.snapshot().endpoints().is_empty() { Readiness::Later } else { Readiness::Ready }
    }

    async fn begin(&mut self, stream: &mut Stream) -> Result<Duration, Failure> {
        let pause = match self.last {
            None => self.read_back(stream).await.map(|()| FIRST_TURN)?,
            Some(_) => Duration::ZERO,
        };
        stream.is_warm();
        Ok(pause)
    }

    async fn turn(&mut self, stream: &mut Stream) -> Result<Duration, Failure> {
        // Before it writes: a store without memory is still read.
        self.read(stream).await?;
        self.write(stream).await?;
        Ok(TURN - JITTER + JITTER.mul_f64(2.0 * rand::random::<f64>()))
    }
}

impl LearnedExchange {
    /// Exchange of this state.
    pub(super) fn new(state: Arc<State>, endpoints: Arc<Store>, metrics: LearnedMetrics) -> Self {
        let (number, written, last) = (0, None, None);
        Self { state, endpoints, origin: rand::random(), number, written, last, is_logged: false, metrics }
    }

    /// Takes turns until the end, where what is new since the last one is written.
    pub(super) async fn run(mut self, mut stream: Stream, ending: CancellationToken) {
        tokio::select! {
            () = take_turns(&mut stream, &mut self) => {}
            () = ending.cancelled() => {}
        }
        let knows_others = self.last.is_some();
        // A reply may be on its way.
        stream.disconnect();
        if knows_others && !matches!(timeout(END, self.write(&mut stream)).await, Ok(Ok(()))) {
            tracing::info!("what was learned since the last snapshot is lost: the state store is away");
        }
    }

    /// Reads the newest snapshots, from the stream's end towards its beginning.
    async fn read_back(&mut self, stream: &mut Stream) -> Result<(), Failure> {
        let (began, mut imported) = (Instant::now(), 0);
        let clock = self.read_clock(stream).await?;
        let (mut history, mut before, mut newest) = (History::default(), None, None);
        for _ in 0..MOST_PAGES {
            let page = stream.before(before).await?;
            let (Some(first), Some(oldest)) = (page.entries.first(), page.entries.last()) else { break };
            let (newest, oldest) = (*newest.get_or_insert(first.id), oldest.id);
            let is_last = page.is_last || oldest.ms.saturating_add(KEPT_MS) < newest.ms;
            before = Some(oldest);
            (history, imported) = self.import((page.entries, clock), Some(history), imported).await;
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
    async fn read(&mut self, stream: &mut Stream) -> Result<(), Failure> {
        let clock = self.read_clock(stream).await?;
        for _ in 0..MOST_PAGES {
            let page = stream.after(self.last.unwrap_or_default()).await?;
            let Some(newest) = page.entries.last() else { break };
            self.last = Some(newest.id);
            self.import((page.entries, clock), None, 0).await;
            if page.is_last {
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
        let aged = move |Entry { id, payload }: Entry| {
            let bytes = match payload {
                Payload::Read(bytes) => bytes,
                // Counts as damaged.
                Payload::LeftOut(_) => Vec::new(),
            };
            (clock.age_ms(id, now), bytes)
        };
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
    async fn write(&mut self, stream: &mut Stream) -> Result<(), Failure> {
        let (state, endpoints) = (Arc::clone(&self.state), self.endpoints.snapshot());
        let draft = tokio::task::spawn_blocking(move || export(&state, &endpoints)).await;
        let Some((draft, hash)) = draft.ok().and_then(|draft| draft.hash().map(|hash| (draft, hash))) else {
            return Ok(());
        };
        if self.written.is_some_and(|(last, at)| last == hash && at.elapsed() < KEEP_ALIVE) {
            return Ok(());
        }
        self.number += 1;
        let mut id = EntryId::default();
        let clock = self.state.clock().clone();
        for entry in draft.entries(self.origin, self.number, || clock.now_ms()) {
            id = stream.add(Some(MOST_ENTRIES), b"l", &entry).await?.unwrap_or(id);
            self.metrics.sent(entry.len());
        }
        // Whatever the rest comes to: what is in the stream isn't written again.
        self.written = Some((hash, Instant::now()));
        // Of another stream than what was read, as ids grow.
        if self.last.is_some_and(|last| id <= last) {
            self.last = Some(id);
        }
        stream.trim(EntryId { ms: id.ms.saturating_sub(KEPT_MS), seq: 0 }).await?;
        stream.keep().await
    }

    async fn read_clock(&self, stream: &mut Stream) -> Result<StoreClock, Failure> {
        Ok(StoreClock::of(&stream.time().await?, Instant::now()))
    }
}
