//! The thread that writes a recording.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use rand::RngExt;
use usher_core::endpoints::Store;
use usher_core::memory::{Budget, Kind, Reservation};
use usher_core::recording::{
    BLOCK_TOKENS, Ending, FORMAT, Header, Line, Outcome, Pick, ProfilePicks, Refusal, RequestLine, VERSION,
};
use usher_core::request::estimate::BYTES_PER_TOKEN;

use super::file::OpenError;
use super::members::{Members, load};
use super::message::{Decided, Ended, Message, ProfilePicked};
use super::numbers::Numbers;
use super::output::Output;
use super::sink::{Counts, QUEUE, Recorder};

/// Interval of a look at endpoints, memory and the file.
const TICK: Duration = Duration::from_secs(1);

/// Requests under way that are followed at most.
const MOST_UNDER_WAY: usize = 1 << 16;

/// Bytes of the numbers of blocks of requests under way from which on others are dropped.
const MOST_BLOCK_BYTES: u64 = 16 << 20;

/// Hashes of blocks that are kept at least, without a memory budget; of flows and of sessions an eighth.
const MOST_BLOCKS: u64 = 1 << 18;

/// Time for the thread to write the rest at the end.
const PATIENCE: Duration = Duration::from_secs(5);

/// Settings of a recording.
#[derive(Debug)]
pub struct Settings<'a> {
    /// The file.
    pub path: &'a Path,
    /// Bytes of the file and the one before.
    pub max_bytes: u64,
    /// Name of the pool.
    pub pool: &'a str,
    /// Version of this program.
    pub version: &'a str,
}

/// The thread of a recording, until it is [stopped](Self::stop).
#[derive(Debug)]
pub struct Writer {
    recorder: Arc<Recorder>,
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
}

impl Writer {
    /// Opens the file, and starts the thread.
    ///
    /// # Errors
    /// Returns an error if the file can't be used, or the thread can't be started.
    pub fn start(
        settings: &Settings<'_>,
        store: &Arc<Store>,
        budget: &Arc<Budget>,
    ) -> Result<Self, OpenError> {
        Self::start_within(settings, store, budget, MOST_BLOCK_BYTES)
    }

    /// Starts a writer with this bound on blocks of requests under way.
    pub(super) fn start_within(
        settings: &Settings<'_>,
        store: &Arc<Store>,
        budget: &Arc<Budget>,
        most_block_bytes: u64,
    ) -> Result<Self, OpenError> {
        let start = Instant::now();
        let (sender, queue) = sync_channel(QUEUE);
        let (queued, counts) = (Arc::<AtomicU64>::default(), Arc::<Counts>::default());
        let stopping = Arc::<AtomicBool>::default();
        let (header, lines) = (header(settings), Arc::clone(&counts));
        let output = Output::open(settings.path, settings.max_bytes, header, start, lines)?;
        let most_blocks =
            budget.limit().map_or(MOST_BLOCKS, |limit| (limit / 32 / 40).clamp(1024, MOST_BLOCKS));
        let numbers = |share: u64| Numbers::new(usize::try_from(most_blocks / share).unwrap_or(1));
        let writing = Writing {
            output,
            start,
            store: Arc::clone(store),
            members: Members::default(),
            blocks: numbers(1),
            flows: numbers(8),
            sessions: numbers(8),
            under_way: HashMap::new(),
            block_bytes: 0,
            most_block_bytes,
            queued: Arc::clone(&queued),
            counts: Arc::clone(&counts),
            reservation: Reservation::new(budget, Kind::Records),
            stopping: Arc::clone(&stopping),
        };
        let recorder = Arc::new(Recorder::new(sender, queued, counts, Arc::clone(budget)));
        let (alive, ended) = sync_channel(0);
        let run = move || {
            let _alive = alive;
            writing.run(&queue);
        };
        let thread = std::thread::Builder::new().name("usher-recorder".to_owned()).spawn(run);
        let thread = thread.map_err(|error| OpenError::new(settings.path, error))?;
        Ok(Self { recorder, stopping, thread, ended })
    }

    /// Recorder that hands decisions to this writer.
    pub fn recorder(&self) -> &Arc<Recorder> {
        &self.recorder
    }

    /// Writes what is left, requests under way among it, and ends the thread. A disk that hangs is not waited for.
    pub fn stop(self) {
        self.stopping.store(true, Relaxed);
        self.recorder.wake();
        if let Err(RecvTimeoutError::Timeout) = self.ended.recv_timeout(PATIENCE) {
            tracing::warn!("recording incomplete: its file could not be written in time at the stop");
            return;
        }
        // It doesn't panic, and there is nobody left to tell.
        let _ = self.thread.join();
    }
}

fn header(settings: &Settings<'_>) -> Header {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Header {
        format: FORMAT.into(),
        version: VERSION,
        usher: settings.version.into(),
        run: format!("{:016x}", rand::rng().random::<u64>()).into(),
        started_unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        pool: settings.pool.into(),
        block_tokens: BLOCK_TOKENS,
        token_bytes: BYTES_PER_TOKEN as u32,
    }
}

/// A request whose end is awaited.
#[derive(Debug)]
struct Awaited {
    line: Box<RequestLine>,
    /// Time of the decision.
    decided_us: u64,
    alive: Weak<()>,
    /// The stream was gone at the last look, and its end may be in the queue.
    is_gone: bool,
}

/// State of the thread.
#[derive(Debug)]
struct Writing {
    output: Output,
    start: Instant,
    store: Arc<Store>,
    members: Members,
    blocks: Numbers,
    flows: Numbers,
    sessions: Numbers,
    under_way: HashMap<u64, Awaited>,
    /// Bytes of the numbers of blocks of those, and of those that have ended since the last tick.
    block_bytes: u64,
    most_block_bytes: u64,
    queued: Arc<AtomicU64>,
    counts: Arc<Counts>,
    reservation: Reservation,
    stopping: Arc<AtomicBool>,
}

impl Writing {
    fn run(mut self, queue: &Receiver<Message>) {
        let mut tick = self.start;
        loop {
            let now = Instant::now();
            if now >= tick {
                self.tick(now);
                tick = now + TICK;
            }
            let mut next = match queue.recv_timeout(tick.saturating_duration_since(now)) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return self.finish(),
            };
            // All that is there goes out in one write.
            while let Some(message) = next.take() {
                self.take(message);
                if Instant::now() < tick {
                    next = queue.try_recv().ok();
                }
            }
            self.output.flush();
            if self.stopping.load(Relaxed) {
                queue.try_iter().for_each(|message| self.take(message));
                return self.finish();
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Wake => {}
            Message::Decided { number, decided, alive, bytes } => {
                self.queued.fetch_sub(bytes, Relaxed);
                self.decided(number, *decided, alive);
            }
            Message::Ended { number, ended } => {
                if let Some(mut awaited) = self.under_way.remove(&number) {
                    awaited.line.outcome = Some(self.outcome(&awaited.line, &ended));
                    self.request(awaited.line);
                }
            }
        }
    }

    fn decided(&mut self, number: u64, decided: Decided, alive: Weak<()>) {
        let Decided { at, received, mut line, blocks, flow, session, profiles, refused } = decided;
        let decided_us = self.us(at);
        line.at_us = self.us(received);
        line.waited_us = decided_us.saturating_sub(line.at_us);
        line.prompt_tokens = blocks.tokens().or(line.prompt_tokens);
        line.blocks = self.blocks.runs(blocks.hashes());
        line.flow = flow.map(|flow| self.flows.of(flow));
        line.session = session.map(|session| self.sessions.of(session));
        self.update(decided_us);
        line.picks = profiles.into_iter().map(|run| self.picks(run, decided_us)).collect();
        line.refusal =
            refused.map(|refused| Refusal { status: refused.status, reason: refused.reason.map(Into::into) });
        if line.refusal.is_some() {
            self.request(Box::new(line));
        } else if self.under_way.len() < MOST_UNDER_WAY && self.block_bytes < self.most_block_bytes {
            self.block_bytes += block_bytes(&line);
            self.under_way
                .insert(number, Awaited { line: Box::new(line), decided_us, alive, is_gone: false });
        } else {
            self.counts.dropped.fetch_add(1, Relaxed);
        }
    }

    fn picks(&mut self, run: ProfilePicked, at_us: u64) -> ProfilePicks {
        let ProfilePicked { profile, is_primary, is_prefill, picks } = run;
        let mut named = Vec::with_capacity(picks.len());
        for pick in picks {
            let (id, line) = self.members.id(&pick.endpoint, at_us);
            if let Some(line) = line {
                self.put(&line);
            }
            named.push(Pick { load: load(id, &pick.endpoint), in_flight: pick.in_flight });
        }
        ProfilePicks { profile, is_primary, is_prefill, picks: named }
    }

    fn outcome(&self, line: &RequestLine, ended: &Ended) -> Outcome {
        let first = line.picks.iter().find(|run| run.is_primary).and_then(|run| run.picks.first());
        let served = ended.served.as_deref().map(|address| self.members.at(address));
        let us = |seconds: f64| (seconds.max(0.0) * 1e6) as u64;
        Outcome {
            ending: ended.ending,
            status: ended.status,
            grpc_status: ended.grpc_status,
            served: served.flatten().filter(|served| first.is_none_or(|first| first.load.id != *served)),
            is_served_elsewhere: served == Some(None),
            first_token_us: ended.first_token.map(us),
            total_us: us(ended.total),
            prompt_tokens: ended.prompt_tokens,
            cached_tokens: ended.cached_tokens,
            output_tokens: ended.output_tokens,
            seen_tokens: ended.seen_tokens,
        }
    }

    /// Looks at endpoints, requests that were forgotten, memory, and whether the file is still there.
    fn tick(&mut self, now: Instant) {
        let at_us = self.us(now);
        self.output.begin_file(&mut self.members);
        self.update(at_us);
        for line in self.members.resized(at_us) {
            self.put(&line);
        }
        let mut lost = 0;
        self.under_way.retain(|_, awaited| {
            let was_gone = std::mem::replace(&mut awaited.is_gone, awaited.alive.strong_count() == 0);
            lost += u64::from(was_gone);
            !was_gone
        });
        self.counts.dropped.fetch_add(lost, Relaxed);
        self.output.flush();
        self.output.look(now);
        self.block_bytes = self.under_way.values().map(|awaited| block_bytes(&awaited.line)).sum();
        let under_way = self.under_way.len() as u64 * 1024 + self.block_bytes;
        let tables = self.blocks.bytes() + self.flows.bytes() + self.sessions.bytes() + self.members.bytes();
        self.reservation.set(self.queued.load(Relaxed) + under_way + tables + self.output.bytes());
    }

    /// Records which endpoints joined and left.
    fn update(&mut self, at_us: u64) {
        let store = Arc::clone(&self.store);
        for line in self.members.update(&store.snapshot(), at_us) {
            self.put(&line);
        }
    }

    fn request(&mut self, line: Box<RequestLine>) {
        self.output.put_request(line, &mut self.members);
    }

    fn put(&mut self, line: &Line) {
        self.output.put(line, &mut self.members);
    }

    /// Writes requests that are under way, and ends.
    fn finish(mut self) {
        let now = Instant::now();
        let now_us = self.us(now);
        self.output.reopen(now);
        self.update(now_us);
        let mut left: Vec<_> = std::mem::take(&mut self.under_way).into_iter().collect();
        left.sort_unstable_by_key(|(number, _)| *number);
        for (_, mut awaited) in left {
            let total_us = now_us.saturating_sub(awaited.decided_us);
            awaited.line.outcome = Some(Outcome { ending: Ending::UnderWay, total_us, ..Outcome::default() });
            self.request(awaited.line);
        }
        self.output.flush();
    }

    /// Microseconds since the start of the run.
    fn us(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.start).as_micros()).unwrap_or(u64::MAX)
    }
}

/// Bytes of the numbers of a request's blocks.
fn block_bytes(line: &RequestLine) -> u64 {
    size_of_val(line.blocks.as_ref() as &[_]) as u64
}
