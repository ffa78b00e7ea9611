//! Asks a server for the tokens of prompts.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use usher_core::endpoints::Candidates;
use usher_core::request::Body;
use usher_plugin::data::PromptTokenIds;
use usher_plugin::{Finding, Gatherer, Situation};

use super::failure::Failure;
use super::keys::Keys;
use super::metrics::RenderCounts;
use super::params::RenderParams;
use super::render;

/// Bytes of a response at most: so many, for what templates and images add, and so many per byte of the call, as a
/// token's number may take more than its text.
const RESPONSE: usize = 4 << 20;
const RESPONSE_PER_BYTE: usize = 16;
const MAX_RESPONSE: usize = 64 << 20;
/// Bytes of JSON from which on it is written and read on a thread of its own.
const APART: usize = 256 << 10;
/// Idle connections, and how long they stay.
const IDLE: usize = 16;
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Holds requests until a server has told their tokens, or a time is over.
#[derive(Debug)]
pub(super) struct Renderer {
    client: Client<HttpConnector, Full<Bytes>>,
    url: String,
    model: String,
    timeout: Duration,
    mm_timeout: Duration,
    keys: Keys,
    counts: Arc<RenderCounts>,
}

impl Renderer {
    /// Asks with this model, and says what it found under `keys`.
    pub(super) fn new(params: &RenderParams, model: String, keys: Keys, counts: RenderCounts) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(IDLE)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_timer(TokioTimer::new())
            .build(connector);
        let url = params.url.trim_end_matches('/').to_owned();
        let (timeout, mm_timeout) = (params.timeout, params.mm_timeout);
        Self { client, url, model, timeout, mm_timeout, keys, counts: Arc::new(counts) }
    }

    /// URI that renders the tokens of a request; `None` where there is none for it.
    fn uri(&self, request: &usher_core::request::Request) -> Option<Uri> {
        format!("{}{}", self.url, render::path(request)?).parse().ok()
    }
}

impl Gatherer for Renderer {
    fn gather(&self, cx: &Situation<'_>, _candidates: &Candidates) -> Option<BoxFuture<'static, Finding>> {
        let uri = self.uri(cx.request)?;
        let body = cx.request.outgoing().into_owned();
        let model = self.model.clone();
        let request_id = cx.request.id().into_owned();
        let timeout = if cx.request.prompt.is_multimodal() { self.mm_timeout } else { self.timeout };
        let (client, counts, keys) = (self.client.clone(), Arc::clone(&self.counts), self.keys);
        let held = async move {
            let found = match tokio::time::timeout(timeout, ask(client, uri, (body, model))).await {
                Ok(Ok(found)) => {
                    counts.rendered.inc();
                    Some(found)
                }
                Ok(Err(failure)) => {
                    counts.failed.inc();
                    counts.tell(&failure, &request_id);
                    None
                }
                Err(_) => {
                    counts.late.inc();
                    None
                }
            };
            keys.finding(found)
        };
        Some(held.boxed())
    }
}

/// The tokens that a server tells of a request's body, with this model.
async fn ask(
    client: Client<HttpConnector, Full<Bytes>>,
    uri: Uri,
    (body, model): (Body, String),
) -> Result<PromptTokenIds, Failure> {
    let len = body.len();
    let body = apart(len, move || render::body(body, &model)).await;
    let body = body.ok_or(Failure::Unreadable("request"))?;
    let most = body.len().saturating_mul(RESPONSE_PER_BYTE).saturating_add(RESPONSE).min(MAX_RESPONSE);
    let call = Request::builder().method(Method::POST).uri(uri);
    let call = call.header(header::CONTENT_TYPE, "application/json").body(Full::from(body));
    let call = call.map_err(|_| Failure::Unreadable("request"))?;
    let response = client.request(call).await.map_err(Failure::Unreachable)?;
    if response.status() != StatusCode::OK {
        return Err(Failure::Refused(response.status()));
    }
    let body = Limited::new(response.into_body(), most).collect().await.map_err(|_| Failure::Cut)?.to_bytes();
    let found = apart(body.len(), move || render::tokens(&body)).await;
    found.ok_or(Failure::Unreadable("response"))
}

/// Runs what takes long for many bytes where no other request waits for it.
async fn apart<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> Option<T> + Send + 'static,
) -> Option<T> {
    if bytes < APART { work() } else { tokio::task::spawn_blocking(work).await.ok().flatten() }
}
