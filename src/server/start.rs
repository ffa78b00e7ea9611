//! The log line of a start: which build serves where, with which certificate, configuration and endpoints.

use std::net::TcpListener;

use super::origin::Origin;
use crate::extproc::listen::Listeners;
use crate::settings::{ConfigSource, ServeSettings, TlsSettings};
use crate::version::{COMMIT, VERSION};

/// Facts of the line.
pub(super) struct Start {
    extproc: Option<String>,
    health: Option<String>,
    metrics: Option<String>,
    admin: Option<String>,
    keda: Option<String>,
    /// Source of the endpoints.
    endpoints: String,
    /// `true` if metrics are served over TLS.
    pub(super) metrics_tls: bool,
    /// `true` if the API server authorizes their readers.
    pub(super) metrics_auth: bool,
}

impl Start {
    /// The addresses that port 0 has become, too.
    pub(super) fn of(settings: &ServeSettings, origin: Option<&Origin>, listeners: &Listeners) -> Self {
        let address = |listener: &TcpListener| listener.local_addr().ok().map(|address| address.to_string());
        let Listeners { extproc, health, metrics, admin, keda } = listeners;
        Self {
            extproc: address(extproc),
            health: address(health),
            metrics: address(metrics),
            admin: admin.as_ref().and_then(address),
            keda: keda.as_ref().and_then(address),
            endpoints: origin.map_or("a locator".to_owned(), |origin| origin.describe(&settings.pool)),
            metrics_tls: false,
            metrics_auth: false,
        }
    }

    /// Writes the log line.
    pub(super) fn log(self, settings: &ServeSettings) {
        let client_ca = settings.tls.as_ref().and_then(|tls| tls.client_ca.as_ref());
        tracing::info!(
            version = VERSION,
            commit = COMMIT,
            extproc = self.extproc,
            health = self.health,
            metrics = self.metrics,
            metrics_tls = self.metrics_tls,
            metrics_auth = self.metrics_auth,
            admin = self.admin,
            keda = self.keda,
            certificate = certificate(settings.tls.as_ref()),
            client_ca = client_ca.map(|path| path.display().to_string()),
            config = config(&settings.config),
            endpoints = self.endpoints,
            threads = settings.worker_threads,
            "serving"
        );
    }
}

/// The certificate of the ext_proc port.
fn certificate(tls: Option<&TlsSettings>) -> String {
    match tls {
        None => "none, plain text".to_owned(),
        Some(TlsSettings { cert_dir: None, .. }) => "self-signed".to_owned(),
        Some(TlsSettings { cert_dir: Some(folder), reload: true, .. }) => {
            format!("{}, reloaded", folder.display())
        }
        Some(TlsSettings { cert_dir: Some(folder), .. }) => folder.display().to_string(),
    }
}

/// Source of the configuration.
fn config(source: &ConfigSource) -> String {
    match source {
        ConfigSource::Default => "built-in".to_owned(),
        ConfigSource::Text(_) => "--config-text".to_owned(),
        ConfigSource::File(path) => path.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_and_configurations_are_named() {
        let folder =
            |reload| TlsSettings { cert_dir: Some("certs".into()), reload, ..TlsSettings::default() };
        assert_eq!(certificate(None), "none, plain text");
        assert_eq!(certificate(Some(&TlsSettings::default())), "self-signed");
        assert_eq!(certificate(Some(&folder(false))), "certs");
        assert_eq!(certificate(Some(&folder(true))), "certs, reloaded");
        assert_eq!(config(&ConfigSource::Default), "built-in");
        assert_eq!(config(&ConfigSource::File("epp.yaml".into())), "epp.yaml");
        assert_eq!(config(&ConfigSource::Text("plugins: []".to_owned())), "--config-text");
    }
}
