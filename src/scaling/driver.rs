//! The one task that ticks all policies and writes the board.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::{info, warn};

use super::board::{Board, Latest, Plans, Standing};
use super::file::{Look, PolicyFile, joined};
use super::gather::{Freshness, Members, gather};
use super::groups::{Group, Groups, Sources};
use super::metrics::ScalingMetrics;
use crate::capacity::policy::Sizing;
use crate::capacity::{History, Requested, tick};
use crate::endpoints::{Clock, Store};
use crate::scrape::{AttributeSpec, Engine, EngineSpec, Engines, ScrapeConfig, ScrapeMetrics, Scraper};

/// How often it is asked whether plans may be made, while they may not.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// How the pages that are read for policies are called in metrics and the log.
const EXTRACTOR: &str = "capacity-policy";

/// Ages of readings are three intervals at most, as one scrape may fail.
const INTERVALS: u32 = 3;

type MayPlan = Box<dyn Fn() -> bool + Send + Sync>;
type Waiting = Box<dyn Fn() -> u64 + Send + Sync>;

/// What the driver looks at.
pub struct Live {
    /// The pods.
    pub store: Arc<Store>,
    /// The clock of their readings.
    pub clock: Clock,
    /// From which age on these no longer count.
    pub staleness: Duration,
    /// Requests that wait.
    pub waiting: Waiting,
    /// Wakes when requests begin to wait; `None`: they never do.
    pub demanded: Option<watch::Receiver<()>>,
    /// Whether the pool is known, and this replica is the one to say what it needs.
    pub may_plan: MayPlan,
    /// How the model servers' metrics are read, and the GPU exporters'; `None`: they aren't.
    pub servers: Option<ScrapeConfig>,
    /// The same for the GPU exporters'.
    pub gpus: Option<ScrapeConfig>,
    /// Counts scrapes.
    pub scrapes: ScrapeMetrics,
}

/// Ticks policies.
pub struct Driver {
    live: Live,
    sources: Sources,
    board: Arc<Board>,
    metrics: Arc<ScalingMetrics>,
    running: Vec<Running>,
    scraped: Duration,
    /// What is read for policies, and who reads it.
    specs: [Vec<AttributeSpec>; 2],
    scrapers: Vec<Scraper>,
}

/// A policy that is ticked.
struct Running {
    group: Group,
    history: History,
    requested: Requested,
    members: Members,
    due: Duration,
    latest: Option<Arc<Latest>>,
}

impl Running {
    fn new(group: Group, due: Duration) -> Self {
        Self {
            group,
            history: History::default(),
            requested: Requested::default(),
            members: Members::default(),
            due,
            latest: None,
        }
    }

    /// Whether a request that begins to wait changes everything: a role has no pods, and the last plan
    /// didn't know of it.
    fn is_woken_by_demand(&self) -> bool {
        self.latest.as_ref().is_some_and(|latest| {
            latest.waiting == 0 && latest.plan.roles.iter().any(|role| role.current == 0)
        })
    }

    fn tick(&mut self, live: &Live, scraped: Duration) -> Arc<Latest> {
        let now = live.clock.elapsed();
        let policy = Arc::clone(&self.group.policy);
        self.members.follow(&policy, &live.store.snapshot());
        let there = self.members.counts();
        let waiting = (live.waiting)();
        let freshness = Freshness { now_ms: live.clock.now_ms(), configured: live.staleness, scraped };
        let replicas = self.requested.replicas(there, now);
        let inputs = gather(&self.group, &self.members, freshness, replicas, waiting);
        let mut plan = tick(&inputs, &policy, &mut self.history, now);
        self.requested.note(&policy, &mut plan, there, now);
        let rules = if let Sizing::Rules(rules) = &policy.sizing { rules.len() } else { 0 };
        let fired = (0..rules).map(|rule| self.history.last_fired(rule)).collect();
        let latest = Arc::new(Latest { plan, waiting, at: now, fired });
        self.latest = Some(Arc::clone(&latest));
        latest
    }
}

impl Driver {
    /// A driver of the policies of a file that has been read. Nothing is ticked yet.
    ///
    /// # Errors
    /// When the metrics can't be registered.
    pub fn new(
        groups: Groups,
        sources: Sources,
        live: Live,
        registry: &prometheus::Registry,
    ) -> prometheus::Result<Self> {
        let board = Arc::new(Board::default());
        let metrics = Arc::new(ScalingMetrics::register(registry, &board)?);
        let mut driver = Self {
            live,
            sources,
            board,
            metrics,
            running: Vec::new(),
            scraped: Duration::ZERO,
            specs: Default::default(),
            scrapers: Vec::new(),
        };
        driver.take(groups);
        Ok(driver)
    }

    /// Where its plans stand.
    pub fn board(&self) -> &Arc<Board> {
        &self.board
    }

    /// Ticks, and follows the file, until it is dropped.
    pub async fn run(mut self, file: PolicyFile) {
        let name = file.name();
        let (say, mut looks) = mpsc::channel::<Look>(1);
        let follow = file.follow(say);
        let drive = async {
            self.scrape().await;
            loop {
                tokio::select! {
                    () = sleep_until_due(&self.live.clock, self.due()) => self.tick_due().await,
                    () = demanded(&mut self.live.demanded) => self.tick_those_at_zero(),
                    Some(look) = looks.recv() => self.look(look, &name).await,
                }
            }
        };
        tokio::join!(follow, drive);
    }

    /// When the next tick is due; `None`: there is no policy.
    fn due(&self) -> Option<Duration> {
        self.running.iter().map(|running| running.due).min()
    }

    async fn tick_due(&mut self) {
        let now = self.live.clock.elapsed();
        if !(self.live.may_plan)() {
            // What was said before says nothing now.
            let had_plans = self.running.iter().any(|running| running.latest.is_some());
            for running in &mut self.running {
                *running = Running::new(running.group.clone(), now + ASK_AGAIN);
            }
            return if had_plans {
                self.put()
            };
        }
        for place in 0..self.running.len() {
            let Some(running) = self.running.get_mut(place).filter(|running| running.due <= now) else {
                continue;
            };
            running.due = now + running.group.policy.interval;
            let latest = running.tick(&self.live, self.scraped);
            self.metrics.count(&running.group.policy, &latest.plan);
            // The runtime has others to serve between two of many policies.
            tokio::task::yield_now().await;
        }
        self.put();
    }

    fn tick_those_at_zero(&mut self) {
        if !(self.live.may_plan)() || (self.live.waiting)() == 0 {
            return;
        }
        let mut ticked = false;
        for running in self.running.iter_mut().filter(|running| running.is_woken_by_demand()) {
            let latest = running.tick(&self.live, self.scraped);
            self.metrics.count(&running.group.policy, &latest.plan);
            ticked = true;
        }
        if ticked {
            self.put();
        }
    }

    async fn look(&mut self, look: Look, name: &str) {
        let groups =
            look.and_then(|text| Groups::read(&text, &self.sources).map_err(|errors| joined(&errors, name)));
        match groups {
            Ok(groups) => {
                let policies = groups.groups.len();
                self.take(groups);
                self.scrape().await;
                info!(policies, file = name, "capacity policies read");
                self.metrics.reloaded(true);
            }
            Err(error) => {
                warn!(error, "capacity policies can't be used, keeping the last ones");
                self.metrics.reloaded(false);
            }
        }
    }

    /// Ticks these policies from now on. One that is as it was keeps what it remembers.
    fn take(&mut self, groups: Groups) {
        self.scraped = self.live.staleness.max(groups.interval() * INTERVALS);
        for warning in &groups.warnings {
            warn!(warning, "capacity policy");
        }
        for spec in groups.servers.iter().chain(&groups.gpus) {
            info!(metric = spec.name, "a capacity policy has a metric read that nothing else needs");
        }
        self.specs = [groups.servers, groups.gpus];
        let now = self.live.clock.elapsed();
        let mut before = std::mem::take(&mut self.running);
        for group in groups.groups {
            let same = before.iter().position(|old| old.group.policy == group.policy);
            self.running.push(match same.map(|place| before.swap_remove(place)) {
                Some(old) => Running { group, ..old },
                None => Running::new(group, now),
            });
        }
        self.metrics.keep(self.running.iter().map(|running| running.group.policy.as_ref()));
        self.put();
    }

    fn put(&self) {
        let standing =
            |running: &Running| Standing { group: running.group.clone(), latest: running.latest.clone() };
        self.board.put(Plans { policies: self.running.iter().map(standing).collect() });
    }

    /// Reads what the policies name and nothing else reads, from now on.
    async fn scrape(&mut self) {
        for scraper in self.scrapers.drain(..) {
            scraper.shutdown().await;
        }
        let interval = self.scraped / INTERVALS;
        let configs = [&self.live.servers, &self.live.gpus];
        for (specs, config) in self.specs.iter().zip(configs) {
            let Some(config) = config.as_ref().filter(|_| !specs.is_empty()) else { continue };
            let engine =
                EngineSpec { name: EXTRACTOR.to_owned(), attributes: specs.clone(), ..EngineSpec::default() };
            let config = ScrapeConfig {
                interval,
                keeps_health: false,
                models: false,
                engines: vec![Engines::only(EXTRACTOR, Engine::new(engine))],
                ..config.clone()
            };
            let (store, clock) = (Arc::clone(&self.live.store), self.live.clock.clone());
            self.scrapers.push(Scraper::start(store, clock, config, &self.live.scrapes));
        }
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("policies", &self.running.len()).finish_non_exhaustive()
    }
}

async fn sleep_until_due(clock: &Clock, due: Option<Duration>) {
    match due {
        Some(due) => tokio::time::sleep_until(Instant::now() + due.saturating_sub(clock.elapsed())).await,
        None => std::future::pending().await,
    }
}

async fn demanded(demand: &mut Option<watch::Receiver<()>>) {
    if let Some(waits) = demand
        && waits.changed().await.is_ok()
    {
        return;
    }
    // Nobody waits here, or the gate is gone with the server.
    *demand = None;
    std::future::pending().await
}
