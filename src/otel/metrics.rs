//! Numbers of traces.

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

use crate::metrics::register;

/// `usher_trace_spans_total`: spans by what became of them. Clones share the numbers.
#[derive(Clone, Debug)]
pub struct TraceMetrics {
    /// Taken by the collector.
    pub(super) exported: IntCounter,
    /// Dropped, as too many waited.
    pub(super) queue_full: IntCounter,
    /// Dropped, as the collector could not be reached, or refused the export.
    pub(super) failed: IntCounter,
    /// Refused by the collector, out of an export that it took.
    pub(super) rejected: IntCounter,
}

impl TraceMetrics {
    /// Registers the family.
    ///
    /// # Errors
    /// `prometheus::Error` if the metric's name is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let opts = Opts::new(
            "usher_trace_spans_total",
            "Spans of sampled requests, by what became of them; all but exported are lost.",
        );
        let family = IntCounterVec::new(opts, &["result"])?;
        let family = register(registry, family, None)?;
        let of = |result| family.with_label_values(&[result]);
        Ok(Self {
            exported: of("exported"),
            queue_full: of("queue_full"),
            failed: of("failed"),
            rejected: of("rejected"),
        })
    }
}
