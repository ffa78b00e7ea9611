//! What waits by priority and model: ours, for whoever decides how many servers there should
//! be.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::{IntGauge, IntGaugeVec, Opts, Registry};

use crate::flow::queue::Nanos;
use crate::metrics::{MAX_LABEL_BYTES, MAX_LABEL_VALUES, OTHER, Overflow, register};
use crate::request::Request;

const LABELS: [&str; 3] = ["priority", "model_name", "target_model_name"];

/// The families. They are bounded by themselves: however many flows there are, what they wait
/// for counts at its model.
#[derive(Debug)]
pub(super) struct DemandFamilies {
    requests: IntGaugeVec,
    bytes: IntGaugeVec,
    // Guards the gauges by what they are of; taken by requests that wait and whose series is
    // shared with others, and when a series is made.
    known: Mutex<HashMap<DemandKey, Arc<DemandGauges>>>,
    overflow: Overflow,
}

/// What waits of one priority for one model.
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
    /// When something last came.
    used: AtomicU64,
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
            requests: family("usher_demand_requests", "Requests that wait, by priority and model.")?,
            bytes: family("usher_demand_bytes", "Bytes of the bodies of requests that wait.")?,
            known: Mutex::default(),
            overflow: Overflow::default(),
        })
    }

    /// The gauges of a request's priority and models. Beyond the bounds both models are
    /// `other`.
    pub(super) fn of(&self, request: &Request, now: Nanos) -> Arc<DemandGauges> {
        let key = |model: &str, target: &str| DemandKey {
            priority: request.priority,
            model: model.to_owned(),
            target: target.to_owned(),
        };
        let is_long = request.model.len().max(request.target_model.len()) > MAX_LABEL_BYTES;
        let other = || {
            self.overflow.tell("demand by model");
            key(OTHER, OTHER)
        };
        let wanted = if is_long { other() } else { key(&request.model, &request.target_model) };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = known.len() >= MAX_LABEL_VALUES && !known.contains_key(&wanted);
        let wanted = if is_full { other() } else { wanted };
        let gauges = known.entry(wanted).or_insert_with_key(|key| Arc::new(self.make(key)));
        gauges.used.store(now, Relaxed);
        Arc::clone(gauges)
    }

    fn make(&self, key: &DemandKey) -> DemandGauges {
        let priority = key.priority.to_string();
        let labels = [priority.as_str(), &key.model, &key.target];
        DemandGauges {
            key: key.clone(),
            requests: self.requests.with_label_values(&labels),
            bytes: self.bytes.with_label_values(&labels),
            used: AtomicU64::new(0),
        }
    }

    /// Removes the gauges that nobody has and nobody used since, where there are many. As long
    /// as there are few they stay: whoever scales by one is to read 0 of a model that rests, not
    /// nothing.
    pub(super) fn sweep(&self, since: Nanos) {
        // Locked meanwhile, so nobody can take one that goes.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() <= MAX_LABEL_VALUES / 2 {
            return;
        }
        known.retain(|key, gauges| {
            let stays = Arc::strong_count(gauges) > 1 || gauges.used.load(Relaxed) >= since;
            if !stays {
                let priority = key.priority.to_string();
                for family in [&self.requests, &self.bytes] {
                    // Absent only if somebody else removed it, which is all the same.
                    let _ = family.remove_label_values(&[priority.as_str(), &key.model, &key.target]);
                }
            }
            stays
        });
    }

    /// What waits, where anything does.
    pub(super) fn read(&self) -> Vec<(DemandKey, Arc<DemandGauges>)> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = known.iter().filter(|(_, gauges)| gauges.requests.get() > 0);
        waits.map(|(key, gauges)| (key.clone(), Arc::clone(gauges))).collect()
    }
}
