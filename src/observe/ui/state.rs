//! State of a pool for its page, as JSON: everything that is small as it is, and of the endpoints those that
//! changed.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::Value;

use super::rows::{Known, Rows};
use crate::endpoints::{Clock, Store};
use crate::extproc::traffic::Traffic;
use crate::flow::{BandLoad, Gate, GateStatus};
use crate::kv_subscriber::Followed;
use crate::memory::{Budget, Kind};
use crate::observe::feed::State;
use crate::records::{Records, Summary};
use crate::replicas::{self, ReplicasMetrics};
use crate::schedule::latency::{Model, Report};
use crate::version::{COMMIT, VERSION};

/// A part that another module renders.
pub type Part = Box<dyn Fn() -> Value + Send + Sync>;

/// KV event streams of a pool, and the cached tokens predicted by them.
#[derive(Debug)]
pub struct KvEvents {
    /// Numbers of endpoints by state.
    pub followed: Followed,
    /// Tokens of prompts that engines held by their events, of responses that say it.
    pub predicted: u64,
    /// Tokens of the same prompts that were cached.
    pub cached: u64,
}

/// Parts of a pool that its page shows.
pub struct Shown {
    /// Name of the pool.
    pub pool: String,
    /// Clock of the endpoints' readings.
    pub clock: Clock,
    /// Endpoints.
    pub store: Arc<Store>,
    /// Age from which on a reading doesn't count.
    pub max_age: Duration,
    /// Memory budget.
    pub budget: Arc<Budget>,
    /// Gate that requests wait at; `None`: there is no flow control.
    pub gate: Option<Arc<Gate>>,
    /// Last decisions; `None`: they aren't kept.
    pub records: Option<Arc<Records>>,
    /// Finds the latency model, which a reload may bring.
    pub model: Box<dyn Fn() -> Option<Arc<Model>> + Send + Sync>,
    /// Counts of requests.
    pub traffic: Box<dyn Fn() -> Traffic + Send + Sync>,
    /// The configuration that runs.
    pub config: Part,
    /// Reader of KV event state; `None`: no plugin follows KV events.
    pub kv_events: Option<Box<dyn Fn() -> KvEvents + Send + Sync>>,
    /// Capacity plans; `None`: there are no policies.
    pub plans: Option<Part>,
    /// Exchange with other replicas; `None`: there is no state store.
    pub replicas: Option<ReplicasMetrics>,
}

/// Renders states of a pool, each with its changes since the one before.
pub(super) struct Renderer {
    shown: Arc<Shown>,
    rows: Rows,
}

/// All but the endpoints.
#[derive(Serialize)]
struct Head<'a> {
    unix_ms: u64,
    /// On the clock of the endpoints' times.
    now_ms: u64,
    version: &'a str,
    commit: &'a str,
    pool: &'a str,
    stale_ms: u64,
    memory: Memory,
    traffic: Traffic,
    queue: Option<Queue>,
    latency: Option<Report>,
    records: Option<Kept>,
    kv_events: Option<Events>,
    config: Value,
    plans: Option<Value>,
    replicas: Option<replicas::Report>,
}

#[derive(Serialize)]
struct Events {
    queued: usize,
    predicted: u64,
    cached: u64,
}

#[derive(Serialize)]
struct Memory {
    used: u64,
    limit: Option<u64>,
    refused: u64,
}

#[derive(Serialize)]
struct Queue {
    waiting: u64,
    bytes: u64,
    most: Option<u64>,
    saturation: Option<f64>,
    bands: Vec<Band>,
}

#[derive(Serialize)]
struct Band {
    priority: i32,
    waiting: u64,
    bytes: u64,
    most: u64,
    most_bytes: u64,
}

#[derive(Serialize)]
struct Kept {
    kept: usize,
    capacity: usize,
    sequence: u64,
    decided: u64,
    sampled_out: u64,
}

impl Renderer {
    pub(super) fn new(shown: Arc<Shown>) -> Self {
        Self { shown, rows: Rows::default() }
    }

    /// The state now.
    pub(super) fn render(&mut self) -> State {
        let events = self.shown.kv_events.as_ref().map(|events| events());
        let head = serde_json::to_string(&self.head(events.as_ref())).unwrap_or_default();
        let Shown { store, clock, max_age, model, .. } = &*self.shown;
        let model = model();
        let known = Known {
            max_age: *max_age,
            model: model.as_deref(),
            events: events.map(|events| events.followed),
        };
        let changed = self.rows.update(&store.snapshot(), clock.now_ms(), &known);
        let head = head.strip_suffix('}').unwrap_or_default();
        let with = |endpoints: String| format!("{head},\"endpoints\":{endpoints}}}");
        let change = changed.map(&with);
        State { full: with(self.rows.all()), change }
    }

    fn head(&self, events: Option<&KvEvents>) -> Head<'_> {
        let shown = &*self.shown;
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let budget = &shown.budget;
        Head {
            unix_ms: milliseconds(unix),
            now_ms: shown.clock.now_ms(),
            version: VERSION,
            commit: COMMIT,
            pool: &shown.pool,
            stale_ms: milliseconds(shown.max_age),
            memory: Memory {
                used: Kind::ALL.iter().map(|kind| budget.used(*kind)).sum(),
                limit: budget.limit(),
                refused: budget.refused(),
            },
            traffic: (shown.traffic)(),
            queue: shown.gate.as_ref().map(|gate| Queue::of(&gate.status())),
            latency: (shown.model)().map(|model| model.report()),
            records: shown.records.as_ref().map(|records| Kept::of(&records.summary())),
            kv_events: events.map(|KvEvents { followed, predicted, cached }| Events {
                queued: followed.queued,
                predicted: *predicted,
                cached: *cached,
            }),
            config: (shown.config)(),
            plans: shown.plans.as_ref().map(|plans| plans()),
            replicas: shown.replicas.as_ref().map(ReplicasMetrics::report),
        }
    }
}

impl Queue {
    fn of(status: &GateStatus) -> Self {
        let band = |band: &BandLoad| Band {
            priority: band.priority,
            waiting: band.waiting.requests,
            bytes: band.waiting.bytes,
            most: band.limit.requests,
            most_bytes: band.limit.bytes,
        };
        Self {
            waiting: status.waiting.requests,
            bytes: status.waiting.bytes,
            most: Some(status.limit.requests).filter(|most| *most != u64::MAX),
            // An empty pool is full without a number.
            saturation: Some(status.saturation).filter(|saturation| saturation.is_finite()),
            bands: status.bands.iter().map(band).collect(),
        }
    }
}

impl Kept {
    fn of(summary: &Summary) -> Self {
        let Summary { kept, capacity, sequence, decisions, sampled_out, .. } = *summary;
        Self { kept, capacity, sequence, decided: decisions, sampled_out }
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
