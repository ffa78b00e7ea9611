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

/// Bytes of a response at most: some ten million tokens.
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

    /// The call for a request; `None` where none can be made.
    fn call(&self, request: &usher_core::request::Request) -> Option<Request<Full<Bytes>>> {
        let uri: Uri = format!("{}{}", self.url, render::path(request)?).parse().ok()?;
        let body = render::body(request, &self.model)?;
        let call = Request::builder().method(Method::POST).uri(uri);
        call.header(header::CONTENT_TYPE, "application/json").body(Full::from(body)).ok()
    }
}

impl Gatherer for Renderer {
    fn gather(&self, cx: &Situation<'_>, _candidates: &Candidates) -> Option<BoxFuture<'static, Finding>> {
        let call = self.call(cx.request)?;
        let timeout = if cx.request.prompt.is_multimodal() { self.mm_timeout } else { self.timeout };
        let (client, counts, (tokens, ids)) = (self.client.clone(), Arc::clone(&self.counts), self.keys);
        let held = async move {
            let found = match tokio::time::timeout(timeout, ask(client, call)).await {
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
) -> Option<PromptTokenIds> {
    let response = client.request(call).await.ok()?;
    if response.status() != StatusCode::OK {
        return None;
    }
    let body = Limited::new(response.into_body(), MAX_RESPONSE).collect().await.ok()?;
    render::tokens(&body.to_bytes())
}
