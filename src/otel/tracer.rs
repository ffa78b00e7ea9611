//! Begins the trace of a request.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::context::{SpanContext, TraceId, new_span};
use super::metrics::TraceMetrics;
use super::queue::Queue;
use super::record::Record;
use super::request_trace::RequestTrace;
use super::sampler::Sampler;
use crate::request::Headers;
use crate::settings::OtlpSettings;

/// Traces requests. There is none where nothing is traced.
#[derive(Debug)]
pub struct Tracer {
    sampler: Sampler,
    pub(super) queue: Arc<Queue>,
}

impl Tracer {
    /// A tracer whose records an [`Exporter`](super::Exporter) takes.
    pub fn new(settings: &OtlpSettings, metrics: TraceMetrics) -> Self {
        let queue = Queue::new(settings.max_queue, settings.max_batch, metrics);
        Self { sampler: Sampler::new(settings.sampler), queue: Arc::new(queue) }
    }

    /// Begins the trace of a request with these headers, which came at `now`.
    pub fn begin(&self, headers: &Headers, now: Instant) -> Box<RequestTrace> {
        let parent = headers.get("traceparent").and_then(SpanContext::parse);
        let trace = parent.map_or_else(|| TraceId(rand::random::<u128>().max(1)), |parent| parent.trace);
        let is_sampled = self.sampler.samples(parent.as_ref(), trace);
        let context = SpanContext::child(parent.as_ref(), trace, new_span(), is_sampled);
        let record = is_sampled
            .then(|| Box::new(Record::begin(context, parent.as_ref(), headers, now, SystemTime::now())));
        Box::new(RequestTrace::new(context, record, Arc::clone(&self.queue)))
    }
}
