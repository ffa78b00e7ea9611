//! Reading of requests (headers and body in, [`Request`] out), and of responses as they
//! pass: their first token, usage, and the model's name.

mod anthropic;
pub mod api;
pub mod body;
mod collect;
mod cursor;
mod document;
mod error;
pub mod estimate;
mod features;
pub mod first_token;
mod frames;
mod gateway;
pub mod headers;
pub mod json;
mod messages;
mod name;
mod openai;
pub mod parser;
pub mod pieces;
pub mod prompt;
#[cfg(test)]
#[path = "../../../../tests/support/protos.rs"]
pub(crate) mod protos;
mod reading;
mod rejection;
pub mod restore;
pub mod rules;
mod sglang;
mod slo;
#[cfg(test)]
mod testing;
pub mod text;
mod timeline;
mod tokens;
pub mod usage;
mod values;
mod vertex;
mod vllm;
mod vllm_grpc;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

pub use api::{Api, ParserKind, Parsers};
pub use body::{Body, Span};
pub use error::ParseError;
pub use gateway::{Attribute, Header, Served};
pub use headers::{Headers, MAX_NAME};
pub use parser::RequestParser;
pub use pieces::Pieces;
pub use prompt::{Feature, Modality, Part, PartKind, Prompt};
pub use rejection::{Code, NO_ENDPOINTS, Rejection, SATURATED};
pub use rules::{RuleBook, Rules};
pub use slo::Slo;
pub use timeline::{ProfileRun, ScorerRun, Timeline};

/// The flow of requests that name none, as llm-d-router calls it.
pub const DEFAULT_FAIRNESS_ID: &str = "default-flow";

/// One request, as far as routing it needs to know. Text stays in the body:
/// everything here that speaks of it is a slice.
#[derive(Clone, Debug)]
pub struct Request {
    /// The headers as they arrived.
    pub headers: Headers,
    /// The API that the path selected.
    pub api: Api,
    /// The body as it arrived.
    pub body: Body,
    /// Model that the client asked for; empty when the body was not read.
    pub model: String,
    /// Model that is asked for upstream.
    pub target_model: String,
    /// The client wants the response as a stream of events.
    pub stream: bool,
    /// The client's limit on generated tokens.
    pub max_output_tokens: Option<u64>,
    /// Salt that keeps this client's prefixes apart from others'.
    pub cache_salt: Option<Part>,
    /// The prompt in the body.
    pub prompt: Prompt,
    /// The object whose rule chose `target_model`, where one did.
    pub rewritten_by: Option<Arc<str>>,
    /// Priority from the request's objective; negative may be shed.
    pub priority: i32,
    /// The agent that the request comes from, where a plugin looked for one: the
    /// flow of requests that name none.
    pub agent: Option<String>,
    /// Time at which its headers came; `None`: just now.
    pub received: Option<Instant>,
    /// `true` if it has no body, so that it is for no model and is not queued.
    pub skips_queue: bool,
    /// `true` if the body is relayed unread, and its end has yet to come.
    pub is_uploading: bool,
    /// Times of its decision; `None` where it isn't traced.
    pub timeline: Option<Arc<Timeline>>,
    rewrite: Option<Rewrite>,
}

/// A change to the bytes of a body.
#[derive(Clone, Debug)]
struct Rewrite {
    span: Span,
    with: String,
}

impl Request {
    fn new(headers: Headers, api: Api, body: Body) -> Self {
        Self {
            headers,
            api,
            body,
            model: String::new(),
            target_model: String::new(),
            stream: false,
            max_output_tokens: None,
            cache_salt: None,
            prompt: Prompt::default(),
            rewritten_by: None,
            priority: 0,
            agent: None,
            received: None,
            skips_queue: false,
            is_uploading: false,
            timeline: None,
            rewrite: None,
        }
    }

    /// The flow that the request belongs to.
    pub fn fairness_id(&self) -> &str {
        let names = ["x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id"];
        let named = self.headers.first_text(&names).or(self.agent.as_deref());
        named.unwrap_or(DEFAULT_FAIRNESS_ID)
    }

    /// Id (`x-request-id`); empty where it came without, or with one that is too long.
    pub fn id(&self) -> Cow<'_, str> {
        self.headers.name("x-request-id").map(String::from_utf8_lossy).unwrap_or_default()
    }

    /// Latency targets that its headers name.
    pub fn slo(&self) -> Slo {
        Slo::of(&self.headers)
    }

    /// The body to send upstream: byte for byte what arrived, but for the model's
    /// value where that was rewritten.
    pub fn outgoing(&self) -> Cow<'_, Body> {
        match &self.rewrite {
            None => Cow::Borrowed(&self.body),
            Some(rewrite) => {
                let mut body = self.body.clone();
                body.replace(rewrite.span, rewrite.with.as_bytes());
                Cow::Owned(body)
            }
        }
    }
}

impl Default for Request {
    fn default() -> Self {
        Self::new(Headers::default(), Api::PassThrough, Body::default())
    }
}
