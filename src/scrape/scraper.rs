//! Scrapes every endpoint of the pool in the background.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info, warn};

use crate::endpoints::{Clock, Endpoint, Snapshot, Store};

use super::client::{Client, ScrapeError};
use super::engine::{Engine, Engines};
use super::exposition::{Line, Scanner};
use super::metrics::{Counters, EXTRACTOR_TYPE, SOURCE_TYPE, ScrapeMetrics};
use super::readings::{Problems, Readings};
use super::report::Told;
use super::schedule::{Schedule, backoff};

/// How one source of metrics is scraped.
#[derive(Clone, Debug)]
pub struct ScrapeConfig {
    /// Time between two scrapes of an endpoint. Default 50 ms, as the peer;
    /// less than [`MIN_INTERVAL`](Self::MIN_INTERVAL) counts as that.
    pub interval: Duration,
    /// Time for a whole scrape, connecting included. Default 1 s, as the peer.
    pub timeout: Duration,
    /// The longest time that a failing endpoint is left alone. Default 1 s:
    /// a pod that comes back is known again within a second, and one that
    /// doesn't costs a twentieth of the scrapes of a healthy one.
    pub max_backoff: Duration,
    /// A longer page is a failure. Default 16 MiB: pages of large engines have
    /// a tenth of one.
    pub max_body_bytes: usize,
    /// Path of the page. Default `/metrics`.
    pub path: PathAndQuery,
    /// Port of the page; default that of the endpoint.
    pub port: Option<u16>,
    /// What to read, by engine; several extractors read a page one after the other, so
    /// what two of them read is as the last one does. Default one, of the built-in
    /// engines.
    pub engines: Vec<Engines>,
}

impl ScrapeConfig {
    /// The shortest interval. Engines compute a page on every scrape, so more
    /// would cost them more than it tells.
    pub const MIN_INTERVAL: Duration = Duration::from_millis(50);
}

impl Default for ScrapeConfig {
    fn default() -> Self {
        Self {
            interval: Self::MIN_INTERVAL,
            timeout: Duration::from_secs(1),
            max_backoff: Duration::from_secs(1),
            max_body_bytes: 16 << 20,
            path: PathAndQuery::from_static("/metrics"),
            port: None,
            engines: vec![Engines::default()],
        }
    }
}

/// Running scrapes. Dropping it ends them.
#[derive(Debug)]
pub struct Scraper {
    stop: CancellationToken,
    supervisor: AbortOnDropHandle<()>,
}

impl Scraper {
    /// Starts to scrape the endpoints of a store and to follow its membership,
    /// on the current tokio runtime. Every source of metrics is a scraper.
    pub fn start(store: Arc<Store>, clock: Clock, config: ScrapeConfig, metrics: &ScrapeMetrics) -> Self {
        let interval = config.interval.max(ScrapeConfig::MIN_INTERVAL);
        let source = Arc::new(Source {
            config: ScrapeConfig { interval, ..config },
            clock,
            counters: metrics.counters(SOURCE_TYPE, EXTRACTOR_TYPE),
            origin: Instant::now(),
        });
        let stop = CancellationToken::new();
        let supervisor = tokio::spawn(supervise(store, source, stop.clone()));
        Self { stop, supervisor: AbortOnDropHandle::new(supervisor) }
    }

    /// Ends all scrapes. Nothing is written once this returns.
    pub async fn shutdown(self) {
        self.stop.cancel();
        // An error would mean that the task is gone already, which is what is asked for.
        self.supervisor.await.unwrap_or_default();
    }
}

/// What the tasks of a source share.
struct Source {
    config: ScrapeConfig,
    clock: Clock,
    counters: Counters,
    /// Where the intervals of all endpoints start.
    origin: Instant,
}

/// Keeps one task per endpoint of the store.
async fn supervise(store: Arc<Store>, source: Arc<Source>, stop: CancellationToken) {
    let mut membership = store.subscribe();
    let mut tasks = Tasks::default();
    loop {
        membership.mark_unchanged();
        tasks.follow(&store.snapshot(), &source).await;
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            changed = membership.changed() => if changed.is_err() { break },
        }
    }
    tasks.follow(&Snapshot::new(0, Vec::new()), &source).await;
}

#[derive(Default)]
struct Tasks {
    by_id: HashMap<Arc<str>, Task>,
}

struct Task {
    endpoint: Arc<Endpoint>,
    handle: AbortOnDropHandle<()>,
}

impl Tasks {
    /// Ends the tasks of endpoints that are gone or have changed, waits until
    /// they have, and starts those that are new.
    async fn follow(&mut self, members: &Snapshot, source: &Arc<Source>) {
        let current: HashMap<&Arc<str>, &Arc<Endpoint>> =
            members.endpoints().iter().map(|endpoint| (endpoint.id(), endpoint)).collect();
        let stays = |id: &Arc<str>, task: &mut Task| {
            current.get(id).is_some_and(|endpoint| Arc::ptr_eq(endpoint, &task.endpoint))
        };
        let ended: Vec<JoinHandle<()>> = self
            .by_id
            .extract_if(|id, task| !stays(id, task))
            .map(|(_, task)| task.handle.detach())
            .collect();
        ended.iter().for_each(JoinHandle::abort);
        for task in ended {
            // Cancelled, as it was told; until then it might still write.
            task.await.unwrap_or_default();
        }
        for endpoint in members.endpoints() {
            self.by_id.entry(Arc::clone(endpoint.id())).or_insert_with(|| {
                let endpoint = Arc::clone(endpoint);
                let task = tokio::spawn(scrape(Arc::clone(&endpoint), Arc::clone(source)));
                Task { endpoint, handle: AbortOnDropHandle::new(task) }
            });
        }
    }
}

/// Scrapes one endpoint until the task is aborted.
async fn scrape(endpoint: Arc<Endpoint>, source: Arc<Source>) {
    let Source { config, clock, counters, origin } = &*source;
    let mut address = endpoint.address();
    address.set_port(config.port.unwrap_or(address.port()));
    let mut client = Client::new(address, config.path.clone(), config.max_body_bytes);
    let engines: Vec<&Arc<Engine>> = config.engines.iter().map(|engines| engines.of(&endpoint)).collect();
    let mut extractions: Vec<_> = engines.into_iter().map(Extraction::new).collect();
    let mut log = Log::new(&endpoint);
    let schedule = Schedule::new(*origin, config.interval, endpoint.slot().number());
    let mut failures = 0_u32;
    let mut next = schedule.after(Instant::now());
    loop {
        sleep_until(next).await;
        let feed = |piece: &[u8]| extractions.iter_mut().for_each(|extraction| extraction.feed(piece));
        let page = timeout(config.timeout, client.get(feed)).await;
        let now = Instant::now();
        match page.unwrap_or(Err(ScrapeError::Timeout(config.timeout))) {
            Ok(()) => {
                log.got_page(now);
                for extraction in &mut extractions {
                    let problems = extraction.finish(&endpoint, clock.at(now.into_std()));
                    if !problems.is_empty() {
                        counters.extract_errors.inc();
                    }
                    extraction.log(problems, &endpoint, now);
                }
                failures = 0;
                next = schedule.after(now);
            }
            Err(error) => {
                extractions.iter_mut().for_each(Extraction::restart);
                counters.poll_errors.inc();
                log.failed(&error, now);
                failures = failures.saturating_add(1);
                next = now + backoff(config.interval, config.max_backoff, failures, rand::random());
            }
        }
    }
}

/// What one extractor reads of one endpoint.
struct Extraction<'a> {
    engine: &'a Engine,
    scanner: Scanner<'a>,
    readings: Readings,
    /// What the log knows.
    problems: Told<Problems>,
}

impl<'a> Extraction<'a> {
    fn new(engine: &'a Arc<Engine>) -> Self {
        let (scanner, readings) = (Scanner::new(engine.wanted()), Readings::new(Arc::clone(engine)));
        Self { engine, scanner, readings, problems: Told::new(Problems::default()) }
    }

    /// Takes a piece of a page.
    fn feed(&mut self, piece: &[u8]) {
        let readings = &mut self.readings;
        self.scanner.feed(piece, &mut |metric: usize, line: Line<'_>| readings.take(metric, line));
    }

    /// The page is complete: what it says goes to the endpoint.
    fn finish(&mut self, endpoint: &Endpoint, now_ms: u64) -> Problems {
        let readings = &mut self.readings;
        self.scanner.finish(&mut |metric: usize, line: Line<'_>| readings.take(metric, line));
        readings.apply(endpoint.load(), now_ms)
    }

    /// Forgets a page that didn't become complete.
    fn restart(&mut self) {
        self.scanner.restart();
        self.readings.restart();
    }

    fn log(&mut self, problems: Problems, endpoint: &Endpoint, now: Instant) {
        if !self.problems.tell(problems, now) {
            return;
        }
        let endpoint = endpoint.id();
        let [missing, refused] = [problems.missing, problems.refused].map(|fields| self.engine.names(fields));
        if problems.is_empty() {
            info!(%endpoint, "metrics of the endpoint are complete again");
        } else {
            warn!(%endpoint, missing, refused, "metrics of the endpoint are incomplete");
        }
    }
}

/// The log's view of one endpoint.
struct Log<'a> {
    endpoint: &'a Endpoint,
    failing: Told<bool>,
}

impl<'a> Log<'a> {
    fn new(endpoint: &'a Endpoint) -> Self {
        Self { endpoint, failing: Told::new(false) }
    }

    fn failed(&mut self, error: &ScrapeError, now: Instant) {
        debug!(endpoint = %self.endpoint.id(), %error, "scrape failed");
        if self.failing.tell(true, now) {
            warn!(endpoint = %self.endpoint.id(), address = %self.endpoint.authority(), %error, "endpoint can't be scraped");
        }
    }

    fn got_page(&mut self, now: Instant) {
        if self.failing.tell(false, now) {
            info!(endpoint = %self.endpoint.id(), "endpoint can be scraped again");
        }
    }
}
