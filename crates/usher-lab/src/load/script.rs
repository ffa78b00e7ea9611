//! The model server's part: what a server of OpenAI's API would send, as the gateway
//! passes it on.

use std::sync::Arc;

use bytes::Bytes;

use super::settings::Api;
use super::text::words;
use usher_wire::client::message::{Chunk, Context};

/// Different texts of one token.
const TOKENS: u64 = 64;

/// Parts that all responses of a run share.
#[derive(Debug)]
pub(super) struct Voice {
    api: Api,
    model: String,
    stream: bool,
    head: Bytes,
    /// Events of one token; only with a stream.
    tokens: Arc<[Chunk]>,
}

/// One response.
#[derive(Clone, Debug)]
pub(super) struct Script {
    /// The message with its headers.
    pub(super) head: Bytes,
    tokens: Arc<[Chunk]>,
    /// Chunks after the tokens.
    last: Vec<Chunk>,
    count: usize,
    /// Bytes of its body.
    pub(super) bytes: usize,
}

impl Voice {
    pub(super) fn new(api: Api, model: &str, stream: bool) -> Self {
        let head = Context::default().response_headers(&Self::headers(stream));
        let mut voice = Self { api, model: model.to_owned(), stream, head, tokens: Arc::default() };
        if stream {
            let event = |seed| Context::default().response_chunk(voice.event(&token(seed), false).as_bytes());
            voice.tokens = (0..TOKENS).map(event).collect();
        }
        voice
    }

    /// The headers of every response.
    pub(super) fn headers(stream: bool) -> [(&'static str, &'static str); 4] {
        let content_type = if stream { "text/event-stream; charset=utf-8" } else { "application/json" };
        [
            (":status", "200"),
            ("server", "uvicorn"),
            ("content-type", content_type),
            ("x-envoy-upstream-service-time", "12"),
        ]
    }

    /// A response with `output` tokens, one per chunk if it is a stream, and with usage.
    pub(super) fn script(&self, prompt: usize, output: usize) -> Script {
        let output = output.max(1);
        let total = prompt + output;
        let usage = format!(
            r#","usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{output}}}"#
        );
        let (body, tokens) = if self.stream {
            let (last, end) = (self.event(&token(output as u64 - 1), true), self.whole("", &usage));
            (format!("{last}data: {end}\n\ndata: [DONE]\n\n"), output - 1)
        } else {
            let mut text = String::new();
            words(0, output, &mut text);
            let text = quoted(&text);
            let choice = match self.api {
                Api::Chat => format!(r#""message":{{"role":"assistant","content":{text}}}"#),
                Api::Completions => format!(r#""text":{text}"#),
            };
            (self.whole(&choice_of(&choice, true), &usage), 0)
        };
        let last = Context::default().response_body(body.as_bytes());
        let bytes = |chunks: &[Chunk]| chunks.iter().map(|chunk| chunk.bytes).sum::<usize>();
        let (rounds, rest) = match self.tokens.len() {
            0 => (0, 0),
            different => (tokens / different, tokens % different),
        };
        let streamed = rounds * bytes(&self.tokens) + bytes(&self.tokens[..rest]);
        Script {
            head: self.head.clone(),
            tokens: self.tokens.clone(),
            count: tokens + last.len(),
            last,
            bytes: streamed + body.len(),
        }
    }

    /// An event with one token; the last one says why it is the last.
    fn event(&self, text: &str, last: bool) -> String {
        let text = quoted(text);
        let choice = match self.api {
            Api::Chat => format!(r#""delta":{{"content":{text}}}"#),
            Api::Completions => format!(r#""text":{text}"#),
        };
        format!("data: {}\n\n", self.whole(&choice_of(&choice, last), ""))
    }

    /// The object around choices, its members in vLLM's order.
    fn whole(&self, choices: &str, usage: &str) -> String {
        let (prefix, object) = match (self.api, self.stream) {
            (Api::Chat, true) => ("chatcmpl", "chat.completion.chunk"),
            (Api::Chat, false) => ("chatcmpl", "chat.completion"),
            (Api::Completions, _) => ("cmpl", "text_completion"),
        };
        let model = quoted(&self.model);
        format!(
            r#"{{"id":"{prefix}-5c1fb4f5d3d54bd58f1a4d1bb2a3f7e6","object":"{object}","created":1755000000,"model":{model},"choices":[{choices}]{usage}}}"#
        )
    }
}

fn choice_of(content: &str, last: bool) -> String {
    let reason = if last { r#""length""# } else { "null" };
    format!(r#"{{"index":0,{content},"logprobs":null,"finish_reason":{reason}}}"#)
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

impl Script {
    /// Number of chunks.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The chunk with that number, from 0.
    pub(super) fn chunk(&self, number: usize) -> Option<&Chunk> {
        match number.checked_sub(self.count - self.last.len()) {
            Some(in_last) => self.last.get(in_last),
            None => self.tokens.get(number % self.tokens.len()),
        }
    }
}

fn token(seed: u64) -> String {
    let mut text = String::new();
    words(seed, 1, &mut text);
    text
}
