//! Metrics: how often they are read from model servers, and how ours are served.

use std::time::Duration;

use clap::{ArgAction, Args};

use super::pflag::{BOOL, given};
use super::unused::Unused;
use crate::config::units::{parse_bool, parse_duration};
use crate::settings::{MetricsPortSettings, MetricsTlsSettings, TlsSettings};

/// The shortest pause between two scrapes. As in llm-d-router a shorter one is raised.
const MIN_REFRESH: Duration = Duration::from_millis(50);

/// The default of llm-d-router between two computations of the pool's gauges.
const REFRESH_GAUGES: Duration = Duration::from_secs(5);

/// Metrics: how often they are read from model servers, and how ours are served.
#[derive(Debug, Args)]
#[command(next_help_heading = "Metrics")]
pub struct MetricsFlags {
    /// Time between two scrapes of an endpoint; at least 50ms.
    #[arg(long, value_name = "DURATION", default_value = "50ms", value_parser = parse_duration)]
    pub refresh_metrics_interval: Duration,

    /// Accepted for compatibility: the pool's gauges are computed each time /metrics is read.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    pub refresh_prometheus_metrics_interval: Duration,

    /// Age from which an endpoint's metrics no longer count.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    pub metrics_staleness_threshold: Duration,

    /// Count and time ext_proc streams.
    #[arg(long, value_name = BOOL, default_value = "false", value_parser = parse_bool, action = ArgAction::Set)]
    pub enable_grpc_stream_metrics: bool,

    /// Also count requests by OpenTelemetry's semantic conventions: gen_ai_server_request_duration_seconds
    /// and others.
    #[arg(long, value_name = BOOL, default_value = "false", value_parser = parse_bool, action = ArgAction::Set)]
    pub gen_ai_metrics: bool,

    /// Authorize /metrics readers with the Kubernetes API. No effect when endpoints come from a file.
    /// [default: true]
    #[arg(long, value_name = BOOL, value_parser = parse_bool)]
    pub metrics_endpoint_auth: Option<bool>,

    /// Folder with tls.crt and tls.key: serves the metrics over TLS. Reloaded when they change.
    #[arg(long, value_name = "DIR")]
    pub metrics_cert_dir: Option<String>,

    /// PEM file of the authorities that sign the client certificates of /metrics readers. Without a
    /// token, the certificate identifies the reader.
    #[arg(long, value_name = "FILE")]
    pub metrics_client_ca_file: Option<String>,

    /// Accepted for compatibility: there are no profiles of a Go runtime. [default: true]
    #[arg(long, value_name = BOOL, value_parser = parse_bool)]
    pub enable_pprof: Option<bool>,

    /// Removed: name the metric in the configuration.
    #[arg(long, hide = true)]
    pub total_queued_requests_metric: Option<String>,
    /// Removed: name the metric in the configuration.
    #[arg(long, hide = true)]
    pub total_running_requests_metric: Option<String>,
    /// Removed: name the metric in the configuration.
    #[arg(long, hide = true)]
    pub kv_cache_usage_percentage_metric: Option<String>,
    /// Removed: name the metric in the configuration.
    #[arg(long, hide = true)]
    pub lora_info_metric: Option<String>,
    /// Removed: name the metric in the configuration.
    #[arg(long, hide = true)]
    pub cache_info_metric: Option<String>,
}

impl MetricsFlags {
    pub(super) fn refresh_metrics_interval(&self) -> Duration {
        self.refresh_metrics_interval.max(MIN_REFRESH)
    }

    /// Interval that was asked for, if it is too short.
    pub(super) fn raised_refresh_interval(&self) -> Option<Duration> {
        Some(self.refresh_metrics_interval).filter(|asked| *asked < MIN_REFRESH)
    }

    /// Refuses the flags that named metrics, as llm-d-router does.
    pub(super) fn refuse_deprecated(&self) -> Result<(), String> {
        let flags = [
            ("--total-queued-requests-metric", &self.total_queued_requests_metric),
            ("--total-running-requests-metric", &self.total_running_requests_metric),
            ("--kv-cache-usage-percentage-metric", &self.kv_cache_usage_percentage_metric),
            ("--lora-info-metric", &self.lora_info_metric),
            ("--cache-info-metric", &self.cache_info_metric),
        ];
        match flags.iter().find(|(_, value)| value.is_some()) {
            None => Ok(()),
            Some((flag, _)) => Err(format!(
                "{flag} is no longer supported; name the metric in the configuration, \
                 with the core-metrics-extractor plugin"
            )),
        }
    }

    /// Protection of the metrics port, beside an ext_proc port with this TLS.
    pub(super) fn port(
        &self,
        extproc: Option<&TlsSettings>,
        unused: &mut Unused,
    ) -> Result<MetricsPortSettings, String> {
        let (cert_dir, client_ca) = (given(&self.metrics_cert_dir), given(&self.metrics_client_ca_file));
        let auth = self.metrics_endpoint_auth.unwrap_or(true);
        unused.note(
            self.refresh_prometheus_metrics_interval != REFRESH_GAUGES,
            "--refresh-prometheus-metrics-interval",
            "the pool's gauges are computed each time /metrics is read",
        );
        if client_ca.is_some() && cert_dir.is_none() {
            return Err("--metrics-client-ca-file needs TLS; give --metrics-cert-dir, too".to_owned());
        }
        let shared = extproc.filter(|tls| tls.client_ca.is_some());
        if cert_dir.is_some() && client_ca.is_none() && shared.is_none() && !auth {
            return Err("--metrics-cert-dir without --metrics-client-ca-file would let everybody read; \
                        give the file or leave out --metrics-endpoint-auth=false"
                .to_owned());
        }
        unused.note_with_a_file(
            self.metrics_endpoint_auth == Some(true),
            "--metrics-endpoint-auth",
            "endpoints come from a file, so there is no API server to ask; --metrics-client-ca-file works without one",
        );
        unused.note(
            self.enable_pprof == Some(true),
            "--enable-pprof",
            "there are no profiles of a Go runtime",
        );
        let shared_ca = shared.and_then(|tls| tls.client_ca.clone());
        let shared_cert = shared.and_then(|tls| tls.cert_dir.clone());
        let tls = (cert_dir.is_some() || shared.is_some()).then(|| MetricsTlsSettings {
            cert_dir: cert_dir.map(Into::into).or(shared_cert),
            client_ca: client_ca.map(Into::into).or(shared_ca),
        });
        Ok(MetricsPortSettings { auth, tls })
    }
}
