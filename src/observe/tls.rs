//! TLS of the metrics port: its certificate and the one that clients' have to be signed
//! with, both read again when their files change.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig};

use crate::config::settings::MetricsTlsSettings;
use crate::tls::{CertError, Certificate, keep_fresh};

const CERT_DIR: &str = "--metrics-cert-dir";
const CLIENT_CA: &str = "--metrics-client-ca-file";

/// TLS of the metrics port.
#[derive(Debug)]
pub struct MetricsTls {
    /// For handshakes from now on. Replaced when the clients' authority is.
    config: ArcSwap<ServerConfig>,
    certificate: Arc<Certificate>,
    /// Where clients' certificates come from, and what the file held.
    authority: Option<(PathBuf, Vec<u8>)>,
}

impl MetricsTls {
    /// Reads what the settings name.
    ///
    /// # Errors
    /// Which file can't be used, and the flag that names it.
    pub fn new(settings: &MetricsTlsSettings) -> Result<Self, CertError> {
        let certificate = Arc::new(Certificate::load(&settings.cert_dir, CERT_DIR)?);
        let authority = match &settings.client_ca {
            None => None,
            Some(path) => Some((path.clone(), read(path)?)),
        };
        let trusted = authority.as_ref().map(|(path, pem)| authorities(path, pem)).transpose()?;
        let config = ArcSwap::from_pointee(config(&certificate, trusted)?);
        Ok(Self { config, certificate, authority })
    }

    /// For the next handshake.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config.load_full()
    }

    /// Watches the files, and uses what they hold when they change; never returns.
    pub async fn keep_fresh(self: Arc<Self>, interval: Duration) {
        let authority = async {
            let Some((path, pem)) = self.authority.clone() else { return };
            let reading = path.clone();
            let parse = |pem: &Vec<u8>| config(&self.certificate, Some(authorities(&path, pem)?));
            keep_fresh(
                interval,
                pem,
                move || read(&reading),
                parse,
                |config| {
                    self.config.store(Arc::new(config));
                    tracing::info!(file = %path.display(), "authority of clients replaced");
                },
            )
            .await;
        };
        tokio::join!(Arc::clone(&self.certificate).keep_fresh(interval), authority);
    }
}

fn read(path: &Path) -> Result<Vec<u8>, CertError> {
    std::fs::read(path).map_err(|source| CertError::Read {
        path: path.to_owned(),
        flag: CLIENT_CA,
        expected: "it must hold certificates in PEM",
        source,
    })
}

/// The authorities in a file. One that can't be used is an error: clients of it would be
/// refused without a word.
fn authorities(path: &Path, pem: &[u8]) -> Result<RootCertStore, CertError> {
    let broken = |problem| CertError::Content {
        path: path.to_owned(),
        flag: CLIENT_CA,
        expected: "certificate of an authority",
        problem,
    };
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| broken(error.to_string()))?;
        store.add(certificate).map_err(|error| broken(error.to_string()))?;
    }
    if store.is_empty() {
        return Err(broken("no such section".to_owned()));
    }
    Ok(store)
}

/// HTTP/1.1 over TLS 1.2 and 1.3. Who is checked must show a certificate.
fn config(certificate: &Arc<Certificate>, clients: Option<RootCertStore>) -> Result<ServerConfig, CertError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(CertError::Setup)?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(roots) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            let verifier =
                verifier.map_err(|error| CertError::Setup(rustls::Error::General(error.to_string())))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::clone(certificate) as _);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

    fn authority() -> String {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
    }

    #[test]
    fn broken_files_are_named_with_their_flag() {
        let path = Path::new("/ca.pem");
        let two = format!("{}{}", authority(), authority());
        assert_eq!(authorities(path, two.as_bytes()).unwrap().len(), 2);
        let half = &two[..two.len() - 100];
        for pem in ["", "nonsense", half, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            let error = authorities(path, pem.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("/ca.pem (--metrics-client-ca-file)"), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
        let folder = tempfile::tempdir().unwrap();
        let settings = MetricsTlsSettings { cert_dir: folder.path().to_owned(), client_ca: None };
        let error = MetricsTls::new(&settings).unwrap_err().to_string();
        assert!(error.contains("tls.crt (--metrics-cert-dir)"), "{error}");
        let missing = read(&folder.path().join("ca")).unwrap_err().to_string();
        assert!(missing.contains("--metrics-client-ca-file"), "{missing}");
    }
}
