//! Gauges of the requests that wait, by priority and model: ours, for autoscalers that decide how
//! many servers there should be.

use std::sync::Arc;

use prometheus::{IntGauge, IntGaugeVec, Opts, Registry};

use crate::metrics::{ClientSeries, Family, MAX_LABEL_VALUES, OTHER, SeriesRoom, register};
use crate::request::Request;

const LABELS: [&str; 3] = ["priority", "model_name", "target_model_name"];

/// Name of these series in the log.
const OF: &str = "demand by model";

/// Lines of a series on a page: requests and bytes.
const LINES: usize = 2;

/// The families. They are bounded by themselves: however many flows there are, what they wait
/// for counts at its model.
#[derive(Debug)]
pub(super) struct DemandFamilies {
    requests: IntGaugeVec,
    bytes: IntGaugeVec,
    known: ClientSeries<DemandKey, DemandGauges>,
}

/// Priority and model of requests that wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct DemandKey {
    pub(super) priority: i32,
    pub(super) model: String,
    pub(super) target: String,
}

#[derive(Debug)]
pub(super) struct DemandGauges {
    key: DemandKey,
    pub(super) requests: IntGauge,
    pub(super) bytes: IntGauge,
}

impl DemandGauges {
    pub(super) fn is_of(&self, request: &Request) -> bool {
        let DemandKey { priority, model, target } = &self.key;
        *priority == request.priority && *model == request.model && *target == request.target_model
    }
}

impl DemandFamilies {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let family = |name: &str, help: &str| {
            register(registry, IntGaugeVec::new(Opts::new(name, help), &LABELS)?, None)
        };
        Ok(Self {
            requests: family("usher_demand_requests", "Queued requests, by priority and model.")?,
            bytes: family("usher_demand_bytes", "Bytes of queued request bodies.")?,
            known: ClientSeries::new(MAX_LABEL_VALUES),
        })
    }

    /// The same in a room for series that others share.
    pub(super) fn within(mut self, room: &SeriesRoom) -> Self {
        self.known = self.known.within(room, LINES);
        self
    }

    /// Removes series that were unused for a while, where there are many.
    pub(super) fn sweep(&self) {
        self.known.retain(|_, _| true, &|key, _| self.forget(key));
    }

    /// The gauges of a request's priority and models. Beyond the bounds both models are
    /// `other`.
    pub(super) fn of(&self, request: &Request) -> Arc<DemandGauges> {
        let key = |model: &str, target: &str| DemandKey {
            priority: request.priority,
            model: model.to_owned(),
            target: target.to_owned(),
        };
        let labels = [&request.model, &request.target_model].map(|model| self.known.label(model, OF));
        let [model, target] = if labels.contains(&OTHER) { [OTHER; 2] } else { labels };
        let forget = |key: &DemandKey, _: &DemandGauges| self.forget(key);
        let family = Family {
            of: OF,
            other: &|| key(OTHER, OTHER),
            make: &|key: &DemandKey| self.make(key),
            forget: &forget,
        };
        self.known.get(key(model, target), &family)
    }

    fn make(&self, key: &DemandKey) -> DemandGauges {
        let priority = key.priority.to_string();
        let labels = [priority.as_str(), &key.model, &key.target];
        DemandGauges {
            key: key.clone(),
            requests: self.requests.with_label_values(&labels),
            bytes: self.bytes.with_label_values(&labels),
        }
    }

    fn forget(&self, key: &DemandKey) {
        let priority = key.priority.to_string();
        for family in [&self.requests, &self.bytes] {
            // Absent only if somebody else removed it, which is all the same.
            let _ = family.remove_label_values(&[priority.as_str(), &key.model, &key.target]);
        }
    }

    /// Keys and gauges of the requests that wait, where any do.
    pub(super) fn read(&self) -> Vec<(DemandKey, Arc<DemandGauges>)> {
        let waits = self.known.all().into_iter().filter(|gauges| gauges.requests.get() > 0);
        waits.map(|gauges| (gauges.key.clone(), gauges)).collect()
    }
}
