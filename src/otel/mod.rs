//! Traces of requests, as OpenTelemetry defines them.
//!
//! [`Tracer`] begins a [`RequestTrace`] with the headers of a request: the caller's W3C context, and whether spans are
//! recorded (`sampler.rs`). The exchange notes times that it takes anyway. At the end of the request the record goes into
//! a bounded `queue.rs`; the [`Exporter`] makes spans of it (`spans.rs`) and sends them, off the threads of
//! requests.

mod collector;
mod context;
mod exporter;
mod metrics;
mod proto;
mod queue;
mod record;
mod request_trace;
mod sampler;
mod spans;
mod tracer;

pub use context::{SpanContext, TraceId};
pub use exporter::Exporter;
pub use metrics::TraceMetrics;
pub use request_trace::{RequestTrace, Routing};
pub use tracer::Tracer;
