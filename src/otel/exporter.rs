//! Sends the spans of ended requests to a collector, in the background.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::collector::Collector;
use super::proto::any_value::Value;
use super::proto::{ExportTraceServiceRequest, InstrumentationScope, Resource, ResourceSpans, ScopeSpans};
use super::queue::Queue;
use super::record::Record;
use super::spans::{attribute, spans};
use super::tracer::Tracer;
use crate::scrape::TlsError;
use crate::settings::OtlpSettings;
use crate::version::VERSION;

/// Pauses after failed attempts, each up to half longer. After the last the spans are dropped.
const PAUSES: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4), Duration::from_secs(8)];

/// Time to send what is left at the end of the process.
const LAST: Duration = Duration::from_secs(2);

/// Sends spans in batches. Requests never wait for it: while it can't send, the queue fills, and what doesn't fit is
/// dropped.
#[derive(Debug)]
pub struct Exporter {
    collector: Collector,
    queue: Arc<Queue>,
    resource: Resource,
    delay: Duration,
    /// The last export failed.
    is_failing: bool,
}

impl Exporter {
    /// An exporter of a tracer's records. Connects to nothing yet.
    ///
    /// # Errors
    /// `TlsError` if a certificate can't be used.
    pub fn new(settings: &OtlpSettings, tracer: &Tracer) -> Result<Self, TlsError> {
        let mut attributes: Vec<_> = settings
            .resource
            .iter()
            .map(|(key, value)| attribute(key, Value::StringValue(value.clone())))
            .collect();
        for (key, value) in [
            ("telemetry.sdk.name", "usher"),
            ("telemetry.sdk.language", "rust"),
            ("telemetry.sdk.version", VERSION),
        ] {
            attributes.push(attribute(key, Value::StringValue(value.to_owned())));
        }
        Ok(Self {
            collector: Collector::new(settings)?,
            queue: Arc::clone(&tracer.queue),
            resource: Resource { attributes },
            delay: settings.delay,
            is_failing: false,
        })
    }

    /// Exports until `shutdown`, and then what is left, for at most two seconds.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut batch = Vec::new();
        while shutdown.run_until_cancelled(self.wait()).await.is_some() {
            batch = self.queue.take();
            if !batch.is_empty() && shutdown.run_until_cancelled(self.send(&batch)).await.is_none() {
                break;
            }
            batch.clear();
        }
        if batch.is_empty() {
            batch = self.queue.take();
        }
        let last = async {
            while !batch.is_empty() {
                self.attempt(&batch).await;
                batch = self.queue.take();
            }
        };
        if tokio::time::timeout(LAST, last).await.is_err() {
            tracing::warn!("the last traces could not be sent in time");
        }
    }

    /// Waits until there is something to send.
    async fn wait(&self) {
        tokio::select! {
            () = tokio::time::sleep(self.delay) => {}
            () = self.queue.enough() => {}
        }
    }

    /// Sends a batch, more than once if need be, and counts it.
    async fn send(&mut self, batch: &[Box<Record>]) {
        let request = self.request(batch);
        for pause in PAUSES {
            if self.try_send(&request, batch).await {
                return;
            }
            tokio::time::sleep(pause.mul_f64(rand::random_range(1.0..1.5))).await;
        }
        if !self.try_send(&request, batch).await {
            self.queue.metrics().failed.inc_by(count(batch));
        }
    }

    /// Sends a batch once, and counts it.
    async fn attempt(&mut self, batch: &[Box<Record>]) {
        let request = self.request(batch);
        if !self.try_send(&request, batch).await {
            self.queue.metrics().failed.inc_by(count(batch));
        }
    }

    /// Tries to send. Returns `true` if there is no more to do: the batch is exported, or is refused for good.
    async fn try_send(&mut self, request: &ExportTraceServiceRequest, batch: &[Box<Record>]) -> bool {
        let (result, metrics) = (self.collector.export(request).await, self.queue.metrics());
        match result {
            Ok(rejected) => {
                let rejected = rejected.min(count(batch));
                metrics.rejected.inc_by(rejected);
                metrics.exported.inc_by(count(batch) - rejected);
                if std::mem::take(&mut self.is_failing) {
                    tracing::info!("traces are exported again");
                }
                true
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::warn!(%error, "traces can't be exported; requests go on without");
                }
                let is_over = !error.is_temporary();
                if is_over {
                    metrics.failed.inc_by(count(batch));
                }
                is_over
            }
        }
    }

    fn request(&self, batch: &[Box<Record>]) -> ExportTraceServiceRequest {
        let scope = InstrumentationScope { name: "usher".to_owned(), version: VERSION.to_owned() };
        let spans = batch.iter().flat_map(|record| spans(record)).collect();
        ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(self.resource.clone()),
                scope_spans: vec![ScopeSpans { scope: Some(scope), spans }],
            }],
        }
    }
}

fn count(batch: &[Box<Record>]) -> u64 {
    batch.iter().map(|record| record.spans() as u64).sum()
}
