//! Authorities that sign clients' certificates, read again when their file changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

use super::{CertError, keep_fresh};

/// Asks every client for a certificate that one of the authorities in a file has signed.
#[derive(Debug)]
pub struct ClientAuthorities {
    path: PathBuf,
    flag: &'static str,
    provider: Arc<CryptoProvider>,
    /// Content of the file at the start.
    pem: Vec<u8>,
    /// For handshakes from now on. Replaced when the file is.
    current: ArcSwap<Arc<dyn ClientCertVerifier>>,
}

impl ClientAuthorities {
    /// Reads certificates in PEM from the file that `flag` names.
    ///
    /// # Errors
    /// Returns an error if the file can't be read, or an authority in it can't be used: its clients would be
    /// refused without an explanation.
    pub fn load(path: &Path, flag: &'static str, provider: Arc<CryptoProvider>) -> Result<Self, CertError> {
        let pem = read(path, flag)?;
        let current = ArcSwap::from_pointee(verifier(&pem, path, flag, &provider)?);
        Ok(Self { path: path.to_owned(), flag, provider, pem, current })
    }

    /// Watches the file, and uses what it holds when it changes; never returns.
    pub async fn keep_fresh(self: Arc<Self>, interval: Duration) {
        let (path, flag) = (self.path.clone(), self.flag);
        keep_fresh(
            interval,
            self.pem.clone(),
            move || read(&path, flag),
            |pem| verifier(pem, &self.path, flag, &self.provider),
            |verifier| {
                self.current.store(Arc::new(verifier));
                tracing::info!(file = %self.path.display(), "authority of clients replaced");
            },
        )
        .await;
    }
}

impl ClientCertVerifier for ClientAuthorities {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // They may change, and clients rarely have more than one certificate to choose from.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.current.load().verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.current.load().verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.current.load().verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.current.load().supported_verify_schemes()
    }
}

fn read(path: &Path, flag: &'static str) -> Result<Vec<u8>, CertError> {
    std::fs::read(path).map_err(|source| CertError::Read {
        path: path.to_owned(),
        flag,
        expected: "it must hold certificates in PEM",
        source,
    })
}

fn verifier(
    pem: &[u8],
    path: &Path,
    flag: &'static str,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, CertError> {
    let broken = |problem| CertError::Content {
        path: path.to_owned(),
        flag,
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
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(store), Arc::clone(provider)).build();
    verifier.map_err(|error| CertError::Setup(Error::General(error.to_string())))
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

    use super::*;

    const FLAG: &str = "--client-ca-path";

    fn authority() -> String {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
    }

    #[test]
    fn broken_files_are_named_with_their_flag() {
        let path = Path::new("/ca.pem");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let two = format!("{}{}", authority(), authority());
        assert!(verifier(two.as_bytes(), path, FLAG, &provider).is_ok());
        let half = &two[..two.len() - 100];
        for pem in ["", "nonsense", half, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            let error = verifier(pem.as_bytes(), path, FLAG, &provider).unwrap_err().to_string();
            assert!(error.contains("/ca.pem (--client-ca-path)"), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
        let folder = tempfile::tempdir().unwrap();
        let missing = ClientAuthorities::load(&folder.path().join("ca"), FLAG, provider).unwrap_err();
        assert!(missing.to_string().contains(FLAG), "{missing}");
    }
}
