use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, ProtocolVersion};
use tempfile::tempdir;
use usher::extproc::tls::Tls;
use usher::settings::TlsSettings;

use crate::server::{Call, Running, handshake, secure};

/// Writes a new pair into `folder`, and says which certificate it is.
fn write_pair(folder: &Path) -> CertificateDer<'static> {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::default().self_signed(&key).unwrap();
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("tls.key"), key.serialize_pem()).unwrap();
    std::fs::write(folder.join("tls.crt"), certificate.pem()).unwrap();
    certificate.der().clone()
}

fn in_folder(folder: &Path) -> TlsSettings {
    TlsSettings { cert_dir: Some(folder.to_owned()), ..TlsSettings::default() }
}

#[tokio::test]
async fn a_self_signed_certificate_serves_http2_from_the_start() {
    let server = Running::start(Some(TlsSettings::default()), Duration::ZERO);
    let (stream, certificate) = handshake(server.extproc, &[&TLS12, &TLS13]).await.unwrap();
    let session = stream.get_ref().1;
    assert_eq!(session.alpn_protocol(), Some(&b"h2"[..]));
    assert_eq!(session.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    assert!(certificate.windows(5).any(|window| window == b"Usher"));
    Call::open(&secure(server.extproc).await).await.exchange().await.unwrap();
    // Another server, another certificate.
    let other = Running::start(Some(TlsSettings::default()), Duration::ZERO);
    assert_ne!(handshake(other.extproc, &[&TLS13]).await.unwrap().1, certificate);
}

#[tokio::test]
async fn tls_versions_and_suites_match_the_settings() {
    let suite = CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384;
    let settings = TlsSettings { tls12_suites: Some(vec![suite]), ..TlsSettings::default() };
    let server = Running::start(Some(settings), Duration::ZERO);
    let (stream, _) = handshake(server.extproc, &[&TLS12]).await.unwrap();
    assert_eq!(stream.get_ref().1.negotiated_cipher_suite().unwrap().suite(), suite);

    for settings in [
        TlsSettings { only_tls13: true, ..TlsSettings::default() },
        TlsSettings { tls12_suites: Some(Vec::new()), ..TlsSettings::default() },
    ] {
        let server = Running::start(Some(settings), Duration::ZERO);
        assert!(handshake(server.extproc, &[&TLS12]).await.is_err());
        assert!(handshake(server.extproc, &[&TLS13]).await.is_ok());
    }
}

#[tokio::test]
async fn a_certificate_from_files_is_shown() {
    let folder = tempdir().unwrap();
    let expected = write_pair(folder.path());
    let server = Running::start(Some(in_folder(folder.path())), Duration::ZERO);
    assert_eq!(handshake(server.extproc, &[&TLS13]).await.unwrap().1, expected);
}

#[test]
fn unusable_files_are_an_error_at_the_start() {
    let folder = tempdir().unwrap();
    let missing = Tls::new(&in_folder(folder.path())).unwrap_err().to_string();
    assert!(missing.contains("tls.crt") && missing.contains("--cert-path"), "{missing}");
    write_pair(folder.path());
    std::fs::write(folder.path().join("tls.key"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let mixed = Tls::new(&in_folder(folder.path())).unwrap_err().to_string();
    assert!(mixed.contains("can't be used together"), "{mixed}");
}

/// As Kubernetes mounts a secret: the files are links through a link that is swapped.
#[tokio::test]
async fn a_swapped_link_brings_the_new_certificate_in() {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let old = write_pair(&path("first"));
    std::os::unix::fs::symlink("first", path("..data")).unwrap();
    for name in ["tls.crt", "tls.key"] {
        std::os::unix::fs::symlink(format!("..data/{name}"), path(name)).unwrap();
    }
    let tls = Tls::new(&in_folder(folder.path())).unwrap();
    let shown = tls.certificate.clone();
    assert_eq!(shown.chain(), [old]);
    let watching = tokio::spawn(shown.clone().keep_fresh(Duration::from_millis(1)));

    let new = write_pair(&path("second"));
    std::os::unix::fs::symlink("second", path("..new")).unwrap();
    std::fs::rename(path("..new"), path("..data")).unwrap();
    let replaced = async {
        while shown.chain() != [new.clone()] {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), replaced).await.expect("still the old certificate");
    watching.abort();
}

#[tokio::test]
async fn a_replaced_certificate_is_shown_to_new_connections() {
    let folder = tempdir().unwrap();
    let old = write_pair(folder.path());
    let settings = TlsSettings { reload: true, ..in_folder(folder.path()) };
    let server = Running::start(Some(settings), Duration::ZERO);
    let mut call = Call::open(&secure(server.extproc).await).await;
    assert_eq!(handshake(server.extproc, &[&TLS13]).await.unwrap().1, old);
    let new = write_pair(folder.path());
    let mut tries = 0;
    while handshake(server.extproc, &[&TLS13]).await.unwrap().1 != new {
        tries += 1;
        assert!(tries < 100_000, "still the old certificate");
    }
    // The connection from before lives on.
    call.exchange().await.unwrap();
}

#[tokio::test]
async fn a_self_signed_certificate_is_not_watched() {
    let tls = Tls::new(&TlsSettings::default()).unwrap();
    Arc::clone(&tls.certificate).keep_fresh(Duration::from_secs(1)).await;
}
