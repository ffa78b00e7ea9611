//! The client: one request, and what its answer was.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client as Pool, Error as PoolError};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::request::usage::{Usage, UsageScanner};

/// In which a simulated server names itself.
const POD: HeaderName = HeaderName::from_static("x-inference-pod");

/// Makes a simulated server answer before its engine sees the request.
const FAULT: HeaderName = HeaderName::from_static("x-sim-fault");
const AT_ONCE: HeaderValue = HeaderValue::from_static("status=200");

/// A request that takes longer than this has failed.
const TIMEOUT: Duration = Duration::from_secs(60);

const CHAT: &str = "/v1/chat/completions";

/// A page of every model server, which costs it nothing.
pub(super) const MODELS: &str = "/v1/models";

/// An answer, complete.
#[derive(Debug)]
pub(super) struct Answer {
    /// HTTP status.
    pub(super) status: u16,
    /// The server that answered.
    pub(super) pod: Option<String>,
    /// When the first byte of the body came.
    pub(super) first: Option<Instant>,
    /// Tokens, as the server counted them.
    pub(super) usage: Usage,
}

/// Sends requests over connections that it keeps.
#[derive(Debug, Clone)]
pub(super) struct Client {
    pool: Pool<HttpConnector, Full<Bytes>>,
}

impl Client {
    pub(super) fn new() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let pool = Pool::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        Self { pool }
    }

    /// A chat request.
    ///
    /// # Errors
    /// When no whole answer came.
    pub(super) async fn chat(&self, to: SocketAddr, body: Bytes) -> anyhow::Result<Answer> {
        self.send(request(to, Method::POST, CHAT, body)?).await
    }

    /// A chat request that the simulated server answers at once, without work.
    ///
    /// # Errors
    /// When no whole answer came.
    pub(super) async fn probe(&self, to: SocketAddr, body: Bytes) -> anyhow::Result<Answer> {
        let mut request = request(to, Method::POST, CHAT, body)?;
        request.headers_mut().insert(FAULT, AT_ONCE);
        self.send(request).await
    }

    /// Any page.
    ///
    /// # Errors
    /// When no whole answer came.
    pub(super) async fn get(&self, to: SocketAddr, path: &str) -> anyhow::Result<Answer> {
        self.send(request(to, Method::GET, path, Bytes::new())?).await
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> anyhow::Result<Answer> {
        tokio::time::timeout(TIMEOUT, self.exchange(request))
            .await
            .with_context(|| format!("no whole answer within {} s", TIMEOUT.as_secs()))?
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> anyhow::Result<Answer> {
        let response = self.pool.request(request).await.map_err(innermost)?;
        let status = response.status().as_u16();
        let pod = response.headers().get(POD).and_then(|name| name.to_str().ok()).map(str::to_owned);
        let mut body = response.into_body();
        let (mut first, mut usage) = (None, UsageScanner::default());
        while let Some(frame) = body.frame().await {
            let frame = frame.context("the answer broke off")?;
            if let Some(data) = frame.data_ref().filter(|data| !data.is_empty()) {
                first.get_or_insert_with(Instant::now);
                usage.feed(data);
            }
        }
        Ok(Answer { status, pod, first, usage: usage.found().unwrap_or_default() })
    }
}

fn request(to: SocketAddr, method: Method, path: &str, body: Bytes) -> anyhow::Result<Request<Full<Bytes>>> {
    let request = Request::builder().method(method).uri(format!("http://{to}{path}"));
    let request = request.header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(request.body(Full::new(body))?)
}

/// The client's error only says at which step it was; why is at the end of its causes.
fn innermost(error: PoolError) -> anyhow::Error {
    let cause = anyhow::Error::from(error).root_cause().to_string();
    anyhow::Error::msg(cause)
}
