//! vLLM's gRPC service (`vllm.grpc.engine`): its requests, one frame each, and the
//! first tokens and the usage in its responses.
//!
//! ```text
//! GenerateRequest { 2 tokenized { 1 original_text, 2 input_ids } or 3 text,
//!                   4 sampling_params { 8 max_tokens }, 5 stream,
//!                   7 mm_inputs { 5 mm_placeholders { 1 offset, 2 length }, 6 mm_hashes } }
//! EmbedRequest    { 2 tokenized { 1 original_text, 2 input_ids } }
//! GenerateResponse { 1 chunk { 1 token_ids, 2 prompt_tokens, 3 completion_tokens, 4 cached_tokens } or
//!                    2 complete { 1 output_ids, 3 prompt_tokens, 4 completion_tokens, 5 cached_tokens } }
//! EmbedResponse   { 2 prompt_tokens }
//! ```
//!
//! Token ids may be packed or written one by one: protobuf allows both, also in turn.

use super::api::Api;
use super::body::Span;
use super::collect::Parsed;
use super::error::ParseError;
use super::features::Place;
use super::frames::{Enter, FrameError, FrameSink, Frames, first_frame};
use super::prompt::{self, Feature, Modality, Part, PartKind};
use super::usage::Usage;

/// Reads a request.
#[derive(Debug)]
pub(super) struct Reading {
    frames: Frames,
    request: Request,
}

#[derive(Debug)]
struct Request {
    generates: bool,
    /// Result of the first frame; `None` while it is still being read.
    result: Option<Result<(), FrameError>>,
    input: Input,
    stream: bool,
    max_output_tokens: Option<u64>,
    hashes: Vec<Part>,
    places: Vec<Place>,
}

/// The prompt: of several the last counts, as protobuf has it.
#[derive(Debug, Default)]
struct Input {
    ids: Vec<Part>,
    /// The text, or the one that the ids were made of.
    text: Option<Part>,
    tokenized: bool,
}

impl Input {
    /// An id behind its key. Those that follow each other are one part.
    fn tagged(&mut self, span: Span) {
        let behind = |part: &&mut Part| part.kind == PartKind::TaggedTokens && part.span.end == span.start;
        match self.ids.last_mut().filter(behind) {
            Some(part) => part.span.end = span.end,
            None => prompt::push(&mut self.ids, [Part::plain(PartKind::TaggedTokens, span)]),
        }
    }
}

impl Reading {
    /// Reads a request of one of the service's two methods.
    pub(super) fn new(api: Api) -> Self {
        let request = Request {
            generates: api == Api::VllmGrpcGenerate,
            result: None,
            input: Input::default(),
            stream: false,
            max_output_tokens: None,
            hashes: Vec::new(),
            places: Vec::new(),
        };
        Self { frames: Frames::default(), request }
    }

    pub(super) fn feed(&mut self, chunk: &[u8]) {
        self.frames.feed(chunk, &mut self.request);
    }

    /// Error in its only frame, once it is known.
    pub(super) fn problem(&self) -> Option<ParseError> {
        first_frame(Some(self.request.result?)).err()
    }

    /// Bytes that are kept of what the body said.
    pub(super) fn counted(&self) -> usize {
        let Request { input, hashes, places, .. } = &self.request;
        let features = hashes.len() * size_of::<Feature>();
        prompt::bytes(&input.ids) + prompt::bytes(hashes) + prompt::bytes(places) + features
    }

    pub(super) fn finish(&mut self) -> Result<Parsed, ParseError> {
        first_frame(self.request.result)?;
        let Request { input, stream, max_output_tokens, hashes, places, .. } = &mut self.request;
        let mut parsed =
            Parsed { stream: *stream, max_output_tokens: *max_output_tokens, ..Parsed::default() };
        let prompt = &mut parsed.prompt;
        prompt.parts = std::mem::take(&mut input.ids);
        if prompt.parts.is_empty() {
            prompt.parts.extend(input.text);
        }
        let tokens = |at: usize| places.get(at).and_then(|place| place.range());
        let features = hashes.iter().enumerate();
        prompt.features = features
            .map(|(at, hash)| Feature { modality: Some(Modality::Image), hash: *hash, tokens: tokens(at) })
            .collect();
        Ok(parsed)
    }
}

impl FrameSink for Request {
    fn number(&mut self, path: &[u32], value: u64, span: Span) {
        if self.result.is_some() {
            return;
        }
        match path {
            [2, 2] => self.input.tagged(span),
            // Numbers of 32 bits, whatever the varint says.
            [4, 8] if self.generates => self.max_output_tokens = Some(u64::from(value as u32)),
            [5] if self.generates => self.stream = value != 0,
            [7, 5, field] => {
                if let Some(place) = self.places.last_mut() {
                    match field {
                        1 => place.offset = Some(u64::from(value as u32)),
                        2 => place.length = Some(u64::from(value as u32)),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }

    fn open(&mut self, path: &[u32], span: Span) -> Enter {
        if self.result.is_some() {
            return Enter::Skip;
        }
        let text = Part::plain(PartKind::Text, span);
        match path {
            [2] => {
                if !self.input.tokenized {
                    self.input = Input { tokenized: true, ..Input::default() };
                }
                return Enter::Message;
            }
            [2, 1] => self.input.text = Some(text),
            [2, 2] if !span.is_empty() => {
                prompt::push(&mut self.input.ids, [Part::plain(PartKind::PackedTokens, span)]);
            }
            [3] if self.generates => self.input = Input { text: Some(text), ..Input::default() },
            [4] | [7] if self.generates => return Enter::Message,
            // A number that is not written is 0.
            [7, 5] => {
                prompt::push_feature(&mut self.places, Place { offset: Some(0), length: Some(0) });
                return Enter::Message;
            }
            [7, 6] => prompt::push_feature(&mut self.hashes, text),
            _ => {}
        }
        Enter::Skip
    }

    fn frame(&mut self, result: Result<(), FrameError>) {
        self.result.get_or_insert(result);
    }
}

/// Looks for usage in the frames of a response.
#[derive(Debug)]
pub(super) struct UsageReading {
    frames: Frames,
    response: ResponseFrames,
}

#[derive(Debug)]
struct ResponseFrames {
    generates: bool,
    /// Usage in the current frame.
    usage: Usage,
    found: Usage,
}

impl UsageReading {
    /// Reads responses of one of the service's two methods.
    pub(super) fn new(api: Api) -> Self {
        let generates = api == Api::VllmGrpcGenerate;
        let response = ResponseFrames { generates, usage: Usage::default(), found: Usage::default() };
        Self { frames: Frames::default(), response }
    }

    pub(super) fn feed(&mut self, chunk: &[u8]) {
        self.frames.feed(chunk, &mut self.response);
    }

    /// Usage from the frames so far, which are cumulative.
    pub(super) fn found(&self) -> Option<Usage> {
        (self.response.found != Usage::default()).then_some(self.response.found)
    }
}

impl FrameSink for ResponseFrames {
    fn number(&mut self, path: &[u32], value: u64, _span: Span) {
        let tokens = match (self.generates, path) {
            (true, [1, 2] | [2, 3]) | (false, [2]) => &mut self.usage.prompt_tokens,
            (true, [1, 3] | [2, 4]) => &mut self.usage.completion_tokens,
            (true, [1, 4] | [2, 5]) => &mut self.usage.cached_tokens,
            _ => return,
        };
        *tokens = Some(u64::from(value as u32));
    }

    fn open(&mut self, path: &[u32], _span: Span) -> Enter {
        if self.generates && matches!(path, [1] | [2]) { Enter::Message } else { Enter::Skip }
    }

    fn frame(&mut self, result: Result<(), FrameError>) {
        let usage = std::mem::take(&mut self.usage);
        if result.is_ok() {
            self.found.merge(usage);
        }
    }
}

/// Looks for the first frame with generated tokens.
#[derive(Debug, Default)]
pub(super) struct TokenReading {
    frames: Frames,
    tokens: Tokens,
}

#[derive(Debug, Default)]
struct Tokens {
    /// The current frame has some.
    are_here: bool,
    /// A frame with some is complete.
    have_passed: bool,
}

impl TokenReading {
    /// Scans the next chunk. Returns true once a frame with tokens has passed.
    pub(super) fn feed(&mut self, chunk: &[u8]) -> bool {
        self.frames.feed(chunk, &mut self.tokens);
        self.tokens.have_passed
    }
}

impl FrameSink for Tokens {
    fn number(&mut self, path: &[u32], _value: u64, _span: Span) {
        self.are_here |= matches!(path, [1 | 2, 1]);
    }

    fn open(&mut self, path: &[u32], span: Span) -> Enter {
        self.are_here |= matches!(path, [1 | 2, 1]) && !span.is_empty();
        if matches!(path, [1 | 2]) { Enter::Message } else { Enter::Skip }
    }

    fn frame(&mut self, result: Result<(), FrameError>) {
        self.have_passed |= std::mem::take(&mut self.are_here) && result.is_ok();
    }
}

#[cfg(test)]
#[path = "vllm_grpc_tests.rs"]
mod tests;
