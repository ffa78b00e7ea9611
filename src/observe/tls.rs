//! TLS of the metrics port: its certificate and the one that clients' have to be signed
//! with, both read again when their files change.

use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::ClientCertVerifier;
use rustls::version::{TLS12, TLS13};

use crate::settings::MetricsTlsSettings;
use crate::tls::{CertError, Certificate, ClientAuthorities};

const CERT_DIR: &str = "--metrics-cert-dir";
const CLIENT_CA: &str = "--metrics-client-ca-file";

/// TLS of the metrics port.
#[derive(Debug)]
pub struct MetricsTls {
    config: Arc<ServerConfig>,
    certificate: Arc<Certificate>,
    clients: Option<Arc<ClientAuthorities>>,
}

impl MetricsTls {
    /// Reads what the settings name.
    ///
    /// # Errors
    /// `CertError` with the file that can't be used, and its flag.
    pub fn new(settings: &MetricsTlsSettings) -> Result<Self, CertError> {
        let certificate = Arc::new(match &settings.cert_dir {
            Some(folder) => Certificate::load(folder, CERT_DIR)?,
            None => Certificate::self_signed()?,
        });
        let provider = Arc::new(aws_lc_rs::default_provider());
        let load = |path| ClientAuthorities::load(path, CLIENT_CA, Arc::clone(&provider));
        let clients = settings.client_ca.as_deref().map(load).transpose()?.map(Arc::new);
        // HTTP/1.1 over TLS 1.2 and 1.3.
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(CertError::Setup)?;
        let builder = match &clients {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                builder.with_client_cert_verifier(Arc::clone(clients) as Arc<dyn ClientCertVerifier>)
            }
        };
        let mut config = builder.with_cert_resolver(Arc::clone(&certificate) as _);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        if clients.is_some() {
            // A session that is resumed would outlive the authority that vouched for the client.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Self { config: Arc::new(config), certificate, clients })
    }

    /// For the next handshake.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// Watches the files, and uses what they hold when they change; never returns.
    pub async fn keep_fresh(self: Arc<Self>, interval: Duration) {
        let clients = async {
            if let Some(clients) = &self.clients {
                Arc::clone(clients).keep_fresh(interval).await;
            }
        };
        tokio::join!(Arc::clone(&self.certificate).keep_fresh(interval), clients);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_certificate_is_named_with_its_flag() {
        let folder = tempfile::tempdir().unwrap();
        let settings = MetricsTlsSettings { cert_dir: Some(folder.path().to_owned()), client_ca: None };
        let error = MetricsTls::new(&settings).unwrap_err().to_string();
        assert!(error.contains("tls.crt (--metrics-cert-dir)"), "{error}");
    }
}
