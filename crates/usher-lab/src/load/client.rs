//! A gateway or a model server as the target: requests over HTTP/1.1, on connections
//! that are kept.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Method, Request};
use http_body_util::{BodyExt, Collected, Full};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client as Pool, Error as PoolError};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::failure::Failure;
use usher_core::request::usage::{Usage, UsageScanner};

/// In which who served is named: by a gateway, or by the server itself.
const SERVED: HeaderName = HeaderName::from_static("x-gateway-destination-endpoint-served");
const POD: HeaderName = HeaderName::from_static("x-inference-pod");

/// Header with the reason for which a picker refused a request.
const REASON: HeaderName = HeaderName::from_static("x-llm-d-request-dropped-reason");

/// A request that takes longer than this has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of a refusal's body that are kept.
const MOST_REASON: usize = 200;

/// A response, complete.
#[derive(Debug)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// The server that responded, if it is named.
    pub pod: Option<String>,
    /// Time at which the first byte of the body came.
    pub first: Option<Instant>,
    /// Tokens, as the server counted them.
    pub usage: Usage,
    /// Reason for a status other than 2xx, from a header or else from the start of the body.
    pub reason: String,
}

/// Sends requests over connections that it keeps.
#[derive(Debug, Clone)]
pub struct Client {
    pool: Pool<HttpConnector, Full<Bytes>>,
}

impl Default for Client {
    fn default() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let pool = Pool::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        Self { pool }
    }
}

impl Client {
    /// Sends a request and reads its response to the end, whatever its status.
    ///
    /// # Errors
    /// `Failure` unless a complete response arrives within a minute.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response, Failure> {
        tokio::time::timeout(PATIENCE, self.exchange(request)).await.unwrap_or_else(|_| Err(late()))
    }

    /// Sends a request and gives the body of its response, whatever its status: a page that
    /// one asks for, and no response to measure.
    ///
    /// # Errors
    /// `Failure` unless a complete response arrives within a minute.
    pub async fn fetch(&self, request: Request<Full<Bytes>>) -> Result<Bytes, Failure> {
        let exchange = async {
            let response = self.pool.request(request).await.map_err(|error| innermost(&error))?;
            let body = response.into_body().collect().await;
            body.map(Collected::to_bytes)
                .map_err(|_| Failure::new("connection-lost", "the response broke off"))
        };
        tokio::time::timeout(PATIENCE, exchange).await.unwrap_or_else(|_| Err(late()))
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Response, Failure> {
        let response = self.pool.request(request).await.map_err(|error| innermost(&error))?;
        let text =
            |name| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let mut complete = Response {
            status: response.status().as_u16(),
            pod: text(SERVED).or_else(|| text(POD)),
            first: None,
            usage: Usage::default(),
            reason: text(REASON).unwrap_or_default(),
        };
        let explain = !response.status().is_success() && complete.reason.is_empty();
        let (mut body, mut usage, mut said) = (response.into_body(), UsageScanner::default(), Vec::new());
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Failure::new("connection-lost", "the response broke off"))?;
            if let Some(data) = frame.data_ref().filter(|data| !data.is_empty()) {
                complete.first.get_or_insert_with(Instant::now);
                usage.feed(data);
                if explain && said.len() < MOST_REASON {
                    said.extend_from_slice(&data[..data.len().min(MOST_REASON)]);
                }
            }
        }
        complete.usage = usage.found().unwrap_or_default();
        if explain {
            complete.reason = String::from_utf8_lossy(&said).into_owned();
        }
        Ok(complete)
    }
}

/// A request with a body of JSON.
///
/// # Errors
/// `http::Error` if `url` is not valid.
pub fn request(url: &str, method: Method, body: Bytes) -> http::Result<Request<Full<Bytes>>> {
    let request = Request::builder().method(method).uri(url);
    request.header(CONTENT_TYPE, HeaderValue::from_static("application/json")).body(Full::new(body))
}

fn late() -> Failure {
    Failure::new("timeout", format!("no whole response within {} s", PATIENCE.as_secs()))
}

/// The client's error only says at which step it was; why is at the end of its causes.
fn innermost(error: &PoolError) -> Failure {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    match cause.downcast_ref::<std::io::Error>() {
        Some(io) => Failure::of_io(io),
        None => Failure::new("connection-lost", cause.to_string()),
    }
}
