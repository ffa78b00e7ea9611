//! Settings of traces.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Traces: their export, and remarks on environment variables that count for nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TracingSettings {
    /// Export of spans; `None` traces nothing.
    pub export: Option<OtlpSettings>,
    /// One line for each variable that is not as it should be, for the log. Without values of headers.
    pub notes: Vec<String>,
}

/// Export of spans over OTLP, as gRPC.
#[derive(Debug, Clone, PartialEq)]
pub struct OtlpSettings {
    /// Address of the collector.
    pub endpoint: OtlpEndpoint,
    /// Headers of each export.
    pub headers: Vec<(String, Secret)>,
    /// PEM file of who may sign the collector's certificate; `None`: those that the system trusts.
    pub ca_file: Option<PathBuf>,
    /// PEM files of our own certificate and its key.
    pub client_cert: Option<(PathBuf, PathBuf)>,
    /// Time for one export.
    pub timeout: Duration,
    /// Choice of the requests that are traced.
    pub sampler: SamplerSettings,
    /// Attributes of this process, `service.name` among them.
    pub resource: Vec<(String, String)>,
    /// Longest time for which a span waits for others.
    pub delay: Duration,
    /// Most spans that wait, at least 1.
    pub max_queue: usize,
    /// Most spans of one export, from 1 to `max_queue`.
    pub max_batch: usize,
}

/// Address of a collector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtlpEndpoint {
    /// `true` if it is over TLS.
    pub tls: bool,
    /// Name or IP address; IPv6 without brackets.
    pub host: String,
    /// Port of the collector.
    pub port: u16,
}

/// Choice of the requests that are traced.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplerSettings {
    /// Share of the requests that no caller has decided about, from 0 to 1.
    pub ratio: f64,
    /// A caller's choice counts (`parentbased_…`).
    pub parent_based: bool,
}

/// A credential: nothing that prints settings shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}
