//! Vertex AI's prediction service (`google.cloud.aiplatform`): OpenAI's JSON in gRPC
//! frames, in requests and in responses.
//!
//! ```text
//! ChatCompletionsRequest, RawPredictRequest, StreamRawPredictRequest { 2 http_body { 2 data } }
//! HttpBody { 2 data }, the response of all three
//! ```

use super::api::Api;
use super::body::Span;
use super::collect::{Format, Member, Parsed};
use super::document::JsonReading;
use super::error::ParseError;
use super::frames::{Enter, FrameError, FrameSink, Frames, first_frame};
use super::openai;
use super::prompt::PartKind;
use super::usage::{Usage, UsageScanner};

/// A predicted request, which says by its members which of OpenAI's it is.
static PREDICT: Format = Format {
    member: |name| match name {
        b"input" => Member::Input,
        b"instructions" => Member::Instructions(0),
        b"tools" => Member::Before(1, PartKind::Tools),
        b"max_output_tokens" => Member::OutputCap(2),
        _ => (openai::CHAT_COMPLETIONS.member)(name),
    },
    problem: "the body must have messages, a non-empty list of objects whose content is text or a list of blocks, \
              or an input that is not null",
};

/// Reads a request.
#[derive(Debug)]
pub(super) struct Reading {
    frames: Frames,
    request: Request,
}

#[derive(Debug)]
struct Request {
    format: &'static Format,
    /// Result of the first frame; `None` while it is still being read.
    result: Option<Result<(), FrameError>>,
    json: JsonReading,
}

impl Reading {
    /// Reads a request of one of the service's methods.
    pub(super) fn new(api: Api) -> Self {
        let format = if api == Api::VertexPredict { &PREDICT } else { &openai::CHAT_COMPLETIONS };
        let request = Request { format, result: None, json: JsonReading::new(format, 0) };
        Self { frames: Frames::default(), request }
    }

    pub(super) fn feed(&mut self, chunk: &[u8]) {
        self.frames.feed(chunk, &mut self.request);
    }

    /// Error in its only frame, or in the JSON of it. Unknown before its end, as the last occurrence of a
    /// repeated field counts.
    pub(super) fn problem(&self) -> Option<ParseError> {
        first_frame(Some(self.request.result?)).err().or_else(|| self.request.json.problem())
    }

    /// Bytes that are kept of what the body said.
    pub(super) fn counted(&self) -> usize {
        self.request.json.counted()
    }

    pub(super) fn finish(&mut self) -> Result<Parsed, ParseError> {
        first_frame(self.request.result)?;
        self.request.json.finish()
    }
}

impl FrameSink for Request {
    fn number(&mut self, _path: &[u32], _value: u64, _span: Span) {}

    fn open(&mut self, path: &[u32], span: Span) -> Enter {
        match path {
            _ if self.result.is_some() => Enter::Skip,
            [2] => Enter::Message,
            [2, 2] => {
                self.json = JsonReading::new(self.format, span.start);
                Enter::Bytes
            }
            _ => Enter::Skip,
        }
    }

    fn bytes(&mut self, piece: &[u8]) {
        self.json.feed(piece);
    }

    fn frame(&mut self, result: Result<(), FrameError>) {
        self.result.get_or_insert(result);
    }
}

/// Looks for usage in the frames of a response.
#[derive(Debug, Default)]
pub(super) struct UsageReading {
    frames: Frames,
    response: ResponseFrames,
}

#[derive(Debug, Default)]
struct ResponseFrames(UsageScanner);

impl UsageReading {
    pub(super) fn feed(&mut self, chunk: &[u8]) {
        self.frames.feed(chunk, &mut self.response);
    }

    pub(super) fn found(&self) -> Option<Usage> {
        self.response.0.found()
    }
}

impl FrameSink for ResponseFrames {
    fn number(&mut self, _path: &[u32], _value: u64, _span: Span) {}

    fn open(&mut self, path: &[u32], _span: Span) -> Enter {
        if path == [2] { Enter::Bytes } else { Enter::Skip }
    }

    fn bytes(&mut self, piece: &[u8]) {
        self.0.feed(piece);
    }

    fn frame(&mut self, _result: Result<(), FrameError>) {}
}

#[cfg(test)]
#[path = "vertex_tests.rs"]
mod tests;
