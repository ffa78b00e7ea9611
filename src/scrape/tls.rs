//! TLS towards model servers.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use usher_wire::client::AnyCertificate;

/// Trust of a source in model servers, and its own identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// Take any certificate.
    pub insecure_skip_verify: bool,
    /// PEM file of who may sign certificates; `None`: those that the system trusts.
    pub ca_cert: Option<PathBuf>,
    /// PEM files of our own certificate and its key.
    pub client_cert: Option<(PathBuf, PathBuf)>,
}

/// Error of TLS settings that can't be used. The text names the file.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TlsError(String);

/// Opens TLS connections.
#[derive(Clone)]
pub struct TlsClient(TlsConnector);

impl std::fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsClient")
    }
}

impl TlsClient {
    /// Reads the files, for connections of HTTP/1.1.
    ///
    /// # Errors
    /// `TlsError` if a file can't be read or has other content, or no authority is trusted.
    pub fn load(settings: &TlsSettings) -> Result<Self, TlsError> {
        Self::load_for(settings, b"http/1.1")
    }

    /// Reads the files, for connections of this protocol, as ALPN names it; an empty name offers none.
    ///
    /// # Errors
    /// Same as [`Self::load`].
    pub fn load_for(settings: &TlsSettings, protocol: &[u8]) -> Result<Self, TlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError(error.to_string()))?;
        let builder = if settings.insecure_skip_verify {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        } else {
            builder.with_root_certificates(roots(settings.ca_cert.as_deref())?)
        };
        let mut config = match &settings.client_cert {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let problem = |error| TlsError(format!("{}: {error}; is it a PEM key?", key.display()));
                let secret = PrivateKeyDer::from_pem_file(key).map_err(problem)?;
                let chain = certificates(cert)?;
                builder.with_client_auth_cert(chain, secret).map_err(|error| {
                    let (cert, key) = (cert.display(), key.display());
                    TlsError(format!("{cert} and {key}: {error}; do they belong together?"))
                })?
            }
        };
        config.alpn_protocols = if protocol.is_empty() { Vec::new() } else { vec![protocol.to_vec()] };
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// Shakes hands. Certificates are checked against the IP address: pods have no names.
    pub(super) async fn connect(
        &self,
        address: SocketAddr,
        stream: TcpStream,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let name: IpAddr = address.ip();
        self.connect_to(ServerName::IpAddress(name.into()), stream).await
    }

    /// Shakes hands with a server that has this name in its certificate.
    pub(crate) async fn connect_to(
        &self,
        name: ServerName<'static>,
        stream: TcpStream,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        self.0.connect(name, stream).await
    }
}

fn roots(file: Option<&Path>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    match file {
        Some(file) => {
            for certificate in certificates(file)? {
                roots.add(certificate).map_err(|error| TlsError(format!("{}: {error}", file.display())))?;
            }
        }
        None => {
            // Systems have certificates that nobody can read any more; one that counts is enough.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                let text = "the system trusts no certificate authority; give a file of them (caCertPath, --prometheus-ca-file, --state-store-ca-file, OTEL_EXPORTER_OTLP_CERTIFICATE)";
                return Err(TlsError(text.to_owned()));
            }
        }
    }
    Ok(roots)
}

/// All certificates of a PEM file, of which there has to be one.
fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let problem = |error| TlsError(format!("{}: {error}; is it a PEM certificate?", file.display()));
    let list: Vec<_> =
        CertificateDer::pem_file_iter(file).map_err(problem)?.collect::<Result<_, _>>().map_err(problem)?;
    if list.is_empty() {
        return Err(TlsError(format!("{}: there is no certificate in it", file.display())));
    }
    Ok(list)
}
