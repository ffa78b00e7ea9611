//! Starts what exports traces.

use prometheus::Registry;

use super::Background;
use crate::otel::{Exporter, TraceMetrics, Tracer};
use crate::settings::TracingSettings;

/// Starts the export of traces and returns the tracer of requests; `None` where nothing is traced. What is wrong with
/// the settings is logged, and keeps nothing from serving.
///
/// # Errors
/// `prometheus::Error` if a metric name is registered already.
pub(super) fn start(
    settings: &TracingSettings,
    registry: &Registry,
    background: &mut Background,
) -> prometheus::Result<Option<Tracer>> {
    for note in &settings.notes {
        tracing::warn!(note, "tracing variable isn't used as it is set");
    }
    let Some(export) = &settings.export else { return Ok(None) };
    let tracer = Tracer::new(export, TraceMetrics::register(registry)?);
    match Exporter::new(export, &tracer) {
        Ok(exporter) => {
            tracing::info!(
                collector = export.endpoint.host,
                port = export.endpoint.port,
                tls = export.endpoint.tls,
                ratio = export.sampler.ratio,
                parent_based = export.sampler.parent_based,
                "requests are traced"
            );
            // It ends by itself, with what is left.
            background.tasks.spawn(exporter.run(background.shutdown.clone()));
            Ok(Some(tracer))
        }
        Err(error) => {
            tracing::error!(%error, "requests are not traced: the exporter can't be set up");
            Ok(None)
        }
    }
}
