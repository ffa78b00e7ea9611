//! Servers behind TLS.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tempfile::TempDir;
use tokio_rustls::TlsAcceptor;
use usher::scrape::{ScrapeConfig, TlsClient, TlsSettings};

use crate::pages::pool::{Pool, hurried};
use crate::pages::server::{Server, ok, page};

/// An authority, and certificates that it signed, as files.
pub struct Files {
    folder: TempDir,
}

impl Files {
    pub fn make() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(folder.path().join("ca.crt"), ca.pem()).unwrap();
        for (name, address) in [("server", Ipv4Addr::LOCALHOST), ("elsewhere", Ipv4Addr::new(10, 9, 8, 7))] {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.subject_alt_names = vec![SanType::IpAddress(IpAddr::V4(address))];
            if name == "server" {
                params.subject_alt_names.push(SanType::DnsName("localhost".try_into().unwrap()));
            }
            let cert = params.signed_by(&key, &ca).unwrap();
            std::fs::write(folder.path().join(format!("{name}.crt")), cert.pem()).unwrap();
            std::fs::write(folder.path().join(format!("{name}.key")), key.serialize_pem()).unwrap();
        }
        Self { folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn acceptor(&self, name: &str, wants_client: bool) -> TlsAcceptor {
        let certificates = |path: &Path| -> Vec<CertificateDer<'static>> {
            CertificateDer::pem_file_iter(path).unwrap().map(Result::unwrap).collect()
        };
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder =
            ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
        let builder = if wants_client {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(certificates(&self.path("ca.crt")));
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            builder.unwrap().with_client_cert_verifier(verifier)
        } else {
            builder.unwrap().with_no_client_auth()
        };
        let key = PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key"))).unwrap();
        let chain = certificates(&self.path(&format!("{name}.crt")));
        TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key).unwrap()))
    }

    fn settings(&self, verify: bool, shows: bool) -> TlsSettings {
        TlsSettings {
            insecure_skip_verify: !verify,
            ca_cert: verify.then(|| self.path("ca.crt")),
            client_cert: shows.then(|| (self.path("server.crt"), self.path("server.key"))),
        }
    }
}

fn over(settings: &TlsSettings) -> ScrapeConfig {
    ScrapeConfig { tls: Some(TlsClient::load(settings).unwrap()), ..hurried() }
}

#[tokio::test]
async fn certificates_are_verified_when_configured() {
    let files = Files::make();
    // the server's certificate, whether it wants one, verify, show one, is it read
    let table = [
        ("server", false, false, false, true),
        ("elsewhere", false, false, false, true),
        ("server", false, true, false, true),
        ("elsewhere", false, true, false, false),
        ("server", true, true, true, true),
        ("server", true, true, false, false),
    ];
    for (name, wants_client, verify, shows, read) in table {
        let row = (name, wants_client, verify, shows);
        let server = Server::start_tls(files.acceptor(name, wants_client), |_| ok(&page(3))).await;
        let pool = Pool::start(&[server.address], over(&files.settings(verify, shows)));
        if read {
            server.more(3).await;
            assert_eq!((pool.waiting(0), *server.connections.borrow()), (Some(3.0), 1), "{row:?}");
        } else {
            pool.until("failures", |pool| pool.load(0).scrapes.failures_in_a_row() >= 2).await;
            assert_eq!((pool.waiting(0), server.count()), (None, 0), "{row:?}");
        }
    }
}

#[tokio::test]
async fn plain_text_server_is_a_tls_failure() {
    let server = Server::start(|_| ok(&page(3))).await;
    let files = Files::make();
    let pool = Pool::start(&[server.address], over(&files.settings(false, false)));
    // It waits for a request that never ends, until the time is over.
    pool.until("failures", |pool| pool.failures("timeout") + pool.failures("tls") >= 1).await;
    assert_eq!(pool.waiting(0), None);
}

#[test]
fn unusable_files_are_named() {
    let files = Files::make();
    let load = |ca: Option<&str>, client: Option<(&str, &str)>| {
        let settings = TlsSettings {
            insecure_skip_verify: ca.is_none(),
            ca_cert: ca.map(|name| files.path(name)),
            client_cert: client.map(|(cert, key)| (files.path(cert), files.path(key))),
        };
        TlsClient::load(&settings).map_err(|error| error.to_string())
    };
    assert!(load(Some("ca.crt"), Some(("server.crt", "server.key"))).is_ok());
    let table = [
        (Some("missing.crt"), None, "missing.crt"),
        (Some("server.key"), None, "server.key: there is no certificate"),
        (None, Some(("missing.crt", "server.key")), "missing.crt"),
        (None, Some(("server.crt", "missing.key")), "missing.key"),
        (None, Some(("server.crt", "ca.crt")), "ca.crt"),
        (None, Some(("server.crt", "elsewhere.key")), "do they belong together"),
    ];
    for (ca, client, text) in table {
        let error = load(ca, client).unwrap_err();
        assert!(error.contains(text), "{error}");
    }
}
