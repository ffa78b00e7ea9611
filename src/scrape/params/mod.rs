//! Parameters of the plugins that read model servers' metrics.

mod extractor;
mod source;

pub use extractor::{CoreMetricsExtractorParams, CustomMetric, EngineParams, MetricText};
pub use source::{
    DcgmSourceParams, MetricsSourceParams, ModelsSourceParams, NotificationParams, SourceKind, SourceParams,
};
