//! The page under a path of a proxy that ends TLS: a real Envoy.

use std::net::SocketAddr;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rcgen::{CertificateParams, KeyPair, PublicKeyData};
use serde_json::{Value, json};

use super::browser::Browser;
use super::{exchange, start};
use crate::support::envoy::{AccessLine, Envoy};
use crate::support::servers::Servers;
use crate::support::usher::Usher;
use crate::wire::Connection;

/// A picker, and its page in a browser at `/usher/` of a proxy.
struct Stack {
    usher: Usher,
    envoy: Envoy,
    browser: Browser,
    /// Address of the page.
    page: String,
    _servers: Servers,
}

impl Stack {
    /// Starts a proxy with these filters before its router, and opens the page; `None`: there is no browser on this
    /// machine.
    async fn start(filters: &[Value]) -> Option<Self> {
        let key = KeyPair::generate().unwrap();
        let pin = BASE64_STANDARD.encode(digest(&SHA256, &key.subject_public_key_info()));
        // The browser trusts a certificate of this key.
        let trust = format!("--ignore-certificate-errors-spki-list={pin}");
        let browser = Browser::start_with(1280, 900, &[&trust]).await?;
        let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let tls = json!({
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context": {
                "alpn_protocols": ["h2", "http/1.1"],
                "tls_certificates": [{
                    "certificate_chain": {"inline_string": certificate.self_signed(&key).unwrap().pem()},
                    "private_key": {"inline_string": key.serialize_pem()},
                }],
            },
        });
        let servers = Servers::start().await;
        let (usher, admin) = start(&servers.addresses, &[]).await;
        let envoy = Envoy::run(1, &configuration(admin, &tls, filters).to_string()).await;
        let page = format!("https://{}/usher/", envoy.address);
        let stack = Self { usher, envoy, browser, page, _servers: servers };
        stack.browser.open(&stack.page).await;
        Some(stack)
    }

    /// Waits until the page shows states as they come, then a decision, and what explains it.
    async fn shows_a_decision(&self) {
        let browser = &self.browser;
        browser.until("document.querySelector('#connection')?.dataset.state === 'live'").await;
        exchange(&Connection::to(self.usher.address).await, "r-1", "llama").await;
        browser.until("document.querySelectorAll('#list-rows tr').length === 1").await;
        browser.value("document.querySelector('#list-rows a').click()").await;
        browser.until("document.querySelector('#explained table') !== null").await;
        browser.until("document.querySelector('#connection').dataset.state === 'live'").await;
    }

    /// Waits until a request for events with this query ends as the picker ends it: the proxy flags nothing.
    async fn events_end(&self, query: &str) {
        let path = format!("/usher/events{query}");
        let has_ended =
            |line: &AccessLine<'_>| (line.field("path") == path && line.field("flags") == "-").then_some(());
        self.envoy.access(0, "the end of events", has_ended).await;
    }

    /// Asserts that nothing went wrong in the browser, and that it asked for nothing beside the page.
    fn assert_quiet(&self) {
        assert_eq!(self.browser.errors(true), Vec::<String>::new());
        let requests = self.browser.requests();
        let own = self.page.trim_end_matches('/');
        let others: Vec<_> =
            requests.iter().filter(|url| *url != own && !url.starts_with(&self.page)).collect();
        assert!(others.is_empty() && !requests.is_empty(), "{others:?}");
    }
}

/// A proxy that strips the prefix `/usher`, with its usual limits on time.
fn configuration(admin: SocketAddr, tls: &Value, filters: &[Value]) -> Value {
    let local = |port: u16| json!({"socket_address": {"address": "127.0.0.1", "port_value": port}});
    let router = json!({
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
    });
    let filters: Vec<&Value> = filters.iter().chain([&router]).collect();
    let log = json!({
        "name": "envoy.access_loggers.stdout",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
            "log_format": {"text_format_source": {
                "inline_string": "path=%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% status=%RESPONSE_CODE% flags=%RESPONSE_FLAGS%\n",
            }},
        },
    });
    let routes = [json!({"prefix": "/usher/"}), json!({"path": "/usher"})].map(|matched| {
        json!({
            "match": matched,
            "route": {"cluster": "admin", "prefix_rewrite": "/", "host_rewrite_literal": admin.to_string()},
        })
    });
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "page",
        "access_log": [log],
        "route_config": {"virtual_hosts": [{"name": "page", "domains": ["*"], "routes": routes}]},
        "http_filters": filters,
    });
    let chain = json!({
        "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": tls},
        "filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}],
    });
    let endpoint = json!({"endpoint": {"address": local(admin.port())}});
    json!({
        "admin": {"address": local(0)},
        "static_resources": {
            "listeners": [{"name": "inference", "address": local(0), "filter_chains": [chain]}],
            "clusters": [{
                "name": "admin",
                "load_assignment": {"cluster_name": "admin", "endpoints": [{"lb_endpoints": [endpoint]}]},
            }],
        },
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_works_under_a_path_of_a_proxy_with_tls() {
    let Some(stack) = Stack::start(&[]).await else { return };
    stack.shows_a_decision().await;
    assert_eq!(stack.browser.value("location.hash").await, "#request=r-1");
    let policy = "fetch('./', {headers: {accept: 'text/html'}}).then((page) => page.headers.get('content-security-policy'))";
    let policy = stack.browser.value(policy).await;
    assert!(policy.as_str().unwrap().starts_with("default-src 'none'; script-src 'self'; style-src 'self';"));
    // A stream ends before the proxy cuts it off, and the page goes on.
    stack.events_end("").await;
    stack.browser.until("document.querySelector('#connection').dataset.state === 'live'").await;
    stack.browser.open(&format!("{}#request=r-1", stack.page)).await;
    stack.browser.until("document.querySelector('#explained')?.innerText.includes('asks for')").await;
    // Without the slash at its end, too.
    stack.browser.open(&format!("{}#request=r-1", stack.page.trim_end_matches('/'))).await;
    stack.browser.until("document.querySelector('#explained')?.innerText.includes('asks for')").await;
    assert_eq!(stack.browser.value("location.pathname").await, "/usher/");
    stack.assert_quiet();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_works_behind_a_proxy_that_buffers_responses() {
    let folder = tempfile::tempdir().unwrap();
    let buffer = json!({
        "name": "envoy.filters.http.file_system_buffer",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.file_system_buffer.v3.FileSystemBufferFilterConfig",
            "manager_config": {"thread_pool": {"thread_count": 1}},
            "storage_buffer_path": folder.path(),
            "request": {"behavior": {"bypass": {}}},
            "response": {"behavior": {"fully_buffer": {}}},
        },
    });
    let Some(stack) = Stack::start(&[buffer]).await else { return };
    stack.shows_a_decision().await;
    stack.events_end("?once").await;
    stack.assert_quiet();
}
