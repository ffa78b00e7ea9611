//! Counts latency targets that can't be read.

use prometheus::{IntCounterVec, Opts, Registry};
use usher_core::metrics::register;
use usher_core::request::Slo;
use usher_plugin::{Context, Effects, ResponseObserver};

/// `usher_slo_headers_ignored_total`: requests with a target that is no number.
#[derive(Debug)]
pub struct SloMetrics {
    ignored: IntCounterVec,
}

/// Marks a request whose headers are counted.
struct Counted;

impl ResponseObserver for Counted {}

impl SloMetrics {
    /// Registers the family.
    ///
    /// # Errors
    /// `prometheus::Error` if the metric's name is registered already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let opts = Opts::new(
            "usher_slo_headers_ignored_total",
            "Requests with a latency target that is no number of milliseconds, by header.",
        );
        Ok(Self { ignored: register(registry, IntCounterVec::new(opts, &["header"])?, None)? })
    }

    /// Counts the headers of a request that say no target, once however many plugins read
    /// them.
    pub(crate) fn count_ignored(&self, cx: &Context<'_>, effects: &mut Effects) {
        let mut ignored = Slo::ignored(&cx.request.headers).peekable();
        if ignored.peek().is_none() {
            return;
        }
        effects.observe_once(|| {
            for header in ignored {
                tracing::debug!(
                    request_id = &*cx.request.id(),
                    header,
                    "latency target ignored: it is no number of milliseconds"
                );
                self.ignored.with_label_values(&[header]).inc();
            }
            Counted
        });
    }
}
