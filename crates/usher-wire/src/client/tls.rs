//! TLS as a gateway speaks it to a picker: without looking at the certificate, which is
//! made by the picker itself.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, Error};
use tokio_rustls::TlsConnector;

use super::any_certificate::AnyCertificate;

/// TLS for any certificate, with these protocols to choose from.
///
/// # Errors
/// `Error` if the library refuses its own defaults.
pub fn connector(protocols: &[&[u8]]) -> Result<TlsConnector, Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Ok(TlsConnector::from(Arc::new(config)))
}
