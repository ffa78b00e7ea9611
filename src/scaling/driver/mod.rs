//! Task that ticks all policies; only writer of the plan store.

mod applies;
mod blocked;
mod fetches;
mod live;
mod lookups;
mod prior_state;
mod recommended;
mod running;
mod ticks;
mod updates;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tracing::{info, warn};

use super::file::{FileChange, PolicyFile};
use super::groups::{Groups, Sources};
use super::metrics::ScalingMetrics;
use super::objects::{self, Known, PolicyObjects, PolicyStore};
use super::plan_store::{PlanStore, Plans, PolicyEntry};
use super::query::{QueryRunner, Server};
use crate::actuator::{Actuator, Owner, Write};
use crate::capacity::Policy;
use crate::capacity::policy::{Role, TargetRef};
use crate::capacity::resource::status::LetThrough;
use crate::endpoints::Clock;
use crate::scrape::{AttributeSpec, Engine, EngineSpec, Engines, ScrapeConfig, Scraper};
use applies::Applies;
use fetches::Fetches;
pub use live::Live;
use lookups::Lookups;
use running::Running;

/// Interval of checks whether this replica may plan, while it may not.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// Interval of checks, between ticks, for gates of replacement pods.
const GATE_INTERVAL: Duration = Duration::from_secs(5);

/// Capacity of the update channel.
const WAITING: usize = 16;

/// Name of the scrapes for policies, in metrics and logs.
const EXTRACTOR: &str = "capacity-policy";

/// Greatest age of metrics, in intervals, as one scrape may fail.
const INTERVALS: u32 = 3;

/// Source of policies.
#[derive(Debug)]
pub enum Feed {
    /// File.
    File(PolicyFile),
    /// Objects of the API server.
    Objects(PolicyObjects),
}

/// Update of the policies.
enum PolicyUpdate {
    File(FileChange),
    Objects(objects::ObjectUpdate),
    Owners(Vec<(TargetRef, Owner)>),
}

/// Ticks policies.
pub struct Driver {
    live: Live,
    sources: Sources,
    plan_store: Arc<PlanStore>,
    metrics: Arc<ScalingMetrics>,
    running: Vec<Running>,
    scraped: Duration,
    /// Metrics scraped for policies only, and their scrapers.
    specs: [Vec<AttributeSpec>; 2],
    scrapers: Vec<Scraper>,
    /// Prometheus queries of policies, and their runner; `None` without a server.
    queries: BTreeMap<Arc<str>, Duration>,
    query_runner: Option<QueryRunner>,
    /// Policy objects, and their verdicts.
    policy_store: PolicyStore,
    objects: Arc<[Known]>,
    /// Warnings already logged.
    warned: BTreeSet<String>,
    /// Time of the next check for gates between ticks; `None` without gates.
    next_gates: Option<Instant>,
    /// Time of the last check, and whether the API server was slow.
    last_gates: Instant,
    is_server_late: bool,
    /// Fetches in progress, one per policy.
    fetches: Fetches,
    /// Plans being applied, and the names of their policies: one plan at a time each.
    applies: Applies,
    applying: BTreeSet<String>,
}

impl Driver {
    /// Driver for the policies of a file (or none yet), and the server for their queries. Nothing is ticked
    /// yet.
    ///
    /// # Errors
    /// `prometheus::Error` if the metrics can't be registered.
    pub fn new(
        groups: Groups,
        sources: Sources,
        live: Live,
        prometheus: Option<Server>,
        registry: &prometheus::Registry,
    ) -> prometheus::Result<Self> {
        let plan_store = Arc::new(PlanStore::default());
        let metrics = Arc::new(ScalingMetrics::register(registry, &plan_store, live.clock.clone())?);
        let query_runner =
            prometheus.map(|server| QueryRunner::new(server, live.clock.clone(), metrics.queries()));
        let mut driver = Self {
            query_runner,
            queries: BTreeMap::new(),
            live,
            sources,
            plan_store,
            metrics,
            running: Vec::new(),
            scraped: Duration::ZERO,
            specs: Default::default(),
            scrapers: Vec::new(),
            policy_store: PolicyStore::default(),
            objects: Arc::default(),
            warned: BTreeSet::new(),
            next_gates: None,
            last_gates: Instant::now(),
            is_server_late: false,
            fetches: Fetches::default(),
            applies: Applies::default(),
            applying: BTreeSet::new(),
        };
        driver.take(groups);
        Ok(driver)
    }

    /// Store of its plans.
    pub fn plan_store(&self) -> &Arc<PlanStore> {
        &self.plan_store
    }

    /// Follows the policies and ticks them, until dropped.
    pub async fn run(mut self, feed: Feed) {
        let (sender, mut updates) = mpsc::channel::<PolicyUpdate>(WAITING);
        let (mut name, mut lookups) = (String::new(), Lookups::default());
        match &feed {
            Feed::File(file) => name = file.name(),
            Feed::Objects(objects) => {
                self.policy_store = PolicyStore::new(objects.pool.clone());
                lookups.topologies = Arc::clone(&objects.wanted);
            }
        }
        let (owners, targets) =
            (self.live.actuator.as_ref().map(Actuator::owners), lookups.owners.subscribe());
        let owners_sender = sender.clone();
        let own = async {
            if let Some(owners) = owners {
                owners.follow(targets, owners_sender, PolicyUpdate::Owners).await;
            }
        };
        let follow = async {
            match feed {
                Feed::File(file) => file.follow(sender, PolicyUpdate::File).await,
                Feed::Objects(objects) => objects.follow(sender, PolicyUpdate::Objects).await,
            }
        };
        tokio::join!(follow, own, self.drive(&mut updates, &lookups, &name));
    }

    /// Ticks policies and applies updates. `name` is the file's.
    async fn drive(&mut self, updates: &mut mpsc::Receiver<PolicyUpdate>, lookups: &Lookups, name: &str) {
        let pods = self.live.actuator.as_ref().map(Actuator::changed);
        self.read().await;
        loop {
            tokio::select! {
                () = sleep_until_due(&self.live.clock, self.due()) => self.tick_due().await,
                Some(ended) = self.fetches.next() => self.tick_fetched(ended).await,
                Some(result) = self.applies.next() => self.applied(result),
                () = demanded(&mut self.live.demanded) => self.tick_scaled_to_zero().await,
                () = sleep_until(self.next_gates) => self.open_gates().await,
                () = notified(pods.as_deref()) => self.open_gates_soon(),
                Some(update) = updates.recv() => match update {
                    PolicyUpdate::File(change) => self.apply_file(change, name).await,
                    PolicyUpdate::Objects(update) => self.apply_objects(update, lookups).await,
                    PolicyUpdate::Owners(owners) => self.apply_owners(owners).await,
                },
            }
        }
    }

    /// Time of the next tick or fetch; `None`: none is due.
    fn due(&self) -> Option<Duration> {
        let idle = self.running.iter().filter(|running| self.is_free(running));
        idle.map(|running| running.due).min()
    }

    /// Names of rejected policies without a version in force, with the reason.
    fn refused(&self) -> Vec<(&str, &str)> {
        let is_running = |name: &str| self.running.iter().any(|running| running.group.policy.name == name);
        let refused =
            self.objects.iter().filter(|known| !known.verdict.is_accepted && !is_running(&known.name));
        refused.map(|known| (known.name.as_str(), known.verdict.reason)).collect()
    }

    fn freeze_refused(&self) {
        for (policy, reason) in self.refused() {
            self.metrics.freezes(policy, &[reason.to_owned()]);
        }
    }

    /// Replaces the policies. An unchanged one keeps its state.
    fn take(&mut self, mut groups: Groups) {
        self.scraped = self.live.staleness.max(groups.interval() * INTERVALS);
        let warnings: BTreeSet<String> = std::mem::take(&mut groups.warnings).into_iter().collect();
        for warning in warnings.difference(&self.warned) {
            warn!(warning, "capacity policy warning");
        }
        self.warned = warnings;
        for spec in groups.servers.iter().chain(&groups.gpus) {
            info!(metric = spec.name, "metric scraped for capacity policies only");
        }
        self.queries = groups.queries();
        self.specs = [groups.servers, groups.gpus];
        let now = self.live.clock.elapsed();
        let mut before = std::mem::take(&mut self.running);
        for group in std::mem::take(&mut groups.groups) {
            let same = before.iter().position(|old| is_same(&old.group.policy, &group.policy));
            self.running.push(match same.map(|place| before.swap_remove(place)) {
                Some(old) => Running { group, ..old },
                None => {
                    self.metrics.taken(&group.policy);
                    let older = before.iter().position(|old| old.group.policy.name == group.policy.name);
                    match older {
                        Some(older) => before.swap_remove(older).after(group, now),
                        None => Running::new(group, now),
                    }
                }
            });
        }
        if let Some(actuator) = &mut self.live.actuator {
            actuator.set_policies(self.running.iter().map(|running| &running.group.policy), &groups.unusable);
            let next = self.next_gates.unwrap_or_else(|| Instant::now() + GATE_INTERVAL);
            self.next_gates = actuator.may_have_gates().then_some(next);
        }
        // Pods of deleted policies get requests again.
        self.drain();
        self.metrics.keep(self.running.iter().map(|running| running.group.policy.as_ref()), &self.refused());
        self.freeze_refused();
        self.put();
    }

    fn put(&self) {
        let entry = |running: &Running| PolicyEntry {
            group: running.group.clone(),
            latest: running.latest.clone(),
            held: running.held.clone(),
            writes: self.writes(&running.group.policy),
            let_through: self.let_through(&running.group.policy),
        };
        let policies = self.running.iter().map(entry).collect();
        self.plan_store.put(Plans { policies, objects: Arc::clone(&self.objects) });
    }

    fn writes(&self, policy: &Policy) -> Vec<(String, Write)> {
        let Some(actuator) = &self.live.actuator else { return Vec::new() };
        let of =
            |role: &Role| Some((role.name.clone(), actuator.last_write(&policy.name, &role.name)?.clone()));
        policy.roles.iter().filter_map(of).collect()
    }

    fn let_through(&self, policy: &Policy) -> Vec<LetThrough> {
        let Some(actuator) = &self.live.actuator else { return Vec::new() };
        let of = |role: &Role| {
            let pods = actuator.let_through(&policy.name, &role.name)?;
            Some(LetThrough {
                role: role.name.clone(),
                pods,
                domains: actuator.domains(&policy.name, &role.name),
            })
        };
        policy.roles.iter().filter_map(of).collect()
    }

    /// Restarts the scrapes and queries that only policies need.
    async fn read(&mut self) {
        if let Some(query_runner) = &mut self.query_runner {
            query_runner.ask(self.queries.clone());
        }
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

/// Returns `true` if a policy is unchanged, except for `paused`.
fn is_same(old: &Policy, new: &Policy) -> bool {
    let old = Policy { is_paused: new.is_paused, ..old.clone() };
    old == *new
}

async fn sleep_until_due(clock: &Clock, due: Option<Duration>) {
    match due {
        Some(due) => tokio::time::sleep_until(Instant::now() + due.saturating_sub(clock.elapsed())).await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

async fn notified(changed: Option<&Notify>) {
    match changed {
        Some(changed) => changed.notified().await,
        None => std::future::pending().await,
    }
}

async fn demanded(demand: &mut Option<watch::Receiver<()>>) {
    if let Some(waits) = demand
        && waits.changed().await.is_ok()
    {
        return;
    }
    // Requests never wait here, or the gate was dropped at shutdown.
    *demand = None;
    std::future::pending().await
}

#[cfg(test)]
mod gate_tests;
#[cfg(test)]
mod late_tests;
#[cfg(test)]
mod model;
#[cfg(test)]
mod recommended_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trim_tests;
