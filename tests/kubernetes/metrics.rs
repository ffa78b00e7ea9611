//! Authentication and authorization of clients that read the metrics.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::objects::{least, reading, reviews, user};
use crate::picker::Picker;
use crate::server::Server;
use crate::support::eventually;

/// Asks for the metrics: status and the rest of the response.
async fn ask_over(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    token: Option<&str>,
) -> std::io::Result<(u16, String)> {
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request = format!("GET /metrics HTTP/1.1\r\nhost: x\r\n{token}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    // A server that ends a TLS session without a word has still responded.
    let _ = stream.read_to_string(&mut response).await;
    let status = response.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or(std::io::ErrorKind::UnexpectedEof)?, response))
}

async fn ask(picker: &Picker, token: Option<&str>) -> (u16, String) {
    ask_over(TcpStream::connect(picker.metrics).await.unwrap(), token).await.unwrap()
}

/// The metrics of a picker that everybody may read.
pub(crate) async fn page(picker: &Picker) -> String {
    let (status, page) = ask(picker, None).await;
    assert_eq!(status, 200, "{page}");
    page
}

async fn becomes(picker: &Picker, token: &str, status: u16) {
    let what = format!("{token} to be answered {status}");
    eventually(&what, async || (ask(picker, Some(token)).await.0 == status).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_readers_are_authorized_by_kubernetes() {
    let Some(mut server) = Server::own().await else { return };
    let space = server.space(&least()).await;
    let picker = Picker::of_pool(&server, &space, &["-v=5"]).await;

    // The picker itself may not ask yet.
    let (status, response) = ask(&picker, Some("token-scraper")).await;
    assert!(status == 503 && response.contains("retry-after: 5\r\n"), "{response}");
    picker
        .says(&[
            "access denied to the Kubernetes API",
            "tokenreviews",
            "ClusterRole",
            "--metrics-endpoint-auth=false",
        ])
        .await;
    // As Prometheus comes: with the token of its service account.
    let (monitoring, other) =
        (space.service_account("prometheus").await, space.service_account("other").await);
    let subject = json!({"kind": "ServiceAccount", "name": "prometheus", "namespace": space.name});
    server.grant_everywhere("monitoring", subject, &reading()).await;
    server.may_read(&format!("system:serviceaccount:{}:prometheus", space.name)).await;
    server.grant_everywhere("reading", user("scraper"), &reading()).await;
    server.may_read("scraper").await;
    server.grant_everywhere("reviews", user("epp"), &reviews()).await;
    becomes(&picker, "token-scraper", 200).await;
    let (_, page) = ask(&picker, Some("token-scraper")).await;
    assert!(page.contains("llm_d_epp_info"), "{page}");

    let (status, response) = ask(&picker, Some("token-stranger")).await;
    assert!(status == 403 && response.contains("stranger may not get /metrics"), "{response}");
    picker.says(&["may not read metrics", "stranger"]).await;
    let (status, response) = ask(&picker, Some("token-wrong")).await;
    assert!(status == 401 && response.contains("www-authenticate: Bearer\r\n"), "{response}");
    assert_eq!(ask(&picker, None).await.0, 401);

    assert_eq!(ask(&picker, Some(&monitoring)).await.0, 200);
    assert_eq!(ask(&picker, Some(&other)).await.0, 403);
    let (_, page) = ask(&picker, Some("token-scraper")).await;
    for (reason, count) in [("unauthenticated", "2"), ("denied", "2")] {
        let refused = format!("usher_metrics_refused_total{{reason=\"{reason}\"}} {count}\n");
        assert!(page.contains(&refused), "no {refused}: {page}");
    }
    assert!(
        !page.contains("usher_metrics_refused_total{reason=\"unavailable\"} 0\n"),
        "it may not ask at first"
    );

    // What was allowed just now counts on; nobody else gets in.
    server.down();
    assert_eq!(ask(&picker, Some("token-scraper")).await.0, 200);
    assert_eq!(ask(&picker, Some(&monitoring)).await.0, 200);
    assert_eq!(ask(&picker, Some("token-wrong-again")).await.0, 503);
    assert_eq!(ask(&picker, Some("token-admin")).await.0, 503);
    picker.says(&["cannot authorize metrics readers with the Kubernetes API server"]).await;
    server.up().await;
    becomes(&picker, "token-admin", 200).await;
    for secret in ["token-scraper", "token-stranger", "token-wrong", "token-admin", &monitoring, &other] {
        assert!(!picker.log.mentions(secret), "{secret} is in the log");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_open_with_authorization_disabled() {
    let Some(server) = Server::shared().await else { return };
    let space = server.space(&least()).await;
    let picker = Picker::of_pool(server, &space, &["--metrics-endpoint-auth=false"]).await;
    assert_eq!(ask(&picker, None).await.0, 200);
    assert_eq!(ask(&picker, Some("token-wrong")).await.0, 200);
}

/// An authority that signs certificates.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate for a name and its key, both in PEM.
    fn sign(&self, usage: ExtendedKeyUsagePurpose, name: &str) -> (String, String) {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, "monitoring");
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    /// The certificate of a server, into a folder.
    fn serve_from(&self, folder: &Path) {
        let (certificate, key) = self.sign(ExtendedKeyUsagePurpose::ServerAuth, "metrics");
        std::fs::write(folder.join("tls.crt"), certificate).unwrap();
        std::fs::write(folder.join("tls.key"), key).unwrap();
    }
}

/// Asks over TLS, checks the server's certificate with one authority, and shows one that
/// another has signed.
async fn ask_with(
    picker: &Picker,
    servers: &Authority,
    client: Option<(&Authority, &str)>,
    token: Option<&str>,
) -> std::io::Result<(u16, String)> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(servers.pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match client {
        None => config.with_no_client_auth(),
        Some((authority, name)) => {
            let (certificate, key) = authority.sign(ExtendedKeyUsagePurpose::ClientAuth, name);
            let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            config.with_client_auth_cert(vec![certificate], key).unwrap()
        }
    };
    let SocketAddr::V4(address) = picker.metrics else { panic!("not on 127.0.0.1") };
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::from(std::net::IpAddr::from(*address.ip()));
    ask_over(TlsConnector::from(Arc::new(config)).connect(name, stream).await?, token).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_certificate_identifies_the_metrics_reader() {
    let Some(server) = Server::shared().await else { return };
    server.grant_everywhere("tls-reviews", user("epp"), &reviews()).await;
    let group = json!({"kind": "Group", "name": "monitoring", "apiGroup": "rbac.authorization.k8s.io"});
    server.grant_everywhere("tls-user", user("tls-reader"), &reading()).await;
    let space = server.space(&least()).await;
    let (ours, servers, theirs) = (Authority::new(), Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    servers.serve_from(folder.path());
    let ca = folder.path().join("clients.pem");
    std::fs::write(&ca, &ours.pem).unwrap();
    let (cert_dir, client_ca) = (
        format!("--metrics-cert-dir={}", folder.path().display()),
        format!("--metrics-client-ca-file={}", ca.display()),
    );
    let picker = Picker::of_pool(server, &space, &[&cert_dir, &client_ca]).await;
    let status = async |client, token| match ask_with(&picker, &servers, client, token).await {
        Ok((status, _)) => status,
        Err(_) => 0,
    };
    server.may_read("tls-reader").await;
    eventually("the picker to be allowed to ask", async || {
        (status(Some((&ours, "tls-reader")), None).await == 200).then_some(())
    })
    .await;
    assert_eq!(status(Some((&ours, "nobody")), None).await, 403);
    // Whoever sends a token, too, is whom it names.
    assert_eq!(status(Some((&ours, "nobody")), Some("token-admin")).await, 200);
    assert_eq!(status(Some((&ours, "tls-reader")), Some("token-wrong")).await, 401);
    // Without a certificate of ours there is no connection, whatever the token.
    assert_eq!(status(None, Some("token-admin")).await, 0);
    assert_eq!(status(Some((&theirs, "tls-reader")), Some("token-admin")).await, 0);
    assert!(ask_with(&picker, &theirs, Some((&ours, "tls-reader")), None).await.is_err());

    // A group of the certificate counts, and other files do when they are there.
    server.grant_everywhere("tls-group", group, &reading()).await;
    let mut both = ours.pem.clone();
    both.push_str(&theirs.pem);
    std::fs::write(&ca, both).unwrap();
    eventually("another authority to be trusted", async || {
        (status(Some((&theirs, "somebody")), None).await == 200).then_some(())
    })
    .await;
    theirs.serve_from(folder.path());
    eventually("another certificate to be shown", async || {
        ask_with(&picker, &theirs, Some((&ours, "tls-reader")), None).await.ok()
    })
    .await;

    // Without the API server's word the certificate is enough.
    let alone = [cert_dir.as_str(), client_ca.as_str(), "--metrics-endpoint-auth=false"];
    let picker = Picker::of_pool(server, &space, &alone).await;
    let client = Some((&ours, "nobody"));
    assert_eq!(ask_with(&picker, &theirs, client, None).await.unwrap().0, 200);
    assert!(ask_with(&picker, &theirs, None, None).await.is_err());
}
