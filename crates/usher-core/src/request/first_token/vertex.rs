//! Vertex AI's streams: OpenAI's events in gRPC frames, each a `google.api.HttpBody { 2 data }`.

use super::super::body::Span;
use super::super::frames::{Enter, FrameError, FrameSink, Frames};
use super::content::Dialect;
use super::events::EventReader;
use super::generated::Generated;

/// Looks for generated content in the frames of a stream. An event may be spread over frames.
#[derive(Debug)]
pub(super) struct VertexReader {
    frames: Frames,
    bodies: Bodies,
}

#[derive(Debug)]
struct Bodies {
    events: EventReader,
    has_passed: bool,
}

impl Default for VertexReader {
    fn default() -> Self {
        let bodies = Bodies { events: EventReader::new(Dialect::OpenAi), has_passed: false };
        Self { frames: Frames::default(), bodies }
    }
}

impl VertexReader {
    /// Scans the next chunk; see [`FirstTokenReader::feed`](super::FirstTokenReader::feed).
    pub(super) fn feed(&mut self, chunk: &[u8]) -> bool {
        self.frames.feed(chunk, &mut self.bodies);
        self.bodies.has_passed
    }

    pub(super) fn generated(&self) -> Option<Generated> {
        self.bodies.events.generated()
    }
}

impl FrameSink for Bodies {
    fn number(&mut self, _path: &[u32], _value: u64, _span: Span) {}

    fn open(&mut self, path: &[u32], _span: Span) -> Enter {
        if path == [2] { Enter::Bytes } else { Enter::Skip }
    }

    fn bytes(&mut self, piece: &[u8]) {
        self.has_passed |= self.events.feed(piece);
    }

    fn frame(&mut self, result: Result<(), FrameError>) {
        // A compressed or damaged frame hides its events.
        self.has_passed |= result.is_err();
    }
}
