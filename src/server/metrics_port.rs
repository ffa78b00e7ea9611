//! Protection of the metrics port: TLS, and which clients may read.

use std::sync::Arc;

use prometheus::Registry;

use super::{Background, RunError};
use crate::cluster::Cluster;
use crate::endpoints::Clock;
use crate::observe::access::{Access, Refusals};
use crate::observe::http::Protection;
use crate::observe::tls::MetricsTls;
use crate::settings::MetricsPortSettings;
use crate::tls::RELOAD_INTERVAL;

/// TLS of the metrics port, if the settings ask for it.
///
/// # Errors
/// `RunError` with the file that can't be used.
pub(super) fn tls(settings: &MetricsPortSettings) -> Result<Option<Arc<MetricsTls>>, RunError> {
    let tls = settings.tls.as_ref().map(MetricsTls::new).transpose();
    Ok(tls.map_err(|error| RunError::Config(error.to_string()))?.map(Arc::new))
}

/// Protects the metrics port as the settings say, with this API server.
///
/// # Errors
/// `RunError` if a metric name is registered already.
pub(super) fn protect(
    settings: &MetricsPortSettings,
    tls: Option<Arc<MetricsTls>>,
    cluster: Option<Cluster>,
    clock: &Clock,
    registry: &Registry,
    background: &mut Background,
) -> Result<Protection, RunError> {
    if let Some(tls) = &tls {
        background.run(Arc::clone(tls).keep_fresh(RELOAD_INTERVAL));
    }
    let access = match cluster.filter(|_| settings.auth) {
        Some(cluster) => Some(Arc::new(Access::new(cluster, clock, Refusals::register(registry)?))),
        None => None,
    };
    let checks_clients = settings.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
    if access.is_none() && tls.is_some() && !checks_clients {
        tracing::warn!(
            "metrics are encrypted, and there is no API server to ask who may read them; give --metrics-client-ca-file or --client-ca-path, or bind or firewall the port"
        );
    }
    Ok(Protection { tls, access, ..Protection::default() })
}
