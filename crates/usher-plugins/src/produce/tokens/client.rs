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
use usher_plugin::data::{PromptTokenIds, PromptTokens};
use usher_plugin::{Finding, Gatherer, Key, Situation};

use super::metrics::RenderCounts;
use super::params::RenderParams;
use super::render;

/// Bytes of a response at most: so many, for what templates and images add, and so many per byte of the call, as a
/// token's number may take more than its text.
const RESPONSE: usize = 4 << 20;
const RESPONSE_PER_BYTE: usize = 16;
const MAX_RESPONSE: usize = 64 << 20;
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
    keys: (Key<PromptTokens>, Key<PromptTokenIds>),
    counts: Arc<RenderCounts>,
}

impl Renderer {
    /// Asks with this model, and says what it found under `keys`.
    pub(super) fn new(
        params: &RenderParams,
        model: String,
        keys: (Key<PromptTokens>, Key<PromptTokenIds>),
        counts: RenderCounts,
    ) -> Self {
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

    /// The call for a request, and the bytes of its response at most; `None` where none can be made.
    fn call(&self, request: &usher_core::request::Request) -> Option<(Request<Full<Bytes>>, usize)> {
        let uri: Uri = format!("{}{}", self.url, render::path(request)?).parse().ok()?;
        let body = render::body(request, &self.model)?;
        let call = Request::builder().method(Method::POST).uri(uri);
        let most = body.len().saturating_mul(RESPONSE_PER_BYTE).saturating_add(RESPONSE).min(MAX_RESPONSE);
        let call = call.header(header::CONTENT_TYPE, "application/json").body(Full::from(body)).ok()?;
        Some((call, most))
    }
}

impl Gatherer for Renderer {
    fn gather(&self, cx: &Situation<'_>, _candidates: &Candidates) -> Option<BoxFuture<'static, Finding>> {
        let (call, most) = self.call(cx.request)?;
        let timeout = if cx.request.prompt.is_multimodal() { self.mm_timeout } else { self.timeout };
        let (client, counts, (tokens, ids)) = (self.client.clone(), Arc::clone(&self.counts), self.keys);
        let held = async move {
            let found = match tokio::time::timeout(timeout, ask(client, call, most)).await {
                Ok(Some(found)) => {
                    counts.rendered.inc();
                    Some(found)
                }
                Ok(None) => {
                    counts.failed.inc();
                    None
                }
                Err(_) => {
                    counts.late.inc();
                    None
                }
            };
            let finding: Finding = Box::new(move |_, facts| {
                if let Some(found) = found {
                    let count = found.prompts.iter().map(|prompt| prompt.ids.len() as u64).sum();
                    facts.set(tokens, PromptTokens { count });
                    facts.set(ids, found);
                }
            });
            finding
        };
        Some(held.boxed())
    }
}

/// The tokens that a server tells; `None` if it doesn't.
async fn ask(
    client: Client<HttpConnector, Full<Bytes>>,
    call: Request<Full<Bytes>>,
    most: usize,
) -> Option<PromptTokenIds> {
    let response = client.request(call).await.ok()?;
    if response.status() != StatusCode::OK {
        return None;
    }
    let body = Limited::new(response.into_body(), most).collect().await.ok()?;
    render::tokens(&body.to_bytes())
}
