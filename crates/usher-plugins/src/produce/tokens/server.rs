//! A server that is asked for the tokens of prompts.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::Instant;
use usher_core::request::{Api, Body};
use usher_plugin::data::{PromptTokenIds, TokenizedPrompt};

use super::calls::{Call, Calls};
use super::failure::Failure;
use super::render;
use super::room::Room;
use super::tokenize::{Tokenize, Tokenized};

/// Bytes of a response at most: so many, for what templates and images add, and so many per byte of the call, as a
/// token's number may take more than its text.
const RESPONSE: usize = 4 << 20;
const RESPONSE_PER_BYTE: usize = 16;
const MAX_RESPONSE: usize = 64 << 20;
/// Bytes of JSON from which on it is written and read on a thread of its own.
const APART: usize = 256 << 10;
/// Bytes that one of a request takes where its model is replaced, or its prompts are sent one by one.
const CALL: usize = 12;
/// Bytes that one of a response takes: as it comes, in one piece, and as a number, of which it may be half.
const READ: usize = 8;
/// Idle connections, and how long they stay.
const IDLE: usize = 16;
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Path of [`Call::Tokenize`].
const TOKENIZE: &str = "/tokenize";

/// A server, and the calls that it was found to have.
#[derive(Debug)]
pub(super) struct Server {
    client: Client<HttpConnector, Full<Bytes>>,
    url: String,
    model: String,
    completions: Calls,
    chats: Calls,
}

/// A request's prompt, as its body has it.
#[derive(Clone, Debug)]
pub(super) struct Prompt {
    pub(super) api: Api,
    /// `true` with images, audio or video, of which `/tokenize` returns too little.
    pub(super) is_multimodal: bool,
    pub(super) body: Body,
}

impl Server {
    /// A server that is asked with this model, or if that is empty with the request's.
    pub(super) fn new(url: &str, model: String) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(IDLE)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_timer(TokioTimer::new())
            .build(connector);
        let url = url.trim_end_matches('/').to_owned();
        Self { client, url, model, completions: Calls::default(), chats: Calls::default() }
    }

    /// The tokens of a prompt.
    ///
    /// # Errors
    /// `Failure` of the last call that was tried: a server that doesn't have the first one is asked by the other.
    pub(super) async fn tokens(&self, prompt: Prompt, room: &mut Room) -> Result<PromptTokenIds, Failure> {
        let calls = if prompt.api == Api::ChatCompletions { &self.chats } else { &self.completions };
        let Prompt { api, is_multimodal, body } = prompt;
        let len = body.len();
        // In one piece.
        room.take(len)?;
        let body = apart(len, move || Some(body.into_bytes())).await.ok_or(Failure::Unreadable("request"))?;
        if is_multimodal {
            return self.rendered(api, body, room).await;
        }
        let &[first, second] = calls.order(Instant::now()) else { return Err(Failure::OtherPrompt) };
        let (mut call, mut found) = (first, self.call(first, api, body.clone(), room).await);
        if found.as_ref().is_err_and(Failure::is_elsewhere) {
            (call, found) = (second, self.call(second, api, body, room).await);
        }
        if matches!(found, Err(Failure::OtherPrompt)) {
            calls.note_neither(Instant::now());
            return found;
        }
        let is_there = found.as_ref().map_or_else(Failure::is_refusal, |_| true);
        // Where /tokenize comes first that is known already.
        let is_new = is_there && (call, first) != (Call::Tokenize, Call::Tokenize);
        if is_new && calls.note(call, Instant::now()) {
            let path = if call == Call::Render { render::path(api) } else { TOKENIZE };
            tracing::info!(server = self.url, path, "call for tokens of prompts found");
        }
        found
    }

    async fn call(
        &self,
        call: Call,
        api: Api,
        body: Bytes,
        room: &mut Room,
    ) -> Result<PromptTokenIds, Failure> {
        match call {
            Call::Render => self.rendered(api, body, room).await,
            Call::Tokenize => self.tokenized(api, body, room).await,
        }
    }

    async fn rendered(&self, api: Api, body: Bytes, room: &mut Room) -> Result<PromptTokenIds, Failure> {
        if !self.model.is_empty() {
            // Once more with the model, and its fields.
            room.take(body.len().saturating_mul(CALL - 1))?;
        }
        let model = self.model.clone();
        let body = apart(body.len(), move || render::body(body, &model)).await;
        let response =
            self.post(render::path(api), body.ok_or(Failure::Unreadable("request"))?, room).await?;
        let found = apart(response.len(), move || render::tokens(&response)).await;
        found.ok_or(Failure::Unreadable("response"))
    }

    /// Asks for one prompt after the other, as vLLM takes one in a call.
    async fn tokenized(&self, api: Api, body: Bytes, room: &mut Room) -> Result<PromptTokenIds, Failure> {
        room.take(body.len().saturating_mul(CALL - 1))?;
        let model = self.model.clone();
        let calls = apart(body.len(), move || Tokenize::of(api, &body, &model)).await;
        let mut prompts = Vec::new();
        for call in calls.ok_or(Failure::Beyond)?.bodies() {
            let response = self.post(TOKENIZE, call, room).await?;
            let tokenized = apart(response.len(), move || Tokenized::of(&response)).await;
            let tokenized = tokenized.ok_or(Failure::Unreadable("response"))?;
            if api == Api::ChatCompletions && tokenized.is_of_other_prompt() {
                return Err(Failure::OtherPrompt);
            }
            prompts.push(TokenizedPrompt { ids: tokenized.tokens, items: Vec::new() });
        }
        let has_tokens = prompts.iter().any(|prompt| !prompt.ids.is_empty());
        has_tokens.then_some(PromptTokenIds { prompts }).ok_or(Failure::Unreadable("response"))
    }

    /// The body of the response to a call.
    async fn post(&self, path: &str, body: Bytes, room: &mut Room) -> Result<Bytes, Failure> {
        let uri: Uri = format!("{}{path}", self.url).parse().map_err(|_| Failure::Unreadable("request"))?;
        let most = body.len().saturating_mul(RESPONSE_PER_BYTE).saturating_add(RESPONSE).min(MAX_RESPONSE);
        let call = Request::builder().method(Method::POST).uri(uri);
        let call = call.header(header::CONTENT_TYPE, "application/json").body(Full::from(body));
        let call = call.map_err(|_| Failure::Unreadable("request"))?;
        let response = self.client.request(call).await.map_err(Failure::Unreachable)?;
        if response.status() != StatusCode::OK {
            return Err(Failure::Refused(response.status()));
        }
        read(response.into_body(), most, room).await
    }
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
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use usher_core::memory::Budget;

    use super::*;

    #[tokio::test]
    async fn response_beyond_the_memory_budget_is_aborted() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
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
            let mut body = Body::default();
            body.push(Bytes::from_static(b"{}"));
            let mut room = Room::new(&Arc::new(Budget::new(limit, 0)));
            let server = Server::new(&url, "m".to_owned());
            let prompt = Prompt { api: Api::Completions, is_multimodal: false, body };
            match server.tokens(prompt, &mut room).await {
                Ok(found) => assert_eq!((has_room, found.prompts[0].ids.len()), (true, 50_001)),
                Err(Failure::NoRoom) => assert!(!has_room),
                Err(failure) => panic!("{failure}"),
            }
        }
    }
}
