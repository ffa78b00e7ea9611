//! How the body of each API is read while it arrives.

use super::api::Api;
use super::collect::{Collector, Format, Parsed};
use super::frames::FrameError;
use super::json::{JsonError, Scanner};
use super::parser::ParseError;
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

    /// Why it is no request of its API, whatever comes.
    #[inline]
    pub(super) fn problem(&self) -> Option<ParseError> {
        match self {
            Self::Json(reading) => reading.problem(),
            Self::VllmGrpc(reading) => reading.problem(),
            Self::Vertex(reading) => reading.problem(),
        }
    }

    /// What the body said. Call it once, at the end.
    ///
    /// # Errors
    /// When it is not a request of its API.
    pub(super) fn finish(&mut self) -> Result<Parsed, ParseError> {
        match self {
            Self::Json(reading) => reading.finish(),
            Self::VllmGrpc(reading) => reading.finish(),
            Self::Vertex(reading) => reading.finish(),
        }
    }
}

/// A JSON document that is read.
#[derive(Debug)]
pub(super) struct JsonReading {
    scanner: Scanner,
    collector: Collector,
    error: Option<JsonError>,
}

impl JsonReading {
    /// A document of this format that begins at an offset of its body.
    pub(super) fn new(format: &'static Format, offset: usize) -> Self {
        Self { scanner: Scanner::at(offset), collector: Collector::new(format), error: None }
    }

    pub(super) fn feed(&mut self, chunk: &[u8]) {
        if self.error.is_none() {
            self.error = self.scanner.feed(chunk, &mut self.collector).err();
        }
    }

    /// The first wrong byte.
    pub(super) fn problem(&self) -> Option<ParseError> {
        self.error.map(ParseError::from)
    }

    /// Bytes that are kept of what the document said.
    pub(super) fn counted(&self) -> usize {
        self.collector.counted()
    }

    pub(super) fn finish(&mut self) -> Result<Parsed, ParseError> {
        if let Some(error) = self.error {
            return Err(error.into());
        }
        self.scanner.finish(&mut self.collector)?;
        self.collector.finish().map_err(ParseError::Shape)
    }
}

/// What the only frame of a request came to; `None` is one that did not end.
pub(super) fn first_frame(result: Option<Result<(), FrameError>>) -> Result<(), ParseError> {
    let problem = match result {
        Some(Ok(())) => return Ok(()),
        Some(Err(FrameError::Flag(1))) => "the message is compressed; send it as it is",
        Some(Err(FrameError::Flag(_))) => "the body does not begin with a frame",
        Some(Err(FrameError::Malformed)) => "the frame holds no protobuf message",
        None => "the frame is cut off",
    };
    Err(ParseError::Grpc(problem))
}
