//! Number of a pool's ejected endpoints, and counters of ejections and probes.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

use super::ejection::{Failure, HealthParams};
use super::first_byte::FirstBytes;
use crate::endpoints::Clock;
use crate::metrics::{Legacy, register};

/// Watches the endpoints of a pool: what they are measured by, and how many are ejected.
#[derive(Debug)]
pub struct OutlierDetector {
    params: HealthParams,
    clock: Clock,
    ejected: AtomicUsize,
    version: AtomicU64,
    names_servers: AtomicBool,
    // Guards what sweeps have learned; nobody else takes it.
    pub(super) first_bytes: Mutex<FirstBytes>,
    metrics: OutlierMetrics,
}

impl OutlierDetector {
    /// Watches by these parameters.
    pub fn new(params: HealthParams, clock: Clock, metrics: OutlierMetrics) -> Self {
        Self {
            params,
            clock,
            ejected: AtomicUsize::default(),
            version: AtomicU64::default(),
            names_servers: AtomicBool::default(),
            first_bytes: Mutex::default(),
            metrics,
        }
    }

    /// Parameters by which endpoints are ejected and come back.
    pub fn params(&self) -> &HealthParams {
        &self.params
    }

    /// Returns `true` if no endpoint is ejected. Checked first by each decision.
    pub fn is_empty(&self) -> bool {
        self.ejected.load(Ordering::Relaxed) == 0
    }

    /// Changes whenever an endpoint is ejected or recovers.
    pub fn version(&self) -> u64 {
        // Who sees a version sees who was ejected under it, or later.
        self.version.load(Ordering::Acquire)
    }

    /// Returns `true` if the gateway says which endpoint served. Only then a probe may have
    /// fallbacks: a response from one of them must not count for the endpoint that is probed.
    pub fn names_servers(&self) -> bool {
        self.names_servers.load(Ordering::Relaxed)
    }

    pub(super) fn named_server(&self) {
        // Written once, read by every thread.
        if !self.names_servers() {
            self.names_servers.store(true, Ordering::Relaxed);
        }
    }

    /// Counters of ejections and probes.
    pub fn metrics(&self) -> &OutlierMetrics {
        &self.metrics
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    pub(super) fn ejected(&self, failure: Failure) {
        self.ejected.fetch_add(1, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
        self.metrics.ejections[failure.number()].inc();
    }

    pub(super) fn recovered(&self) {
        self.left();
        self.version.fetch_add(1, Ordering::Release);
        self.metrics.recoveries.inc();
    }

    /// One that was ejected is gone.
    pub(super) fn left(&self) {
        self.ejected.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn probed(&self) {
        self.metrics.probes.inc();
    }
}

/// Counters of ejections, recoveries, probes and overruled ejections.
#[derive(Clone, Debug)]
pub struct OutlierMetrics {
    /// `usher_endpoint_ejections_total{reason}`, in the order of [`Failure::NAMES`].
    ejections: [IntCounter; Failure::NAMES.len()],
    /// `usher_endpoint_recoveries_total`
    recoveries: IntCounter,
    /// `usher_endpoint_probes_total`
    probes: IntCounter,
    /// `usher_ejections_overruled_total`: decisions that took ejected endpoints and were no probes.
    pub overruled: IntCounter,
}

impl OutlierMetrics {
    /// Registers the counters.
    ///
    /// # Errors
    /// `prometheus::Error` if a metric name is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let ejections = IntCounterVec::new(
            Opts::new("usher_endpoint_ejections_total", "Ejections of endpoints, by their last failure."),
            &["reason"],
        )?;
        let same = &[("reason", "reason")];
        let older = Legacy { name: "usher_endpoint_demotions_total", labels: same };
        let ejections = register(registry, ejections, Some(older))?;
        let counter = |name: &str, help: &str| register(registry, IntCounter::new(name, help)?, None);
        Ok(Self {
            ejections: Failure::NAMES.map(|name| ejections.with_label_values(&[name])),
            recoveries: counter(
                "usher_endpoint_recoveries_total",
                "Ejections that ended because the endpoint works again.",
            )?,
            probes: counter(
                "usher_endpoint_probes_total",
                "Requests sent to an ejected endpoint as its probe.",
            )?,
            overruled: register(
                registry,
                IntCounter::new(
                    "usher_ejections_overruled_total",
                    "Decisions that took ejected endpoints, because more than half were ejected or no other passed the filters.",
                )?,
                Some(Legacy { name: "usher_demotions_overruled_total", labels: &[] }),
            )?,
        })
    }
}
