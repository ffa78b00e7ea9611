//! `usher_state_store_*` and `usher_replicas_*`.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use prometheus::{GaugeVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

use crate::metrics::register;

/// Numbers of the store and of the replicas that are heard through it.
#[derive(Clone, Debug)]
pub struct ReplicasMetrics {
    pub(super) connected: IntGauge,
    pub(super) failures: IntCounterVec,
    pub(super) received: IntCounter,
    pub(super) sent: IntCounter,
    pub(super) messages: IntCounterVec,
    ages: GaugeVec,
}

impl ReplicasMetrics {
    /// Registers the families.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name, help| register(registry, IntCounter::new(name, help)?, None);
        let counters = |name, help, label| {
            register(registry, IntCounterVec::new(Opts::new(name, help), &[label])?, None)
        };
        let connected = IntGauge::new(
            "usher_state_store_connected",
            "1 while the state store is connected; 0: this replica knows only its own load.",
        )?;
        let ages = Opts::new(
            "usher_replicas_age_seconds",
            "Time since another replica was last heard through the state store, for five minutes.",
        );
        Ok(Self {
            connected: register(registry, connected, None)?,
            failures: counters(
                "usher_state_store_failures_total",
                "Connections to the state store that ended or could not be made, by reason.",
                "reason",
            )?,
            received: counter(
                "usher_state_store_received_bytes_total",
                "Bytes received from the state store, own messages included.",
            )?,
            sent: counter("usher_state_store_sent_bytes_total", "Bytes sent to the state store.")?,
            messages: counters(
                "usher_replicas_messages_total",
                "Messages received from replicas: counted, own, or rejected (old, version, length, too_many replicas).",
                "result",
            )?,
            ages: register(registry, GaugeVec::new(ages, &["replica"])?, None)?,
        })
    }

    /// Shows ages in place of those `shown`, which become these.
    pub(super) fn show(&self, ages: &HashMap<&str, Duration>, shown: &mut HashSet<String>) {
        shown.retain(|name| {
            let stays = ages.contains_key(name.as_str());
            if !stays {
                // Absent only if somebody else removed it, which is all the same.
                let _ = self.ages.remove_label_values(&[name]);
            }
            stays
        });
        for (name, age) in ages {
            self.ages.with_label_values(&[name]).set(age.as_secs_f64());
            if !shown.contains(*name) {
                shown.insert((*name).to_owned());
            }
        }
    }
}
