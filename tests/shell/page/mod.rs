//! The page for browsers on the admin port, in a real browser.

mod barriers;
mod browser;
mod decisions;
mod endpoints;
mod events;
mod proxy;
mod screenshot;
mod serving;
mod state;
mod tabs;
mod troubles;

use std::net::SocketAddr;

use crate::support::listener;
use crate::support::servers::Servers;
use crate::support::usher::Usher;
use crate::wire::{self, Connection, Stream};
use browser::Browser;

/// A picker whose admin port stays the same when it is started again, and its page in a browser.
struct Stack {
    usher: Usher,
    admin: SocketAddr,
    browser: Browser,
    servers: Servers,
}

impl Stack {
    /// Starts a picker over four simulated servers with these flags, and opens its page; `None`: there is no browser
    /// on this machine.
    async fn start(flags: &[&str]) -> Option<Self> {
        Self::start_with_roles(&[], flags).await
    }

    /// The same, with a role for each server; without any if empty.
    async fn start_with_roles(roles: &[&str], flags: &[&str]) -> Option<Self> {
        Self::start_over(async || Servers::start().await, roles, flags).await
    }

    /// The same over servers that are started if there is a browser.
    async fn start_over(
        servers: impl AsyncFnOnce() -> Servers,
        roles: &[&str],
        flags: &[&str],
    ) -> Option<Self> {
        let browser = Browser::start(1280, 900).await?;
        let servers = servers().await;
        let (usher, admin) = start_with_roles(&servers.addresses, roles, flags).await;
        browser.open(&format!("http://{admin}/")).await;
        let stack = Self { usher, admin, browser, servers };
        stack.is_live().await;
        Some(stack)
    }

    async fn is_live(&self) {
        self.browser.until("document.querySelector('#connection')?.dataset.state === 'live'").await;
    }

    /// Sends a request with this id and model, and a response of status 200.
    async fn exchange(&self, id: &str, model: &str) {
        exchange(&Connection::to(self.usher.address).await, id, model).await;
    }

    /// Asserts that nothing went wrong in the browser, and that it asked nobody else.
    fn assert_quiet(&self) {
        assert_eq!(self.browser.errors(true), Vec::<String>::new());
        let own = format!("http://{}/", self.admin);
        let requests = self.browser.requests();
        let others: Vec<_> = requests.iter().filter(|url| !url.starts_with(&own)).collect();
        assert!(others.is_empty() && !requests.is_empty(), "{others:?}");
    }
}

/// A picker over these endpoints, and its admin port, which it has again after a restart.
async fn start(endpoints: &[SocketAddr], flags: &[&str]) -> (Usher, SocketAddr) {
    start_with_roles(endpoints, &[], flags).await
}

async fn start_with_roles(endpoints: &[SocketAddr], roles: &[&str], flags: &[&str]) -> (Usher, SocketAddr) {
    let admin = listener().local_addr().unwrap();
    let port = format!("--admin-address={admin}");
    let own =
        [port.as_str(), "--secure-serving=false", "--drain-timeout=0s", "--refresh-metrics-interval=200ms"];
    let flags = [&own, flags].concat();
    let usher = match roles {
        [] => Usher::start(endpoints, &flags).await,
        roles => Usher::start_with_roles(endpoints, roles, &flags).await,
    };
    (usher, admin)
}

/// Sends a request with this id and model, and a streamed response of status 200.
async fn exchange(connection: &Connection, id: &str, model: &str) {
    respond(request(connection, id, model).await).await;
}

/// Sends a request with this id and model.
async fn request(connection: &Connection, id: &str, model: &str) -> Stream {
    let body = serde_json::json!({"model": model, "prompt": "a secret", "stream": true, "max_tokens": 9});
    request_of(connection, id, &body).await
}

/// Sends a request with this id and body.
async fn request_of(connection: &Connection, id: &str, body: &serde_json::Value) -> Stream {
    let mut stream = connection.stream().await;
    stream.send(wire::headers(&[(":path", "/v1/completions"), ("x-request-id", id)], false));
    stream.send(wire::body(body.to_string(), true));
    stream.request_headers().await;
    stream.request_body().await;
    stream
}

/// Usage of which half of the prompt was cached.
const HALF_CACHED: &str =
    r#"{"prompt_tokens":8,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}"#;

/// Sends a streamed response of status 200.
async fn respond(stream: Stream) {
    respond_with(stream, HALF_CACHED).await;
}

/// The same, with this usage.
async fn respond_with(mut stream: Stream, usage: &str) {
    let headers = [(":status", "200"), ("content-type", "text/event-stream")];
    stream.send(wire::response_headers(&headers, false));
    stream.response_headers().await;
    stream.send(wire::response_body("data: {\"choices\":[{\"text\":\"x\"}]}\n\n", false));
    stream.response_body().await;
    let last = format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\ndata: [DONE]\n\n");
    stream.send(wire::response_body(last, true));
    stream.response_body().await;
}
