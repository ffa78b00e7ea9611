//! The certificate that a port shows: self-signed, loaded from a folder, and replaced when
//! its files change.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::reload::keep_fresh;

const CERT_FILE: &str = "tls.crt";
const KEY_FILE: &str = "tls.key";

/// A self-signed certificate is made at every start, so that it never expires in use.
const SELF_SIGNED_VALIDITY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Clocks of clients may be behind ours by this much.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// Error of a certificate that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum CertError {
    /// A file can't be read.
    #[error("cannot read {path} ({flag}): {source}; {expected}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The flag that names it or its folder.
        flag: &'static str,
        /// Requirement on the file or its folder.
        expected: &'static str,
        /// Error of the system.
        source: io::Error,
    },
    /// A file holds something else.
    #[error("{path} ({flag}) holds no {expected}: {problem}; write it in PEM")]
    Content {
        /// The file.
        path: PathBuf,
        /// The flag that names it or its folder.
        flag: &'static str,
        /// Content that it should hold.
        expected: &'static str,
        /// Problem with its content.
        problem: String,
    },
    /// Certificate and key are fine alone, and not together.
    #[error("tls.crt and tls.key in {folder} ({flag}) can't be used together: {source}; use a pair")]
    Pair {
        /// The flag that names the folder.
        flag: &'static str,
        /// Their folder.
        folder: PathBuf,
        /// Error of rustls.
        source: rustls::Error,
    },
    /// The self-signed certificate could not be made.
    #[error("cannot make a self-signed certificate: {0}; give one with --cert-path")]
    SelfSigned(#[from] rcgen::Error),
    /// The TLS settings contradict each other.
    #[error("cannot set up TLS: {0}; check --tls-min-version and --tls-cipher-suites")]
    Setup(rustls::Error),
}

/// The certificate that handshakes show. Replaced as a whole, read without a lock.
#[derive(Debug)]
pub struct Certificate {
    current: ArcSwap<CertifiedKey>,
    /// Folder of the files, and their contents at the start; `None` if self-signed.
    loaded: Option<(Folder, Files)>,
}

/// A folder with both files, and the flag that names it.
#[derive(Debug, Clone)]
struct Folder {
    path: PathBuf,
    flag: &'static str,
}

/// The contents of both files.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Files {
    cert: Vec<u8>,
    key: Vec<u8>,
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

impl Certificate {
    /// Reads `tls.crt` and `tls.key` in the folder that `flag` names.
    ///
    /// # Errors
    /// `CertError` with the file that is missing or broken.
    pub fn load(path: &Path, flag: &'static str) -> Result<Self, CertError> {
        let folder = Folder { path: path.to_owned(), flag };
        let files = Files::read(&folder)?;
        let key = files.parse(&folder)?;
        Ok(Self { current: ArcSwap::from_pointee(key), loaded: Some((folder, files)) })
    }

    /// Makes a certificate for a client that encrypts and doesn't verify, as gateways do
    /// with an endpoint picker by default.
    ///
    /// # Errors
    /// `CertError` if the system's random source fails.
    pub fn self_signed() -> Result<Self, CertError> {
        // P-256 instead of llm-d-router's RSA-4096: made in microseconds instead of seconds,
        // and a handshake costs a fraction.
        let pair = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.remove(DnType::CommonName);
        params.distinguished_name.push(DnType::OrganizationName, "Usher");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let now = SystemTime::now();
        params.not_before = (now - CLOCK_SKEW).into();
        params.not_after = (now + SELF_SIGNED_VALIDITY).into();
        let certificate = params.self_signed(&pair)?;
        let key = PrivatePkcs8KeyDer::from(pair.serialize_der());
        let key =
            CertifiedKey::from_der(vec![certificate.into()], key.into(), &aws_lc_rs::default_provider())
                .map_err(CertError::Setup)?;
        Ok(Self { current: ArcSwap::from_pointee(key), loaded: None })
    }

    /// The chain that is shown now, leaf first, DER.
    #[must_use]
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        self.current.load().cert.clone()
    }

    /// Watches the files and replaces the certificate when they change; never returns.
    /// A pair that can't be used leaves the old one in use, and the log says why.
    ///
    /// Returns at once for a self-signed certificate.
    pub async fn keep_fresh(self: Arc<Self>, interval: Duration) {
        let Some((folder, files)) = self.loaded.clone() else { return };
        let reading = folder.clone();
        let read = move || Files::read(&reading);
        keep_fresh(
            interval,
            files,
            read,
            |files| files.parse(&folder),
            |key| {
                self.current.store(Arc::new(key));
                tracing::info!(folder = %folder.path.display(), "certificate replaced");
            },
        )
        .await;
    }
}

impl Files {
    fn read(folder: &Folder) -> Result<Self, CertError> {
        let read = |name| {
            let path = folder.path.join(name);
            let expected = "the folder must hold tls.crt and tls.key in PEM";
            std::fs::read(&path).map_err(|source| CertError::Read {
                path,
                flag: folder.flag,
                expected,
                source,
            })
        };
        Ok(Self { cert: read(CERT_FILE)?, key: read(KEY_FILE)? })
    }

    fn parse(&self, folder: &Folder) -> Result<CertifiedKey, CertError> {
        let flag = folder.flag;
        let content = |name, expected, problem| CertError::Content {
            path: folder.path.join(name),
            flag,
            expected,
            problem,
        };
        let chain = CertificateDer::pem_slice_iter(&self.cert)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| content(CERT_FILE, "certificate", error.to_string()))?;
        if chain.is_empty() {
            return Err(content(CERT_FILE, "certificate", "no such section".to_owned()));
        }
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|error| content(KEY_FILE, "private key", error.to_string()))?;
        CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider()).map_err(|source| CertError::Pair {
            flag,
            folder: folder.path.clone(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> Files {
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::default().self_signed(&key).unwrap();
        Files { cert: cert.pem().into_bytes(), key: key.serialize_pem().into_bytes() }
    }

    #[test]
    fn broken_files_are_named() {
        let good = pair();
        let other = pair();
        let table = [
            (Files { cert: b"nonsense".to_vec(), ..good.clone() }, "/certs/tls.crt"),
            (Files { key: Vec::new(), ..good.clone() }, "/certs/tls.key"),
            (Files { key: good.cert.clone(), ..good.clone() }, "/certs/tls.key"),
            (Files { cert: good.key.clone(), ..good.clone() }, "/certs/tls.crt"),
            (Files { key: other.key, ..good }, "can't be used together"),
        ];
        let folder = Folder { path: "/certs".into(), flag: "--metrics-cert-dir" };
        for (files, part) in table {
            let error = files.parse(&folder).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("(--metrics-cert-dir)"), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
        let missing = Certificate::load(Path::new("/nonexistent"), "--cert-path").unwrap_err().to_string();
        assert!(missing.contains("/nonexistent/tls.crt") && missing.contains("--cert-path"), "{missing}");
    }
}
