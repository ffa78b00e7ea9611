//! Reading of each API's body while it arrives.

use super::api::Api;
use super::collect::Parsed;
use super::document::JsonReading;
use super::error::ParseError;
use super::{anthropic, openai, sglang, vertex, vllm, vllm_grpc};

/// A body that is read.
#[derive(Debug)]
pub(super) enum Reading {
    Json(JsonReading),
    VllmGrpc(vllm_grpc::Reading),
    Vertex(vertex::Reading),
}

impl Reading {
    /// A reader for an API; `None` when its bodies are not read.
    pub(super) fn of(api: Api) -> Option<Box<Self>> {
        let format = match api {
            Api::ChatCompletions | Api::ChatCompletionsRender => &openai::CHAT_COMPLETIONS,
            Api::Completions | Api::CompletionsRender => &openai::COMPLETIONS,
            Api::Embeddings => &openai::EMBEDDINGS,
            Api::Responses => &openai::RESPONSES,
            Api::Conversations => &openai::CONVERSATIONS,
            Api::ImageGenerations => &openai::IMAGE_GENERATIONS,
            Api::Messages => &anthropic::MESSAGES,
            Api::VllmGenerate => &vllm::GENERATE,
            Api::SglangGenerate => &sglang::GENERATE,
            Api::VllmGrpcGenerate | Api::VllmGrpcEmbed => {
                return Some(Box::new(Self::VllmGrpc(vllm_grpc::Reading::new(api))));
            }
            Api::VertexChatCompletions | Api::VertexPredict => {
                return Some(Box::new(Self::Vertex(vertex::Reading::new(api))));
            }
            Api::CountTokens | Api::PassThrough => return None,
        };
        Some(Box::new(Self::Json(JsonReading::new(format, 0))))
    }

    /// Reads the next chunk.
    pub(super) fn feed(&mut self, chunk: &[u8]) {
        match self {
            Self::Json(reading) => reading.feed(chunk),
            Self::VllmGrpc(reading) => reading.feed(chunk),
            Self::Vertex(reading) => reading.feed(chunk),
        }
    }

    /// Bytes that are kept of what the body said so far, besides the body.
    pub(super) fn counted(&self) -> usize {
        match self {
            Self::Json(reading) => reading.counted(),
            Self::VllmGrpc(reading) => reading.counted(),
            Self::Vertex(reading) => reading.counted(),
        }
    }

    /// Error that no further chunk can repair; `None` if there is none yet.
    #[inline]
    pub(super) fn problem(&self) -> Option<ParseError> {
        match self {
            Self::Json(reading) => reading.problem(),
            Self::VllmGrpc(reading) => reading.problem(),
            Self::Vertex(reading) => reading.problem(),
        }
    }

    /// Returns the parsed body. Call it once, at the end.
    ///
    /// # Errors
    /// `ParseError` if the body is no request of its API.
    pub(super) fn finish(&mut self) -> Result<Parsed, ParseError> {
        match self {
            Self::Json(reading) => reading.finish(),
            Self::VllmGrpc(reading) => reading.finish(),
            Self::Vertex(reading) => reading.finish(),
        }
    }
}
