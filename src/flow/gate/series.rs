//! The series of one flow, priority and model, made once and kept while they are used.

use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dashmap::DashMap;
use prometheus::{IntCounter, IntGauge};

use crate::flow::queue::{Nanos, Outcome, nanos};
use crate::metrics::{BoundedLabel, OTHER, Overflow, Span};
use crate::request::Request;

use super::demand_gauges::DemandGauges;
use super::metrics::GateMetrics;

/// Time for which unused series stay, as in llm-d-router. Clients name flows.
const IDLE: Duration = Duration::from_secs(300);

/// Key of a request's series: flow, model, target model, priority.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    flow: String,
    model: String,
    target: String,
    priority: i32,
}

impl Key {
    fn is_of(&self, request: &Request) -> bool {
        self.priority == request.priority
            && self.flow == request.fairness_id()
            && self.model == request.model
            && self.target == request.target_model
    }

    fn labels<'a>(&'a self, priority: &'a str, pool: &'a str) -> [&'a str; 5] {
        [&self.flow, priority, pool, &self.model, &self.target]
    }
}

/// The series of a key.
#[derive(Debug)]
pub(super) struct Series {
    key: Key,
    size: IntGauge,
    bytes: IntGauge,
    /// `None`: requests that share the series may wait for different models, or what they wait
    /// for has no series of its own so far.
    demand: Option<Arc<DemandGauges>>,
    ended: [OnceLock<Ended>; Outcome::ALL.len()],
    used: AtomicU64,
}

#[derive(Debug)]
struct Ended {
    total: IntCounter,
    waited: Arc<Span>,
    enqueued: Arc<Span>,
}

impl Series {
    /// A request's waiting ended, `waited` after it began; handing it in took `enqueued`.
    pub(super) fn ended(
        &self,
        outcome: Outcome,
        waited: Duration,
        enqueued: Duration,
        metrics: &GateMetrics,
    ) {
        let Some(cell) = self.ended.get(outcome as usize) else { return };
        let ended = cell.get_or_init(|| self.make(outcome, metrics));
        ended.total.inc();
        ended.waited.observe(waited);
        ended.enqueued.observe(enqueued);
    }

    fn make(&self, outcome: Outcome, metrics: &GateMetrics) -> Ended {
        let priority = self.key.priority.to_string();
        let (flow, priority, outcome) = (self.key.flow.as_str(), priority.as_str(), outcome.name());
        let (pool, model, target) = (metrics.pool.as_str(), &*self.key.model, &*self.key.target);
        Ended {
            total: metrics.total.with_label_values(&[outcome, priority, pool]),
            waited: metrics.waited.with(&[flow, priority, outcome, pool, model, target]),
            enqueued: metrics.enqueued.with(&[flow, priority, outcome]),
        }
    }

    /// Counts a request of the series as waiting.
    pub(super) fn count(self: Arc<Self>, request: &Request, bytes: u64, metrics: &GateMetrics) -> Counted {
        let demand = self.demand.clone().unwrap_or_else(|| metrics.demand.of(request));
        Counted::new(self, demand, bytes)
    }

    /// Its labels; what it counted is let go.
    fn into_key(self) -> Key {
        self.key
    }
}

/// A request in the gauges of what waits, until it is dropped.
#[derive(Debug)]
pub(super) struct Counted {
    series: Arc<Series>,
    demand: Arc<DemandGauges>,
    bytes: i64,
}

impl Counted {
    fn new(series: Arc<Series>, demand: Arc<DemandGauges>, bytes: u64) -> Self {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let counted = Self { series, demand, bytes };
        counted.add(1, bytes);
        counted
    }

    /// Series that it counts in.
    pub(super) fn series(&self) -> &Series {
        &self.series
    }

    fn add(&self, requests: i64, bytes: i64) {
        self.series.size.add(requests);
        self.series.bytes.add(bytes);
        self.demand.requests.add(requests);
        self.demand.bytes.add(bytes);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.add(-1, -self.bytes);
    }
}

/// The series that are in use.
#[derive(Debug)]
pub(super) struct SeriesTable {
    /// By the hash of their labels.
    by_hash: DashMap<u64, Vec<Arc<Series>>>,
    /// Number of them. The table would lock all of its parts to count its entries, and those of labels
    /// with the same hash share one.
    len: AtomicUsize,
    flows: BoundedLabel,
    models: BoundedLabel,
    overflow: Overflow,
}

impl SeriesTable {
    /// A table of at most so many series, beside those of `other`.
    pub(super) fn new(most: usize) -> Self {
        Self {
            by_hash: DashMap::new(),
            len: AtomicUsize::new(0),
            flows: BoundedLabel::new(most),
            models: BoundedLabel::new(most),
            overflow: Overflow::default(),
        }
    }

    /// The series of a request. Beyond the bounds labels are `other`; there is one such series
    /// for each priority.
    pub(super) fn of(&self, request: &Request, now: Nanos, metrics: &GateMetrics) -> Arc<Series> {
        let own = hash(request.fairness_id(), &request.model, &request.target_model, request.priority);
        let held = self.by_hash.get(&own);
        if let Some(series) = held.and_then(|held| found(&held, now, |key| key.is_of(request))) {
            return series;
        }
        let is_full = self.len.load(Relaxed) >= metrics.label_values;
        let label =
            |bound: &BoundedLabel, value| if is_full { OTHER } else { bound.bounded(value) }.to_owned();
        let key = Key {
            flow: label(&self.flows, request.fairness_id()),
            model: label(&self.models, &request.model),
            target: label(&self.models, &request.target_model),
            priority: request.priority,
        };
        if !key.is_of(request) {
            self.overflow.warn("flow control");
        }
        // Kept also where a label is `other`: what is not kept is made for every request, and
        // would never go.
        let mut held =
            self.by_hash.entry(hash(&key.flow, &key.model, &key.target, key.priority)).or_default();
        found(&held, now, |known| *known == key).unwrap_or_else(|| {
            let series = Arc::new(make(key, request, now, metrics));
            held.push(Arc::clone(&series));
            self.len.fetch_add(1, Relaxed);
            series
        })
    }

    /// Removes the series that nobody used for a while; not those that other models of the
    /// same flow share.
    pub(super) fn sweep(&self, now: Nanos, metrics: &GateMetrics) {
        let limit = now.saturating_sub(nanos(IDLE));
        let goes =
            |series: &mut Arc<Series>| Arc::strong_count(series) == 1 && series.used.load(Relaxed) < limit;
        let mut gone = Vec::new();
        self.by_hash.retain(|_, held| {
            // An entry is locked while it is looked at, so nobody can take a series that goes.
            for series in held.extract_if(.., goes).filter_map(Arc::into_inner) {
                let key = series.into_key();
                forget(&key, metrics);
                gone.push(key);
            }
            !held.is_empty()
        });
        self.len.fetch_sub(gone.len(), Relaxed);
        self.forget_labels(&gone, metrics);
    }

    /// Removes what flows have apart from models, and makes room for other flows and models.
    fn forget_labels(&self, gone: &[Key], metrics: &GateMetrics) {
        if gone.is_empty() {
            return;
        }
        let mut flows: HashMap<String, HashSet<i32>> = HashMap::new();
        let mut models: HashSet<String> = HashSet::new();
        for held in &self.by_hash {
            for Series { key, .. } in held.iter().map(|series| &**series) {
                flows.entry(key.flow.clone()).or_default().insert(key.priority);
                models.extend([key.model.clone(), key.target.clone()]);
            }
        }
        for key in gone {
            let priorities = flows.get(&key.flow);
            if priorities.is_none() {
                self.flows.release(&key.flow);
            }
            for model in [&key.model, &key.target].into_iter().filter(|model| !models.contains(*model)) {
                self.models.release(model);
            }
            if !priorities.is_some_and(|priorities| priorities.contains(&key.priority)) {
                let priority = key.priority.to_string();
                for outcome in Outcome::ALL {
                    // Absent where no wait ended so; kept where the flow came back meanwhile.
                    metrics.enqueued.forget(&[key.flow.as_str(), &priority, outcome.name()]);
                }
            }
        }
    }
}

/// The series among these whose key is the wanted one; it counts as used now.
fn found(held: &[Arc<Series>], now: Nanos, is_wanted: impl Fn(&Key) -> bool) -> Option<Arc<Series>> {
    held.iter().find(|series| is_wanted(&series.key)).map(|series| {
        series.used.store(now, Relaxed);
        Arc::clone(series)
    })
}

fn make(key: Key, request: &Request, now: Nanos, metrics: &GateMetrics) -> Series {
    let priority = key.priority.to_string();
    let labels = key.labels(&priority, &metrics.pool);
    let is_own = key.is_of(request) && key.model != OTHER && key.target != OTHER;
    let demand = is_own.then(|| metrics.demand.of(request));
    Series {
        size: metrics.size.with_label_values(&labels),
        bytes: metrics.bytes.with_label_values(&labels),
        // What counts as `other` there is looked up anew, and has its own once there is room.
        demand: demand.filter(|gauges| gauges.is_of(request)),
        ended: Default::default(),
        used: AtomicU64::new(now),
        key,
    }
}

fn forget(key: &Key, metrics: &GateMetrics) {
    let priority = key.priority.to_string();
    let labels = key.labels(&priority, &metrics.pool);
    // Absent only if somebody else removed it, which is all the same.
    let _ = metrics.size.remove_label_values(&labels);
    let _ = metrics.bytes.remove_label_values(&labels);
    let [flow, priority, pool, model, target] = labels;
    for outcome in Outcome::ALL {
        metrics.waited.forget(&[flow, priority, outcome.name(), pool, model, target]);
    }
}

fn hash(flow: &str, model: &str, target: &str, priority: i32) -> u64 {
    let mut hasher = xxhash_rust::xxh3::Xxh3Default::new();
    (flow, model, target, priority).hash(&mut hasher);
    hasher.finish()
}
