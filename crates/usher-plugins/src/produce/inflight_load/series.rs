//! `inflight_requests` and `inflight_tokens`: what is under way at each endpoint, by flow
//! and priority.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use dashmap::DashMap;
use prometheus::{IntGauge, IntGaugeVec, Opts, Registry};
use smallvec::SmallVec;
use usher_core::endpoints::{Endpoint, Snapshot};
use usher_core::metrics::{BoundedLabel, OTHER, Overflow, register};
use usher_plugin::Persistent;

const LABELS: [&str; 5] = ["endpoint_name", "namespace", "producer_name", "fairness_id", "priority"];

/// Time for which a series stays at 0 before it goes. Flows may come with any name, and
/// each would stay at every endpoint that it was ever sent to.
const IDLE: Duration = Duration::from_secs(300);

/// Series of a producer for each flow that there may be, beside those of `other`: a thousand flows at a thousand
/// endpoints would be a million. What there is no room for counts at its endpoint as `other`.
pub(super) const PER_FLOW: usize = 10;

/// The families, shared by all producers.
#[derive(Debug)]
pub struct InflightFamilies {
    requests: IntGaugeVec,
    tokens: IntGaugeVec,
}

impl InflightFamilies {
    /// Registers the families.
    ///
    /// # Errors
    /// When a name is taken.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let family = |name: &str, help: &str| -> prometheus::Result<IntGaugeVec> {
            register(registry, IntGaugeVec::new(Opts::new(name, help), &LABELS)?, None)
        };
        Ok(Self {
            requests: family(
                "llm_d_epp_inflight_requests",
                "[ALPHA] Requests under way at an endpoint, by flow and priority.",
            )?,
            tokens: family(
                "llm_d_epp_inflight_tokens",
                "[ALPHA] Tokens of requests under way at an endpoint, by flow and priority.",
            )?,
        })
    }
}

/// The series of one producer. A request looks its own up once, and keeps them.
pub struct InflightSeries {
    families: Arc<InflightFamilies>,
    producer: String,
    flows: BoundedLabel,
    overflow: Overflow,
    /// Most series, beside those of `other`.
    most: usize,
    /// Number of series.
    count: AtomicUsize,
    /// By `namespace/name`, as an endpoint that comes back has the same series.
    endpoints: DashMap<Arc<str>, OfEndpoint>,
}

struct OfEndpoint {
    namespace: String,
    name: String,
    /// By flow and then by priority, of which there are few.
    flows: HashMap<String, SmallVec<[OfFlow; 1]>>,
}

struct OfFlow {
    gauges: Arc<Gauges>,
    /// When it was last seen in use.
    used_ms: u64,
}

#[derive(Debug)]
struct Gauges {
    requests: IntGauge,
    tokens: IntGauge,
    flow: String,
    priority: i32,
    /// A request has been counted since the last sweep.
    used: AtomicBool,
}

impl InflightSeries {
    /// No series yet; later at most of so many flows.
    pub fn new(families: Arc<InflightFamilies>, producer: &str, flows: usize) -> Self {
        let producer = producer.to_owned();
        Self {
            families,
            producer,
            flows: BoundedLabel::new(flows),
            overflow: Overflow::default(),
            most: flows.saturating_mul(PER_FLOW),
            count: AtomicUsize::new(0),
            endpoints: DashMap::new(),
        }
    }

    /// Counts a request of a flow until the guard is dropped.
    pub(super) fn count(&self, endpoint: &Endpoint, flow: &str, priority: i32, tokens: u64) -> Counted {
        let gauges = self.gauges(endpoint, flow, priority);
        let tokens = i64::try_from(tokens).unwrap_or(i64::MAX);
        gauges.add(1, tokens);
        Counted { gauges, tokens }
    }

    fn gauges(&self, endpoint: &Endpoint, flow: &str, priority: i32) -> Arc<Gauges> {
        let known = self.endpoints.get(endpoint.id()).and_then(|held| held.find(flow, priority));
        known.unwrap_or_else(|| {
            let is_full = self.count.load(Relaxed) >= self.most;
            let label = if is_full { OTHER } else { self.flows.bounded(flow) };
            if label != flow {
                self.overflow.warn("requests in flight at endpoints");
            }
            let mut held =
                self.endpoints.entry(Arc::clone(endpoint.id())).or_insert_with(|| OfEndpoint::new(endpoint));
            held.find(label, priority).unwrap_or_else(|| self.make(&mut held, label, priority))
        })
    }

    fn make(&self, held: &mut OfEndpoint, flow: &str, priority: i32) -> Arc<Gauges> {
        self.count.fetch_add(1, Relaxed);
        let text = priority.to_string();
        let labels = [&held.name, &held.namespace, &self.producer, flow, &text];
        let gauges = Arc::new(Gauges {
            requests: self.families.requests.with_label_values(&labels),
            tokens: self.families.tokens.with_label_values(&labels),
            flow: flow.to_owned(),
            priority,
            used: AtomicBool::new(true),
        });
        let of_flow = OfFlow { gauges: Arc::clone(&gauges), used_ms: 0 };
        held.flows.entry(flow.to_owned()).or_default().push(of_flow);
        gauges
    }

    fn forget(&self, namespace: &str, name: &str, gauges: &Gauges) {
        self.count.fetch_sub(1, Relaxed);
        let priority = gauges.priority.to_string();
        let labels = [name, namespace, &self.producer, &gauges.flow, &priority];
        for family in [&self.families.requests, &self.families.tokens] {
            // Absent only if somebody else removed it, which is all the same.
            let _ = family.remove_label_values(&labels);
        }
    }
}

impl Persistent for InflightSeries {
    /// Series of endpoints that are gone go when their last request ends, others when they
    /// have not been used for five minutes.
    fn sweep(&self, snapshot: &Snapshot, now_ms: u64) {
        let known: HashSet<&str> = snapshot.endpoints().iter().map(|e| e.id().as_ref()).collect();
        let mut gone = HashSet::new();
        // An entry is locked while it is looked at, so nobody can take a series that goes.
        self.endpoints.retain(|id, held| {
            let keep_ms = if known.contains(id.as_ref()) { IDLE.as_millis() } else { 0 };
            let OfEndpoint { namespace, name, flows } = held;
            flows.retain(|flow, priorities| {
                priorities.retain(|of_flow| {
                    let stays = of_flow.is_in_use(now_ms, keep_ms);
                    if !stays {
                        self.forget(namespace, name, &of_flow.gauges);
                    }
                    stays
                });
                if priorities.is_empty() {
                    gone.insert(flow.clone());
                }
                !priorities.is_empty()
            });
            !flows.is_empty()
        });
        if !gone.is_empty() {
            self.endpoints.iter().for_each(|held| gone.retain(|flow| !held.flows.contains_key(flow)));
            // They make room for others.
            gone.iter().for_each(|flow| self.flows.release(flow));
        }
    }
}

impl OfEndpoint {
    fn new(endpoint: &Endpoint) -> Self {
        let (namespace, name) = (endpoint.namespace().to_owned(), endpoint.name().to_owned());
        Self { namespace, name, flows: HashMap::new() }
    }

    fn find(&self, flow: &str, priority: i32) -> Option<Arc<Gauges>> {
        let priorities = self.flows.get(flow)?;
        let found = priorities.iter().find(|of_flow| of_flow.gauges.priority == priority)?;
        Some(Arc::clone(&found.gauges))
    }
}

impl OfFlow {
    /// Returns `true` if requests hold it, or did less than `keep_ms` ago.
    fn is_in_use(&mut self, now_ms: u64, keep_ms: u128) -> bool {
        let used = self.gauges.used.swap(false, Relaxed);
        if Arc::strong_count(&self.gauges) > 1 {
            self.used_ms = now_ms;
            return true;
        }
        if used {
            self.used_ms = now_ms;
        }
        u128::from(now_ms.saturating_sub(self.used_ms)) < keep_ms
    }
}

impl Gauges {
    fn add(&self, requests: i64, tokens: i64) {
        if requests > 0 {
            self.used.store(true, Relaxed);
        }
        self.requests.add(requests);
        self.tokens.add(tokens);
    }
}

/// A request in the gauges. Dropping it gives back what is left.
#[derive(Debug)]
pub(super) struct Counted {
    gauges: Arc<Gauges>,
    tokens: i64,
}

impl Counted {
    /// Gives the tokens back, and keeps the request.
    pub(super) fn free_tokens(&mut self) {
        self.gauges.add(0, -self.tokens);
        self.tokens = 0;
    }

    /// The request is served by another endpoint.
    pub(super) fn move_to(&mut self, series: &InflightSeries, endpoint: &Endpoint) {
        let next = series.gauges(endpoint, &self.gauges.flow, self.gauges.priority);
        next.add(1, self.tokens);
        let left = std::mem::replace(&mut self.gauges, next);
        left.add(-1, -self.tokens);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.gauges.add(-1, -self.tokens);
    }
}

impl fmt::Debug for InflightSeries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InflightSeries({}, {} endpoints)", self.producer, self.endpoints.len())
    }
}

#[cfg(test)]
#[path = "series_tests.rs"]
mod tests;
