//! `inflight_requests` and `inflight_tokens`: what is under way at each endpoint, by flow
//! and priority.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use prometheus::{IntGauge, IntGaugeVec, Opts, Registry};
use usher_core::endpoints::{Endpoint, Snapshot};
use usher_core::metrics::{
    ClientSeries, Family, LabelKey, LabelRef, MAX_LABEL_VALUES, OTHER, SeriesRoom, register,
};
use usher_plugin::Persistent;

const LABELS: [&str; 5] = ["endpoint_name", "namespace", "producer_name", "fairness_id", "priority"];

/// Name of these series in the log.
const OF: &str = "requests in flight at endpoints";

/// Series of a producer for each flow that there may be, beside those of `other`: a thousand flows at a thousand
/// endpoints would be a million. What there is no room for counts at its endpoint as `other`.
pub(super) const PER_FLOW: usize = 10;

/// Lines of a series on a page: requests and tokens.
const LINES: usize = 2;

/// Most series with so many endpoints.
fn most(endpoints: usize) -> usize {
    MAX_LABEL_VALUES * endpoints.clamp(1, PER_FLOW)
}

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
    /// `prometheus::Error` if a metric name is registered already.
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
    known: ClientSeries<Key, Gauges>,
}

/// Endpoint, flow and priority of requests. Endpoints by their `namespace/name`, as one that comes back has
/// the same series.
type Key = LabelKey<2>;

#[derive(Debug)]
struct Gauges {
    requests: IntGauge,
    tokens: IntGauge,
    priority: i32,
    /// Values of [`LABELS`].
    labels: [String; 5],
}

impl InflightSeries {
    /// No series yet; later a thousand for each endpoint at most, and ten thousand for all.
    pub fn new(families: Arc<InflightFamilies>, producer: &str, room: &SeriesRoom) -> Self {
        let known = ClientSeries::expiring(MAX_LABEL_VALUES).within(room, LINES);
        Self { families, producer: producer.to_owned(), known }
    }

    /// Counts a request of a flow until the guard is dropped.
    pub(super) fn count(&self, endpoint: &Endpoint, flow: &str, priority: i32, tokens: u64) -> Counted {
        let gauges = self.gauges(endpoint, flow, priority);
        let tokens = i64::try_from(tokens).unwrap_or(i64::MAX);
        gauges.add(1, tokens);
        Counted { gauges, tokens }
    }

    fn gauges(&self, endpoint: &Endpoint, flow: &str, priority: i32) -> Arc<Gauges> {
        let wanted = LabelRef([endpoint.id(), flow], priority);
        self.known.find(wanted.as_dyn()).unwrap_or_else(|| self.make(endpoint, flow, priority))
    }

    #[cold]
    fn make(&self, endpoint: &Endpoint, flow: &str, priority: i32) -> Arc<Gauges> {
        // There are as many endpoints at least, or were.
        self.known.limit_at_least(most(endpoint.slot().number() as usize + 1));
        let key = |flow| LabelRef([endpoint.id(), flow], priority).to_key();
        let family = Family {
            of: OF,
            other: &|| key(OTHER),
            make: &|key: &Key| self.gauges_of(key, endpoint),
            forget: &|_, gauges| self.forget(gauges),
        };
        self.known.get(key(self.known.label(flow, OF)), &family)
    }

    fn gauges_of(&self, key: &Key, endpoint: &Endpoint) -> Gauges {
        let ([_, flow], priority) = (key.texts(), key.number());
        let (name, namespace) = (endpoint.name(), endpoint.namespace());
        let labels = [name, namespace, &self.producer, flow, &priority.to_string()].map(str::to_owned);
        Gauges {
            requests: self.families.requests.with_label_values(&labels),
            tokens: self.families.tokens.with_label_values(&labels),
            priority,
            labels,
        }
    }

    fn forget(&self, gauges: &Gauges) {
        for family in [&self.families.requests, &self.families.tokens] {
            // Absent only if somebody else removed it, which is all the same.
            let _ = family.remove_label_values(&gauges.labels);
        }
    }
}

impl Drop for InflightSeries {
    fn drop(&mut self) {
        self.known.retain(|_, _| false, &|_, gauges| self.forget(gauges));
    }
}

impl Persistent for InflightSeries {
    /// Series of endpoints that are gone go when their last request ends, others when they
    /// have not been used for five minutes: flows come with any name.
    fn sweep(&self, snapshot: &Snapshot, _now_ms: u64) {
        let known: HashSet<&str> = snapshot.endpoints().iter().map(|e| e.id().as_ref()).collect();
        let stays = |key: &Key, is_held: bool| {
            let [endpoint, _] = key.texts();
            is_held || known.contains(endpoint)
        };
        self.known.retain(stays, &|_, gauges| self.forget(gauges));
        self.known.limit(most(snapshot.endpoints().len()));
    }
}

impl Gauges {
    fn flow(&self) -> &str {
        let [_, _, _, flow, _] = &self.labels;
        flow
    }

    fn add(&self, requests: i64, tokens: i64) {
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
        let next = series.gauges(endpoint, self.gauges.flow(), self.gauges.priority);
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
        write!(f, "InflightSeries({}, {} series)", self.producer, self.known.len())
    }
}

#[cfg(test)]
#[path = "series_tests.rs"]
mod tests;
