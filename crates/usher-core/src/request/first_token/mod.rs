//! The first generated token of a streamed response, found as its chunks pass.
//!
//! A response's first event often holds nothing that was generated: a role, the
//! object that the response will fill, a ping. Such events may be sent before the prompt
//! is computed, so they say nothing about the time to the first token.

mod content;
mod events;
mod generated;
mod vertex;

use self::content::Dialect;
use self::events::EventReader;
pub use self::generated::Generated;
use self::vertex::VertexReader;
use super::api::Api;
use super::vllm_grpc;

/// Finds the first generated content in the chunks of a streamed response.
///
/// Keeps no text: between two chunks there are the states of two scanners, at most 64 bytes of one JSON
/// scalar, and one bit per level of nesting (at most 10,000).
#[derive(Debug)]
pub struct FirstTokenReader(Reader);

#[derive(Debug)]
enum Reader {
    Events(Box<EventReader>),
    VllmGrpc(Box<vllm_grpc::TokenReading>),
    Vertex(Box<VertexReader>),
}

impl FirstTokenReader {
    /// A reader of this API's streamed responses; `None` where generated content can't be
    /// recognised.
    pub fn of(api: Api) -> Option<Self> {
        let dialect = match api {
            Api::ChatCompletions
            | Api::Completions
            | Api::Responses
            | Api::ImageGenerations
            | Api::VllmGenerate => Dialect::OpenAi,
            Api::Messages => Dialect::Anthropic,
            Api::SglangGenerate => Dialect::Sglang,
            Api::VllmGrpcGenerate => return Some(Self(Reader::VllmGrpc(Box::default()))),
            Api::VertexChatCompletions | Api::VertexPredict => {
                return Some(Self(Reader::Vertex(Box::default())));
            }
            Api::ChatCompletionsRender
            | Api::CompletionsRender
            | Api::Embeddings
            | Api::Conversations
            | Api::CountTokens
            | Api::VllmGrpcEmbed
            | Api::PassThrough => return None,
        };
        Some(Self(Reader::Events(Box::new(EventReader::new(dialect)))))
    }

    /// Scans the next chunk. Returns true once the first event with generated content has
    /// passed, or the first bytes of a body that is no event stream after all, such as a
    /// compressed one. The reader is of no use after that.
    pub fn feed(&mut self, chunk: &[u8]) -> bool {
        match &mut self.0 {
            Reader::Events(events) => events.feed(chunk),
            Reader::VllmGrpc(reading) => reading.feed(chunk),
            Reader::Vertex(reading) => reading.feed(chunk),
        }
    }

    /// Counts generated tokens of the stream whose first one has passed, from the chunk on that it
    /// was in; `None` where that can't be told from its events.
    pub fn generated(&self) -> Option<Generated> {
        match &self.0 {
            Reader::Events(events) => events.generated(),
            Reader::Vertex(reading) => reading.generated(),
            Reader::VllmGrpc(_) => None,
        }
    }
}

#[cfg(test)]
mod tests;
