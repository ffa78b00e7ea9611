//! Gateways that have to show a certificate, and one that has none.

use http::Request;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

use crate::support::client::{self, Protocol};
use crate::support::envoy::Envoy;
use crate::traffic::{chat, post_chat};
use crate::{ORIGINAL_DST, Stack};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_gateway_with_a_certificate_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    std::fs::write(path("ca.pem"), authority.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(authority, key);
    let mut gateway = CertificateParams::new(vec!["gateway".to_owned()]).unwrap();
    gateway.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    std::fs::write(path("gateway.crt"), gateway.signed_by(&key, &issuer).unwrap().pem()).unwrap();
    std::fs::write(path("gateway.key"), key.serialize_pem()).unwrap();

    let closed = ("failure_mode_allow: true", "failure_mode_allow: false");
    let shown = format!(
        "          alpn_protocols: [h2]\n          tls_certificates:\n          - certificate_chain: {{ filename: {} }}\n            private_key: {{ filename: {} }}\n",
        path("gateway.crt"),
        path("gateway.key")
    );
    let certificate = ("          alpn_protocols: [h2]\n", &*shown);
    let flag = format!("--client-ca-path={}", path("ca.pem"));
    let stack = Stack::start(ORIGINAL_DST, &[&flag], &[closed, certificate]).await;
    stack.envoy.picker_is(true).await;
    let response = client::send(stack.envoy.address, Protocol::Http1, post_chat(chat(50))).await;
    assert_eq!(response.status, 200, "{response:?}");

    let stranger = Envoy::start(ORIGINAL_DST, stack.usher.address, &stack.servers.addresses, &[closed]).await;
    stranger.picker_is(false).await;
    let request = Request::get("/v1/models").body(client::empty()).unwrap();
    assert_eq!(client::send(stranger.address, Protocol::Http1, request).await.status, 503);
}
