//! The metrics port over TLS, without anybody to ask who may read.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tempfile::tempdir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use usher::observe::feed::{Feed, State};
use usher::observe::http::{Asset, HttpServer, Protection, Routes};
use usher::observe::tls::MetricsTls;
use usher::settings::MetricsTlsSettings;

use crate::support::listener;

pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate and its key in PEM.
    pub(crate) fn sign(&self, usage: ExtendedKeyUsagePurpose) -> (String, String) {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

fn serve(folder: &Path, authority: &Authority, client_ca: Option<&Authority>) -> (HttpServer, SocketAddr) {
    serve_routes(Routes::new().with_metrics(|| "up 1\n"), folder, authority, client_ca)
}

fn serve_routes(
    routes: Routes,
    folder: &Path,
    authority: &Authority,
    client_ca: Option<&Authority>,
) -> (HttpServer, SocketAddr) {
    let (certificate, key) = authority.sign(ExtendedKeyUsagePurpose::ServerAuth);
    std::fs::write(folder.join("tls.crt"), certificate).unwrap();
    std::fs::write(folder.join("tls.key"), key).unwrap();
    let client_ca = client_ca.map(|authority| {
        let path = folder.join("ca.pem");
        std::fs::write(&path, &authority.pem).unwrap();
        path
    });
    let tls = MetricsTls::new(&MetricsTlsSettings { cert_dir: Some(folder.to_owned()), client_ca }).unwrap();
    let protection = Protection { tls: Some(Arc::new(tls)), ..Protection::default() };
    let listener = listener();
    let address = listener.local_addr().unwrap();
    (HttpServer::start_protected(listener, routes, protection).unwrap(), address)
}

#[tokio::test]
async fn changed_client_ca_file_is_reloaded() {
    let (folder, ours, old, new) = (tempdir().unwrap(), Authority::new(), Authority::new(), Authority::new());
    let (certificate, key) = ours.sign(ExtendedKeyUsagePurpose::ServerAuth);
    std::fs::write(folder.path().join("tls.crt"), certificate).unwrap();
    std::fs::write(folder.path().join("tls.key"), key).unwrap();
    let path = folder.path().join("ca.pem");
    std::fs::write(&path, &old.pem).unwrap();
    let settings =
        MetricsTlsSettings { cert_dir: Some(folder.path().to_owned()), client_ca: Some(path.clone()) };
    let tls = Arc::new(MetricsTls::new(&settings).unwrap());
    let watching = tokio::spawn(Arc::clone(&tls).keep_fresh(std::time::Duration::from_millis(1)));
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let protection = Protection { tls: Some(tls), ..Protection::default() };
    let _server =
        HttpServer::start_protected(listener, Routes::new().with_metrics(|| "up 1\n"), protection).unwrap();
    let with = async |client| {
        let client = Some((client, ExtendedKeyUsagePurpose::ClientAuth));
        ask(address, &ours, client, &[&TLS13]).await.is_ok_and(|response| response.ends_with("up 1\n"))
    };
    assert!(with(&old).await && !with(&new).await);
    std::fs::write(&path, &new.pem).unwrap();
    let replaced = async { while !with(&new).await {} };
    tokio::time::timeout(crate::support::PATIENCE, replaced).await.unwrap();
    assert!(!with(&old).await);
    watching.abort();
}

/// Asks for the metrics with a certificate that `client` has signed for this use.
pub(crate) async fn ask(
    address: SocketAddr,
    trusted: &Authority,
    client: Option<(&Authority, ExtendedKeyUsagePurpose)>,
    versions: &[&'static SupportedProtocolVersion],
) -> std::io::Result<String> {
    let mut stream = begin(address, "/metrics", trusted, client, versions).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    Ok(response)
}

async fn begin(
    address: SocketAddr,
    path: &str,
    trusted: &Authority,
    client: Option<(&Authority, ExtendedKeyUsagePurpose)>,
    versions: &[&'static SupportedProtocolVersion],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    let config = match client {
        None => config.with_no_client_auth(),
        Some((authority, usage)) => {
            let (certificate, key) = authority.sign(usage);
            let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            config.with_client_auth_cert(vec![certificate], key).unwrap()
        }
    };
    let stream = TcpStream::connect(address).await?;
    let connector = TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(ServerName::from(address.ip()), stream).await?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await?;
    Ok(stream)
}

#[tokio::test]
async fn event_stream_needs_a_client_certificate() {
    const PAGE: Asset = Asset { path: "/", content_type: "text/html", text: "" };
    let (folder, ours, clients) = (tempdir().unwrap(), Authority::new(), Authority::new());
    let feed = Feed::new(Arc::default(), || {
        let mut number = 0;
        Box::new(move || {
            number += 1;
            State { full: format!("all {number}"), change: (number > 1).then(|| format!("change {number}")) }
        })
    });
    let routes = Routes::new().with_page_for_browsers(&PAGE, &[], ("/events", Arc::new(feed)));
    let (server, address) = serve_routes(routes, folder.path(), &ours, Some(&clients));
    let with = async |client| begin(address, "/events", &ours, client, &[&TLS13]).await;
    let mut stream = with(Some((&clients, ExtendedKeyUsagePurpose::ClientAuth))).await.unwrap();
    let mut text = String::new();
    while !text.contains("data: change 2\n\n") {
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).await.unwrap();
        assert!(read > 0, "{text}");
        text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
    assert!(text.starts_with("HTTP/1.1 200 ") && text.contains("data: all 1\n\n"), "{text}");
    let refused = async {
        let mut response = Vec::new();
        with(None).await?.read_to_end(&mut response).await
    };
    assert!(refused.await.is_err());
    // A stream ends with the server, as a whole.
    server.stop().await;
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.unwrap();
    assert!(rest.ends_with("0\r\n\r\n"), "{rest}");
}

#[tokio::test]
async fn metrics_are_served_over_tls() {
    let (folder, ours) = (tempdir().unwrap(), Authority::new());
    let (server, address) = serve(folder.path(), &ours, None);
    for version in [&TLS12, &TLS13] {
        let response = ask(address, &ours, None, &[version]).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 200 ") && response.ends_with("up 1\n"), "{response}");
    }
    assert!(ask(address, &Authority::new(), None, &[&TLS13]).await.is_err());
    // Plain text gets nowhere, and whoever says nothing doesn't hold up the end.
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut response = Vec::new();
    let _ = plain.read_to_end(&mut response).await;
    assert!(!response.starts_with(b"HTTP"), "{response:?}");
    let _silent = TcpStream::connect(address).await.unwrap();
    let stop = tokio::time::timeout(crate::support::PATIENCE, server.stop());
    stop.await.unwrap();
}

#[tokio::test]
async fn only_client_certificates_of_the_client_ca_are_accepted() {
    use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    let (folder, ours, clients) = (tempdir().unwrap(), Authority::new(), Authority::new());
    let (_server, address) = serve(folder.path(), &ours, Some(&clients));
    for version in [&TLS12, &TLS13] {
        let with = async |client| ask(address, &ours, client, &[version]).await;
        assert!(with(Some((&clients, ClientAuth))).await.unwrap().ends_with("up 1\n"));
        assert!(with(None).await.is_err());
        assert!(with(Some((&ours, ClientAuth))).await.is_err());
        assert!(with(Some((&clients, ServerAuth))).await.is_err());
    }
}
