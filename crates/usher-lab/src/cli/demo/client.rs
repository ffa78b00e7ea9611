//! The requests of the demo.

use std::net::SocketAddr;

use anyhow::Context;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request};
use http_body_util::Full;
use serde_json::Value;

use crate::load::client;
pub(super) use crate::load::client::Response;

/// Makes a simulated server respond before its engine sees the request.
const FAULT: HeaderName = HeaderName::from_static("x-sim-fault");
const AT_ONCE: HeaderValue = HeaderValue::from_static("status=200");

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// A page of every model server, which costs it nothing.
pub(super) const MODELS: &str = "/v1/models";

/// Sends requests over connections that it keeps.
#[derive(Debug, Clone, Default)]
pub(super) struct Client {
    client: client::Client,
}

impl Client {
    /// A chat request.
    ///
    /// # Errors
    /// Returns an error unless a complete response arrives.
    pub(super) async fn chat(&self, to: SocketAddr, body: Bytes) -> anyhow::Result<Response> {
        Ok(self.client.send(request(to, Method::POST, CHAT, body)?).await?)
    }

    /// A request for a completion.
    ///
    /// # Errors
    /// Returns an error unless a complete response arrives.
    pub(super) async fn completion(&self, to: SocketAddr, body: Bytes) -> anyhow::Result<Response> {
        Ok(self.client.send(request(to, Method::POST, COMPLETIONS, body)?).await?)
    }

    /// A chat request that the simulated server responds to at once, without work.
    ///
    /// # Errors
    /// Returns an error unless a complete response arrives.
    pub(super) async fn probe(&self, to: SocketAddr, body: Bytes) -> anyhow::Result<Response> {
        let mut request = request(to, Method::POST, CHAT, body)?;
        request.headers_mut().insert(FAULT, AT_ONCE);
        Ok(self.client.send(request).await?)
    }

    /// Any page.
    ///
    /// # Errors
    /// Returns an error unless a complete response arrives.
    pub(super) async fn get(&self, to: SocketAddr, path: &str) -> anyhow::Result<Response> {
        Ok(self.client.send(request(to, Method::GET, path, Bytes::new())?).await?)
    }

    /// Fetches a page as text.
    ///
    /// # Errors
    /// Returns an error if no page arrives.
    pub(super) async fn text(&self, to: SocketAddr, path: &str) -> anyhow::Result<String> {
        let body = self.client.fetch(request(to, Method::GET, path, Bytes::new())?).await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Posts to a page.
    ///
    /// # Errors
    /// Returns an error unless a complete response with status 200 arrives.
    pub(super) async fn post(&self, to: SocketAddr, path: &str, body: Bytes) -> anyhow::Result<()> {
        let response = self.client.send(request(to, Method::POST, path, body)?).await?;
        anyhow::ensure!(
            response.status == 200,
            "http://{to}{path} responded with {}: {}",
            response.status,
            response.reason
        );
        Ok(())
    }

    /// Fetches a page of JSON.
    ///
    /// # Errors
    /// Returns an error if no page arrives, or it isn't JSON.
    pub(super) async fn json(&self, to: SocketAddr, path: &str) -> anyhow::Result<Value> {
        let body = self.client.fetch(request(to, Method::GET, path, Bytes::new())?).await?;
        serde_json::from_slice(&body).with_context(|| format!("http://{to}{path} is no JSON"))
    }
}

fn request(to: SocketAddr, method: Method, path: &str, body: Bytes) -> anyhow::Result<Request<Full<Bytes>>> {
    let url = format!("http://{to}{path}");
    client::request(&url, method, body).with_context(|| format!("no request to {url}"))
}
