//! Number of a pool's demoted endpoints, and counters of demotions and probes.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

use super::first_byte::FirstBytes;
use super::ejection::{Failure, HealthParams};
use crate::endpoints::Clock;
use crate::metrics::register;

/// Watches the endpoints of a pool: what they are measured by, and how many are demoted.
#[derive(Debug)]
pub struct Ward {
    params: HealthParams,
    clock: Clock,
    demoted: AtomicUsize,
    version: AtomicU64,
    names_servers: AtomicBool,
    // Guards what sweeps have learned; nobody else takes it.
    pub(super) first_bytes: Mutex<FirstBytes>,
    metrics: WardMetrics,
}

impl Ward {
    /// Watches by these parameters.
    pub fn new(params: HealthParams, clock: Clock, metrics: WardMetrics) -> Self {
        Self {
            params,
            clock,
            demoted: AtomicUsize::default(),
            version: AtomicU64::default(),
            names_servers: AtomicBool::default(),
            first_bytes: Mutex::default(),
            metrics,
        }
    }

    /// Parameters by which endpoints are demoted and come back.
    pub fn params(&self) -> &HealthParams {
        &self.params
    }

    /// Whether nobody is demoted. What a decision asks first.
    pub fn is_empty(&self) -> bool {
        self.demoted.load(Ordering::Relaxed) == 0
    }

    /// Changes whenever somebody is demoted or recovers.
    pub fn version(&self) -> u64 {
        // Who sees a version sees who was demoted under it, or later.
        self.version.load(Ordering::Acquire)
    }

    /// Whether the gateway says which endpoint served, and so whether a probe may have
    /// fallbacks: an answer from one of them must not count for the endpoint that is probed.
    pub fn names_servers(&self) -> bool {
        self.names_servers.load(Ordering::Relaxed)
    }

    pub(super) fn named_server(&self) {
        // Written once, read by every thread.
        if !self.names_servers() {
            self.names_servers.store(true, Ordering::Relaxed);
        }
    }

    /// Counters of demotions and probes.
    pub fn metrics(&self) -> &WardMetrics {
        &self.metrics
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    pub(super) fn demoted(&self, failure: Failure) {
        self.demoted.fetch_add(1, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
        self.metrics.demotions[failure.number()].inc();
    }

    pub(super) fn recovered(&self) {
        self.left();
        self.version.fetch_add(1, Ordering::Release);
        self.metrics.recoveries.inc();
    }

    /// One that was demoted is gone.
    pub(super) fn left(&self) {
        self.demoted.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn probed(&self) {
        self.metrics.probes.inc();
    }
}

/// Counters of demotions, recoveries, probes and overruled demotions.
#[derive(Clone, Debug)]
pub struct WardMetrics {
    /// `usher_endpoint_demotions_total{reason}`, in the order of [`Failure::NAMES`].
    demotions: [IntCounter; Failure::NAMES.len()],
    /// `usher_endpoint_recoveries_total`
    recoveries: IntCounter,
    /// `usher_endpoint_probes_total`
    probes: IntCounter,
    /// `usher_demotions_overruled_total`: decisions for which demoted endpoints were as
    /// good as any other.
    pub overruled: IntCounter,
}

impl WardMetrics {
    /// Registers the counters.
    ///
    /// # Errors
    /// When one of the names is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let demotions = IntCounterVec::new(
            Opts::new(
                "usher_endpoint_demotions_total",
                "Endpoints that were demoted, by what they failed at last.",
            ),
            &["reason"],
        )?;
        let demotions = register(registry, demotions, None)?;
        let counter = |name: &str, help: &str| register(registry, IntCounter::new(name, help)?, None);
        Ok(Self {
            demotions: Failure::NAMES.map(|name| demotions.with_label_values(&[name])),
            recoveries: counter(
                "usher_endpoint_recoveries_total",
                "Demoted endpoints that became as good as any other again.",
            )?,
            probes: counter(
                "usher_endpoint_probes_total",
                "Requests that went to a demoted endpoint as its probe.",
            )?,
            overruled: counter(
                "usher_demotions_overruled_total",
                "Decisions among all endpoints although some were demoted: too many were, or nobody else would do.",
            )?,
        })
    }
}
