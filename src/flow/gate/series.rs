//! The series of one flow, priority and model, made once and kept while they are used.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus::{IntCounter, IntGauge};

use crate::flow::queue::Outcome;
use crate::metrics::{
    ClientSeries, Family, HeldLines, LabelKey, LabelRef, MAX_LABEL_VALUES, OTHER, SeriesRoom, Span,
};
use crate::request::Request;

use super::demand_gauges::DemandGauges;
use super::metrics::{ENQUEUE_BUCKETS, GateMetrics, WAIT_BUCKETS};

/// Name of these series in the log.
const OF: &str = "flow control";

/// Lines of the gauges of a series on a page, under both names.
const GAUGE_LINES: usize = 2 * 2;
/// Lines of the waits with one outcome. Most flows have one or two of nine.
const WAIT_LINES: usize = 2 * (WAIT_BUCKETS.len() + 3);
/// Lines of the durations of handing in with one outcome.
const ENQUEUED_LINES: usize = 2 * (ENQUEUE_BUCKETS.len() + 3);

/// Flow, model and target model of a request, and its priority.
type Key = LabelKey<3>;

fn key_of(request: &Request) -> LabelRef<'_, 3> {
    LabelRef([request.fairness_id(), &request.model, &request.target_model], request.priority)
}

/// The labels of the gauges.
fn labels<'a>(key: &'a Key, priority: &'a str, pool: &'a str) -> [&'a str; 5] {
    let [flow, model, target] = key.texts();
    [flow, priority, pool, model, target]
}

/// Durations of handing requests in, by outcome: of a flow and priority, apart from models.
#[derive(Debug)]
struct Enqueued {
    key: LabelKey<1>,
    spans: [OnceLock<(Arc<Span>, HeldLines)>; Outcome::ALL.len()],
}

impl Enqueued {
    fn span(&self, outcome: Outcome, metrics: &GateMetrics) -> Arc<Span> {
        let ([flow], priority) = (self.key.texts(), self.key.number().to_string());
        let make = || metrics.enqueued.with(&[flow, &priority, outcome.name()]);
        let held = || (make(), metrics.room.hold(ENQUEUED_LINES));
        self.spans.get(outcome as usize).map_or_else(make, |span| Arc::clone(&span.get_or_init(held).0))
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
    enqueued: Arc<Enqueued>,
    ended: [OnceLock<Ended>; Outcome::ALL.len()],
}

#[derive(Debug)]
struct Ended {
    total: IntCounter,
    waited: Arc<Span>,
    enqueued: Arc<Span>,
    _lines: HeldLines,
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
        let priority = self.key.number().to_string();
        let [flow, priority, pool, model, target] = labels(&self.key, &priority, &metrics.pool);
        let name = outcome.name();
        Ended {
            total: metrics.total.with_label_values(&[name, priority, pool]),
            waited: metrics.waited.with(&[flow, priority, name, pool, model, target]),
            enqueued: self.enqueued.span(outcome, metrics),
            _lines: metrics.room.hold(WAIT_LINES),
        }
    }

    /// Counts a request of the series as waiting.
    pub(super) fn count(self: Arc<Self>, request: &Request, bytes: u64, metrics: &GateMetrics) -> Counted {
        let demand = self.demand.clone().unwrap_or_else(|| metrics.demand.of(request));
        Counted::new(self, demand, bytes)
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
    known: ClientSeries<Key, Series>,
    /// By flow and priority.
    enqueued: ClientSeries<LabelKey<1>, Enqueued>,
}

impl SeriesTable {
    /// An empty table, in a room that others share.
    pub(super) fn new(room: &SeriesRoom) -> Self {
        // What waits is a gauge: as in llm-d-router its idle series go. Of flows there are at most as many
        // as series, and as many again whose series just went.
        let enqueued = ClientSeries::expiring(2 * MAX_LABEL_VALUES).within(room, 0);
        Self { known: ClientSeries::expiring(MAX_LABEL_VALUES).within(room, GAUGE_LINES), enqueued }
    }

    /// The series of a request. Beyond the bounds labels are `other`; there is one such series
    /// for each priority.
    pub(super) fn of(&self, request: &Request, metrics: &GateMetrics) -> Arc<Series> {
        self.known.find(key_of(request).as_dyn()).unwrap_or_else(|| self.make(request, metrics))
    }

    #[cold]
    fn make(&self, request: &Request, metrics: &GateMetrics) -> Arc<Series> {
        let LabelRef(texts, priority) = key_of(request);
        let key = LabelRef(texts.map(|text| self.known.label(text, OF)), priority).to_key();
        let family = Family {
            of: OF,
            other: &|| LabelRef([OTHER; 3], priority).to_key(),
            make: &|key: &Key| self.series(key, request, metrics),
            forget: &|key: &Key, _: &Series| forget(key, metrics),
        };
        self.known.get(key, &family)
    }

    fn series(&self, key: &Key, request: &Request, metrics: &GateMetrics) -> Series {
        let priority = key.number().to_string();
        let labels = labels(key, &priority, &metrics.pool);
        let [flow, model, target] = key.texts();
        let is_own = key_of(request).0 == key.texts() && model != OTHER && target != OTHER;
        let demand = is_own.then(|| metrics.demand.of(request));
        let family = Family {
            of: OF,
            other: &|| LabelRef([OTHER], key.number()).to_key(),
            make: &|key: &LabelKey<1>| Enqueued { key: key.clone(), spans: Default::default() },
            forget: &|flow, _| forget_enqueued(flow, metrics),
        };
        Series {
            size: metrics.size.with_label_values(&labels),
            bytes: metrics.bytes.with_label_values(&labels),
            // What counts as `other` there is looked up anew, and has its own once there is room.
            demand: demand.filter(|gauges| gauges.is_of(request)),
            enqueued: self.enqueued.get(LabelRef([flow], key.number()).to_key(), &family),
            ended: Default::default(),
            key: key.clone(),
        }
    }

    /// Removes the series that were unused for a while, and what their flows have apart from models with
    /// the last of a flow and priority.
    pub(super) fn sweep(&self, metrics: &GateMetrics) {
        self.known.retain(|_, _| true, &|key, _| forget(key, metrics));
        self.enqueued.retain(|_, is_held| is_held, &|flow, _| forget_enqueued(flow, metrics));
        metrics.demand.sweep();
    }
}

fn forget(key: &Key, metrics: &GateMetrics) {
    let priority = key.number().to_string();
    let labels = labels(key, &priority, &metrics.pool);
    // Absent only if somebody else removed it, which is all the same.
    let _ = metrics.size.remove_label_values(&labels);
    let _ = metrics.bytes.remove_label_values(&labels);
    let [flow, priority, pool, model, target] = labels;
    for outcome in Outcome::ALL {
        metrics.waited.forget(&[flow, priority, outcome.name(), pool, model, target]);
    }
}

fn forget_enqueued(key: &LabelKey<1>, metrics: &GateMetrics) {
    let ([flow], priority) = (key.texts(), key.number().to_string());
    for outcome in Outcome::ALL {
        // Absent where no wait ended so.
        metrics.enqueued.forget(&[flow, &priority, outcome.name()]);
    }
}
