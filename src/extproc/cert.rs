//! The certificate of the ext_proc port: self-signed, loaded from a folder, and
//! replaced when its files change.

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

const CERT_FILE: &str = "tls.crt";
const KEY_FILE: &str = "tls.key";

/// How often the files are compared with what was last seen. Reading them again is
/// cheap, and sees every way of replacing them: writing, renaming, or the swap of a
/// symbolic link by which Kubernetes updates a mounted secret.
pub const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

/// A self-signed certificate is made at every start, so that it never expires in use.
const SELF_SIGNED_VALIDITY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Clocks of clients may be behind ours by this much.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertError {
    /// A file can't be read.
    #[error("cannot read {path} (--cert-path): {source}; the folder must hold tls.crt and tls.key in PEM")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file holds something else.
    #[error("{path} (--cert-path) holds no {expected}: {problem}; write it in PEM")]
    Content {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        expected: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// Certificate and key are fine alone, and not together.
    #[error("tls.crt and tls.key in {folder} (--cert-path) can't be used together: {source}; use a pair")]
    Pair {
        /// Their folder.
        folder: PathBuf,
        /// What rustls said.
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
    /// What `current` was made of, and where from; `None` if self-signed.
    loaded: Option<(PathBuf, Files)>,
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
    /// Reads `tls.crt` and `tls.key` in `folder`.
    ///
    /// # Errors
    /// Which file is missing or broken.
    pub fn load(folder: &Path) -> Result<Self, CertError> {
        let files = Files::read(folder)?;
        let key = files.parse(folder)?;
        Ok(Self { current: ArcSwap::from_pointee(key), loaded: Some((folder.to_owned(), files)) })
    }

    /// Makes a certificate for a client that encrypts and doesn't verify, as gateways do
    /// with an endpoint picker by default.
    ///
    /// # Errors
    /// When the system's random source fails.
    pub fn self_signed() -> Result<Self, CertError> {
        // P-256 instead of the peer's RSA-4096: made in microseconds instead of seconds,
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
        let mut watch = Watch::new(files);
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // Off this thread: the folder may be on a network.
            let read = tokio::task::spawn_blocking({
                let folder = folder.clone();
                move || Files::read(&folder)
            });
            let Ok(read) = read.await else { return };
            match watch.see(read, |files| files.parse(&folder)) {
                Seen::Nothing => {}
                Seen::Usable(key) => {
                    self.current.store(Arc::new(key));
                    tracing::info!(folder = %folder.display(), "certificate replaced");
                }
                Seen::Problem(error) => {
                    tracing::warn!(%error, "keeping the old certificate");
                }
            }
        }
    }
}

impl Files {
    fn read(folder: &Path) -> Result<Self, CertError> {
        let read = |name| {
            let path = folder.join(name);
            std::fs::read(&path).map_err(|source| CertError::Read { path, source })
        };
        Ok(Self { cert: read(CERT_FILE)?, key: read(KEY_FILE)? })
    }

    fn parse(&self, folder: &Path) -> Result<CertifiedKey, CertError> {
        let content =
            |name, expected, problem| CertError::Content { path: folder.join(name), expected, problem };
        let chain = CertificateDer::pem_slice_iter(&self.cert)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| content(CERT_FILE, "certificate", error.to_string()))?;
        if chain.is_empty() {
            return Err(content(CERT_FILE, "certificate", "no such section".to_owned()));
        }
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|error| content(KEY_FILE, "private key", error.to_string()))?;
        CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider())
            .map_err(|source| CertError::Pair { folder: folder.to_owned(), source })
    }
}

/// Decides when changed files are worth loading. No I/O.
struct Watch {
    /// What was last used or refused.
    settled: Result<Files, String>,
    /// What was seen last time, if it was something new.
    pending: Option<Result<Files, String>>,
}

enum Seen {
    Nothing,
    Usable(CertifiedKey),
    Problem(CertError),
}

impl Watch {
    fn new(files: Files) -> Self {
        Self { settled: Ok(files), pending: None }
    }

    /// Takes what was read. Something new counts when it is seen twice in a row: the
    /// first time one of the files may still be the old one, or half written.
    fn see(
        &mut self,
        read: Result<Files, CertError>,
        parse: impl FnOnce(&Files) -> Result<CertifiedKey, CertError>,
    ) -> Seen {
        let (seen, error) = match read {
            Ok(files) => (Ok(files), None),
            Err(error) => (Err(error.to_string()), Some(error)),
        };
        if seen == self.settled {
            self.pending = None;
            return Seen::Nothing;
        }
        if self.pending.as_ref() != Some(&seen) {
            self.pending = Some(seen);
            return Seen::Nothing;
        }
        self.pending = None;
        self.settled = seen;
        match (&self.settled, error) {
            (Ok(files), _) => parse(files).map_or_else(Seen::Problem, Seen::Usable),
            (Err(_), Some(error)) => Seen::Problem(error),
            (Err(_), None) => Seen::Nothing,
        }
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

    fn see(watch: &mut Watch, files: &Files) -> Seen {
        watch.see(Ok(files.clone()), |files| files.parse(Path::new("/certs")))
    }

    fn unreadable() -> Result<Files, CertError> {
        Err(CertError::Read { path: "/certs/tls.key".into(), source: io::ErrorKind::NotFound.into() })
    }

    #[test]
    fn a_new_pair_is_used_when_it_has_settled() {
        let (old, new) = (pair(), pair());
        let half = Files { cert: new.cert.clone(), key: old.key.clone() };
        let mut watch = Watch::new(old.clone());
        assert!(matches!(see(&mut watch, &old), Seen::Nothing));
        // Half written, complete, and the same again.
        assert!(matches!(see(&mut watch, &half), Seen::Nothing));
        assert!(matches!(see(&mut watch, &new), Seen::Nothing));
        let Seen::Usable(key) = see(&mut watch, &new) else { panic!("not loaded") };
        assert_eq!(key.cert[0], CertificateDer::from_pem_slice(&new.cert).unwrap());
        assert!(matches!(see(&mut watch, &new), Seen::Nothing));
    }

    #[test]
    fn a_bad_pair_is_reported_once_and_may_be_mended() {
        let (old, new) = (pair(), pair());
        let mixed = Files { cert: new.cert.clone(), key: old.key.clone() };
        let mut watch = Watch::new(old);
        see(&mut watch, &mixed);
        let Seen::Problem(error) = see(&mut watch, &mixed) else { panic!("accepted") };
        assert!(error.to_string().contains("can't be used together"), "{error}");
        assert!(matches!(see(&mut watch, &mixed), Seen::Nothing));
        see(&mut watch, &new);
        assert!(matches!(see(&mut watch, &new), Seen::Usable(_)));
    }

    #[test]
    fn files_that_vanish_are_reported_once_and_may_come_back() {
        let old = pair();
        let mut watch = Watch::new(old.clone());
        let gone = |watch: &mut Watch| watch.see(unreadable(), |_| unreachable!());
        assert!(matches!(gone(&mut watch), Seen::Nothing));
        assert!(matches!(gone(&mut watch), Seen::Problem(_)));
        assert!(matches!(gone(&mut watch), Seen::Nothing));
        see(&mut watch, &old);
        assert!(matches!(see(&mut watch, &old), Seen::Usable(_)));
    }

    #[test]
    fn broken_files_are_named() {
        let good = pair();
        let table = [
            (Files { cert: b"nonsense".to_vec(), ..good.clone() }, "tls.crt"),
            (Files { key: Vec::new(), ..good.clone() }, "tls.key"),
            (Files { key: good.cert.clone(), ..good.clone() }, "tls.key"),
            (Files { cert: good.key.clone(), ..good }, "tls.crt"),
        ];
        for (files, name) in table {
            let error = files.parse(Path::new("/certs")).unwrap_err().to_string();
            assert!(error.contains(&format!("/certs/{name}")), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
        let missing = Certificate::load(Path::new("/nonexistent")).unwrap_err().to_string();
        assert!(missing.contains("/nonexistent/tls.crt") && missing.contains("--cert-path"), "{missing}");
    }
}
