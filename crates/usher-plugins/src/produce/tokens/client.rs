//! Requests the tokens of prompts from a server.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::Semaphore;
use usher_core::endpoints::Candidates;
use usher_core::memory::Budget;
use usher_core::request::Body;
use usher_plugin::data::PromptTokenIds;
use usher_plugin::{Gathered, Gatherer, RequestContext};

use super::failure::Failure;
use super::keys::Keys;
use super::metrics::RenderCounts;
use super::params::RenderParams;
use super::render;
use super::room::Room;

/// Bytes of a response at most: so many, for what templates and images add, and so many per byte of the call, as a
/// token's number may take more than its text.
const RESPONSE: usize = 4 << 20;
const RESPONSE_PER_BYTE: usize = 16;
const MAX_RESPONSE: usize = 64 << 20;
/// Bytes of JSON from which on it is written and read on a thread of its own.
const APART: usize = 256 << 10;
/// Bytes that one of a request takes where its model is replaced.
const CALL: usize = 12;
/// Bytes that one of a response takes: as it comes, in one piece, and as a number, of which it may be half.
const READ: usize = 8;
/// Calls under way.
const CALLS: usize = 256;
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
    budget: Arc<Budget>,
    turns: Arc<Semaphore>,
    keys: Keys,
    counts: Arc<RenderCounts>,
}

impl Renderer {
    /// Asks with this model, and says what it found under `keys`.
    pub(super) fn new(
        params: &RenderParams,
        model: String,
        budget: &Arc<Budget>,
        keys: Keys,
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
        let (budget, turns) = (Arc::clone(budget), Arc::new(Semaphore::new(CALLS)));
        Self { client, url, model, timeout, mm_timeout, budget, turns, keys, counts: Arc::new(counts) }
    }

    /// URI that renders the tokens of a request; `None` where there is none for it.
    fn uri(&self, request: &usher_core::request::Request) -> Option<Uri> {
        format!("{}{}", self.url, render::path(request)?).parse().ok()
    }
}

impl Gatherer for Renderer {
    fn gather(
        &self,
        cx: &RequestContext<'_>,
        _candidates: &Candidates,
    ) -> Option<BoxFuture<'static, Gathered>> {
        let uri = self.uri(cx.request)?;
        let Ok(turn) = Arc::clone(&self.turns).try_acquire_owned() else {
            self.counts.busy.inc();
            return None;
        };
        let body = cx.request.outgoing().into_owned();
        let model = self.model.clone();
        let request_id = cx.request.id().into_owned();
        let timeout = if cx.request.prompt.is_multimodal() { self.mm_timeout } else { self.timeout };
        let (client, counts, keys) = (self.client.clone(), Arc::clone(&self.counts), self.keys);
        let mut room = Room::new(&self.budget);
        let held = async move {
            let _turn = turn;
            let asked = ask(client, uri, (body, model), &mut room);
            let found = match tokio::time::timeout(timeout, asked).await {
                Ok(Ok(found)) => {
                    counts.rendered.inc();
                    Some((found, room))
                }
                Ok(Err(failure)) => {
                    counts.count_failure(&failure, &request_id);
                    None
                }
                Err(_) => {
                    counts.late.inc();
                    None
                }
            };
            keys.gathered(found)
        };
        Some(held.boxed())
    }
}

/// The tokens that a server tells of a request's body, with this model.
async fn ask(
    client: Client<HttpConnector, Full<Bytes>>,
    uri: Uri,
    (body, model): (Body, String),
    room: &mut Room,
) -> Result<PromptTokenIds, Failure> {
    let len = body.len();
    // In one piece; with another model also once more, and its fields.
    room.take(if model.is_empty() { len } else { len.saturating_mul(CALL) })?;
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
    let body = read(response.into_body(), most, room).await?;
    let found = apart(body.len(), move || render::tokens(&body)).await;
    found.ok_or(Failure::Unreadable("response"))
}

/// The bytes of a response.
async fn read<B: BodyExt<Data = Bytes> + Unpin>(
    mut response: B,
    most: usize,
    room: &mut Room,
) -> Result<Bytes, Failure> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = response.frame().await {
        let Ok(data) = frame.map_err(|_| Failure::Cut)?.into_data() else { continue };
        if bytes.len() + data.len() > most {
            return Err(Failure::Cut);
        }
        room.take(data.len().saturating_mul(READ))?;
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
}

/// Runs what takes long for many bytes where no other request waits for it.
async fn apart<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> Option<T> + Send + 'static,
) -> Option<T> {
    if bytes < APART { work() } else { tokio::task::spawn_blocking(work).await.ok().flatten() }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn response_beyond_the_memory_budget_is_aborted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri: Uri =
            format!("http://{}/v1/completions/render", listener.local_addr().unwrap()).parse().unwrap();
        let ids = format!("{{\"token_ids\":[{}1]}}", "1,".repeat(50_000));
        let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{ids}", ids.len());
        tokio::spawn(async move {
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                let response = response.clone();
                tokio::spawn(async move {
                    let mut request = [0; 1024];
                    while socket.read(&mut request).await.is_ok_and(|read| read > 0) {
                        // Whoever has read enough is gone.
                        let _ = socket.write_all(response.as_bytes()).await;
                    }
                });
            }
        });
        for (limit, has_room) in [(1 << 20, true), (1 << 19, false)] {
            let client = Client::builder(TokioExecutor::new()).build_http();
            let mut body = Body::default();
            body.push(Bytes::from_static(b"{}"));
            let mut room = Room::new(&Arc::new(Budget::new(limit, 0)));
            match ask(client, uri.clone(), (body, "m".to_owned()), &mut room).await {
                Ok(found) => assert_eq!((has_room, found.prompts[0].ids.len()), (true, 50_001)),
                Err(Failure::NoRoom) => assert!(!has_room),
                Err(failure) => panic!("{failure}"),
            }
        }
    }
}
