//! A run from its start to its numbers.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::fs;
use std::rc::Rc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::task::{LocalSet, yield_now};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::body::Style;
use super::direct::Direct;
use super::error::LoadError;
use super::exchange::Open;
use super::failure::Failure;
use super::gateway::Gateway;
use super::process::{self, Usage, Watched};
use super::prompt::{Envelope, Packer, Prompt, Wire};
use super::record::{Numbers, Started};
use super::schedule::Schedule;
use super::script::Voice;
use super::settings::{Pace, Prompts, Settings, Target};
use super::source::Source;
use super::trace;
use crate::sim::Timer;
use usher_wire::client::message::Context;

/// Exchanges that are opened at a time until all are idle.
const OPENING: usize = 64;

/// By how much a request may be late whose time came just before the end: one timer may go off before
/// another that was due first, and that is no failure of the one.
const JUST_DUE: Duration = Duration::from_millis(5);

/// Between two looks at where a run stands.
const TICK: Duration = Duration::from_secs(1);

/// Result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// `ext_proc` or `http`.
    pub protocol: &'static str,
    /// The measured time, in seconds.
    pub seconds: f64,
    /// `true` if requests were due at times of their own, so that they could be late.
    pub open_loop: bool,
    /// All counts.
    pub numbers: Numbers,
    /// The watched processes.
    pub processes: Vec<Watched>,
    /// Processor time of the generator itself within the measured time, where it is known.
    pub own_cpu: Option<Duration>,
}

/// Progress of a run, warm-up included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunProgress {
    /// Since the first request.
    pub elapsed: Duration,
    /// Requests that were due.
    pub begun: u64,
    /// Number of these that ended.
    pub ended: u64,
    /// Number of these that failed.
    pub failed: u64,
}

/// Runs a load. `show` is called each second with where it stands; when `interrupt` is over,
/// the run ends early, and what was measured until then is the outcome.
///
/// # Errors
/// `LoadError` if the load can't be made at all: no server, an unusable trace, an unknown process.
pub async fn run(
    settings: Settings,
    show: impl FnMut(RunProgress),
    interrupt: impl Future<Output = ()>,
) -> Result<Outcome, LoadError> {
    LocalSet::new().run_until(prepare(settings, show, interrupt)).await
}

async fn prepare(
    settings: Settings,
    show: impl FnMut(RunProgress),
    interrupt: impl Future<Output = ()>,
) -> Result<Outcome, LoadError> {
    let mut processes = settings.processes.iter().map(Watched::new).collect::<Result<Vec<_>, _>>()?;
    let source = source(&settings)?;
    let peer = Peer::connect(&settings).await?;
    let begin = Instant::now();
    let start = begin + settings.warm_up;
    let run = Rc::new(Run {
        protocol: peer.protocol(),
        peer,
        source,
        numbers: RefCell::default(),
        begin,
        start,
        end: settings.duration.map(|duration| start + duration),
        most: settings.requests,
        stop: CancellationToken::new(),
        stopped: Cell::new(None),
    });
    let mut interrupt = Interrupt(Box::pin(interrupt), false);
    let measured = async {
        match settings.pace {
            Pace::Idle(count) => run.idle(count, &mut processes, &mut interrupt).await,
            pace => run.load(pace, &settings, &mut processes, &mut interrupt).await,
        }
    };
    let Window { seconds, own_cpu } = tokio::select! {
        window = measured => window.ok_or(LoadError::Interrupted)?,
        never = run.show(show) => match never {},
    };
    let mut numbers = run.numbers.take();
    numbers.give_up();
    let open_loop = matches!(settings.pace, Pace::Rate { .. } | Pace::Trace(_));
    Ok(Outcome { protocol: run.protocol, seconds, open_loop, numbers, processes, own_cpu })
}

/// The user's request to end, checked at several places.
struct Interrupt<F>(std::pin::Pin<Box<F>>, bool);

impl<F: Future<Output = ()>> Interrupt<F> {
    async fn asked(&mut self) {
        if !self.1 {
            self.0.as_mut().await;
            self.1 = true;
        }
    }
}

/// The measured time.
struct Window {
    seconds: f64,
    own_cpu: Option<Duration>,
}

/// Connected target of a run.
enum Peer {
    Direct(Direct),
    Http(Gateway),
}

impl Peer {
    async fn connect(settings: &Settings) -> Result<Self, LoadError> {
        match &settings.target {
            Target::ExtProc { address, tls, connections, chunk_interval, .. } => {
                Direct::connect(address, *tls, *connections, *chunk_interval).await.map(Self::Direct)
            }
            Target::Http { url } => {
                Gateway::connect(url, settings.api.path(), &settings.headers).await.map(Self::Http)
            }
        }
    }

    fn protocol(&self) -> &'static str {
        match self {
            Self::Direct(_) => "ext_proc",
            Self::Http(_) => "http",
        }
    }
}

fn source(settings: &Settings) -> Result<Source, LoadError> {
    let Settings { api, stream, output_tokens, seed, .. } = *settings;
    let model = settings.model.clone();
    let messages = match &settings.target {
        Target::Http { .. } => None,
        Target::ExtProc { address, subset, .. } => Some(Envelope {
            context: subset.as_deref().map_or_else(Context::default, Context::with_subset),
            authority: address.clone(),
            headers: settings.headers.clone(),
            voice: Voice::new(api, &model, stream),
        }),
    };
    let packer = Packer { style: Style { api, model, stream }, output_tokens, messages };
    Ok(match &settings.prompts {
        Prompts::Tokens { tokens, groups, prefix } => {
            // More than are sent are made for nothing.
            let most = settings.requests.filter(|_| settings.warm_up.is_zero());
            let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
            Source::pool(packer.pool(*tokens, (*groups, *prefix), seed, most))
        }
        Prompts::Trace(path) => {
            let failed = |reason: String| LoadError::Trace { path: path.clone(), reason };
            let text = fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
            let rows = trace::parse(&text, usize::MAX).map_err(|error| failed(error.to_string()))?;
            Source::trace(rows, packer, !matches!(settings.pace, Pace::Trace(_)))
        }
    })
}

struct Run {
    protocol: &'static str,
    peer: Peer,
    source: Source,
    numbers: RefCell<Numbers>,
    /// Time at which the first request is due.
    begin: Instant,
    /// Time at which measuring starts.
    start: Instant,
    /// Time at which no more requests begin.
    end: Option<Instant>,
    /// Measured requests after which no more begin.
    most: Option<u64>,
    /// Cancelled when no more requests begin.
    stop: CancellationToken,
    /// Time at which that was.
    stopped: Cell<Option<Instant>>,
}

impl Run {
    async fn show(&self, mut show: impl FnMut(RunProgress)) -> Infallible {
        loop {
            sleep(TICK).await;
            let elapsed = self.begin.elapsed();
            let numbers = self.numbers.borrow();
            let so_far = RunProgress {
                elapsed,
                begun: numbers.begun,
                ended: numbers.ended,
                failed: numbers.ended_badly,
            };
            drop(numbers);
            show(so_far);
        }
    }

    /// The request that is due then; `None` when no more begin.
    fn next(&self, due: Instant) -> Option<Started> {
        let measured = due >= self.start;
        let mut numbers = self.numbers.borrow_mut();
        let over = self.stop.is_cancelled() && self.stopped.get().is_none_or(|stopped| due >= stopped)
            || self.end.is_some_and(|end| due >= end)
            || measured && self.most.is_some_and(|most| numbers.due >= most);
        (!over).then(|| numbers.begin(due, measured))
    }

    async fn exchange(&self, prompt: &Prompt, started: Started) {
        let result = match (&self.peer, &prompt.wire) {
            (Peer::Direct(direct), Wire::Messages(messages)) => {
                direct.exchange(messages, &self.numbers, started).await
            }
            (Peer::Http(gateway), Wire::Body(body)) => gateway.exchange(body, &self.numbers, started).await,
            _ => Err(Failure::protocol("a request for another kind of target")),
        };
        self.ended(started, &result);
    }

    fn ended(&self, started: Started, result: &Result<(), Failure>) {
        self.numbers.borrow_mut().end(started, result, Instant::now());
    }

    /// Requests one after the other.
    async fn one_at_a_time(self: Rc<Self>) {
        while let Some(prompt) = self.source.next().await {
            let Some(started) = self.next(Instant::now()) else { return };
            self.exchange(&prompt, started).await;
        }
    }

    /// Requests when they are due, whatever becomes of them.
    async fn when_due(
        self: Rc<Self>,
        mut schedule: Schedule,
        timer: Timer,
        max_in_flight: usize,
        tracker: TaskTracker,
    ) {
        while let Some(prompt) = self.source.next().await {
            let due = self.begin + schedule.next(prompt.arrival);
            tokio::select! {
                () = timer.until(due) => {}
                () = self.stop.cancelled() => {}
            }
            if let Some(stopped) = self.stopped.get() {
                // A generator that was too slow owes what was due until then. What was due at the end of the
                // measured time or later is nothing that it owes, however late the run was stopped.
                let end = self.end.map_or(stopped, |end| end.min(stopped));
                // By how much the end came late, as after a pause of the whole process, a request may, too.
                let paused = stopped.saturating_duration_since(end);
                if end.saturating_duration_since(due) > JUST_DUE + paused {
                    if !self.owe(due) {
                        return;
                    }
                    continue;
                }
            }
            let Some(started) = self.next(due) else { return };
            if self.in_flight() > max_in_flight as u64 {
                let full = format!("{max_in_flight} exchanges were open");
                self.ended(started, &Err(Failure::new("not-sent", full)));
            } else {
                let run = self.clone();
                tracker.spawn_local(async move {
                    run.numbers.borrow_mut().late(started, Instant::now());
                    run.exchange(&prompt, started).await;
                });
            }
            // Those that are open must get on, also when this one is behind its time.
            yield_now().await;
        }
    }

    /// Counts a request that was due and never sent, unless enough were due before.
    fn owe(&self, due: Instant) -> bool {
        let measured = due >= self.start;
        let mut numbers = self.numbers.borrow_mut();
        let enough = self.most.is_some_and(|most| numbers.due >= most);
        if !enough {
            let started = numbers.begin(due, measured);
            let late = "the time was over before the generator came to it";
            numbers.end(started, &Err(Failure::new("not-sent", late)), Instant::now());
        }
        !enough
    }

    fn in_flight(&self) -> u64 {
        let numbers = self.numbers.borrow();
        numbers.begun - numbers.ended
    }

    /// A load of requests; `None` when it was interrupted before anything was measured.
    async fn load<F: Future<Output = ()>>(
        self: &Rc<Self>,
        pace: Pace,
        settings: &Settings,
        processes: &mut [Watched],
        interrupt: &mut Interrupt<F>,
    ) -> Option<Window> {
        let tracker = TaskTracker::new();
        let schedule = match pace {
            Pace::Concurrency(count) => {
                (0..count).for_each(|_| drop(tracker.spawn_local(self.clone().one_at_a_time())));
                None
            }
            Pace::Rate { per_second, arrivals } => Some(Schedule::new(per_second, arrivals, settings.seed)),
            Pace::Trace(speed) => Some(Schedule::Trace { speed }),
            Pace::Idle(_) => None,
        };
        if let Some(schedule) = schedule {
            let most = settings.max_in_flight;
            tracker.spawn_local(self.clone().when_due(schedule, Timer::new(), most, tracker.clone()));
        }
        tracker.close();
        // Without a warm-up nothing may run before the window is open.
        if !settings.warm_up.is_zero() {
            tokio::select! {
                () = sleep_until(self.start) => {}
                () = interrupt.asked() => return None,
            }
        }
        let before = self.open_window(processes);
        tokio::select! {
            () = tracker.wait() => {}
            () = until(self.end) => {}
            () = interrupt.asked() => {}
        }
        let window = self.close_window(self.start, before, processes);
        tokio::select! {
            () = tracker.wait() => {}
            () = interrupt.asked() => {}
        }
        Some(window)
    }

    /// Requests that are held open; `None` when it was interrupted before all were open.
    async fn idle<F: Future<Output = ()>>(
        &self,
        count: usize,
        processes: &mut [Watched],
        interrupt: &mut Interrupt<F>,
    ) -> Option<Window> {
        let opening = stream::iter(0..count).map(|_| self.open_one()).buffer_unordered(OPENING);
        let opening = opening.filter_map(|open| async { open }).collect::<Vec<_>>();
        let mut open = tokio::select! {
            open = opening => open,
            () = interrupt.asked() => return None,
        };
        let (before, begin) = (self.open_window(processes), Instant::now());
        tokio::select! {
            () = until(self.end.map(|end| begin + (end - self.start))) => {}
            () = interrupt.asked() => {}
        }
        let window = self.close_window(begin, before, processes);
        for open in &mut open {
            let waiting = open.is_waiting();
            self.numbers.borrow_mut().end_of_idle(&waiting);
        }
        Some(window)
    }

    async fn open_one(&self) -> Option<Open<'_>> {
        let prompt = self.source.next().await?;
        let started = self.numbers.borrow_mut().begin(Instant::now(), true);
        let (Peer::Direct(direct), Wire::Messages(messages)) = (&self.peer, &prompt.wire) else {
            return None;
        };
        match direct.open(messages, &self.numbers, started).await {
            Ok(open) => Some(open),
            Err(failure) => {
                self.numbers.borrow_mut().end_of_idle(&Err(failure));
                None
            }
        }
    }

    fn open_window(&self, processes: &mut [Watched]) -> Option<Usage> {
        processes.iter_mut().for_each(Watched::start);
        self.numbers.borrow_mut().in_time = true;
        process::usage(std::process::id())
    }

    fn close_window(&self, begin: Instant, own: Option<Usage>, processes: &mut [Watched]) -> Window {
        let seconds = begin.elapsed().as_secs_f64();
        let now = process::usage(std::process::id());
        processes.iter_mut().for_each(Watched::end);
        self.numbers.borrow_mut().in_time = false;
        self.stopped.set(Some(Instant::now()));
        self.stop.cancel();
        let own_cpu = own.zip(now).map(|(before, now)| now.cpu.saturating_sub(before.cpu));
        Window { seconds, own_cpu }
    }
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
