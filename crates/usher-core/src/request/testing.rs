//! Helpers shared by the tests of the APIs.

use bytes::Bytes;

use super::api::Api;
use super::body::Body;
use super::collect::Parsed;
use super::error::ParseError;
use super::prompt::{Part, PartKind};
use super::reading::Reading;

/// Reads a body in chunks of this many bytes.
pub(super) fn parse_in(api: Api, body: &[u8], size: usize) -> (Result<Parsed, ParseError>, Body) {
    let mut reading = Reading::of(api).unwrap();
    let mut kept = Body::default();
    for chunk in body.chunks(size) {
        reading.feed(chunk);
        kept.push(Bytes::copy_from_slice(chunk));
    }
    kept.seal();
    (reading.finish(), kept)
}

/// Reads a body. How it is cut makes no difference.
pub(super) fn parse(api: Api, body: impl AsRef<[u8]>) -> Result<(Parsed, Body), String> {
    let body = body.as_ref();
    let (parsed, kept) = parse_in(api, body, body.len().max(1));
    for size in 1..40 {
        assert_eq!(parse_in(api, body, size).0, parsed, "in chunks of {size} bytes");
    }
    Ok((parsed.map_err(|error| error.to_string())?, kept))
}

/// The parts of a body's prompt and their text.
pub(super) fn parts(api: Api, body: impl AsRef<[u8]>) -> Vec<Shown> {
    let (parsed, body) = parse(api, body).unwrap();
    parsed.prompt.parts.iter().map(|part| Shown::of(part, &body)).collect()
}

/// A body is refused with a sentence that says this.
pub(super) fn refused(api: Api, body: impl AsRef<[u8]>, problem: &str) {
    let shown = String::from_utf8_lossy(body.as_ref()).into_owned();
    let error = parse(api, body).unwrap_err();
    let object = "the body must be a JSON object";
    assert!(error.contains(problem) || error == object && !shown.starts_with('{'), "{shown}: {error}");
}

/// A part and its text, comparable with how a table has it.
#[derive(Debug)]
pub(super) struct Shown(PartKind, String);

impl Shown {
    pub(super) fn of(part: &Part, body: &Body) -> Self {
        Self(part.kind, String::from_utf8(part.bytes(body).into_owned()).unwrap())
    }
}

impl PartialEq<(PartKind, &str)> for Shown {
    fn eq(&self, (kind, text): &(PartKind, &str)) -> bool {
        (self.0, self.1.as_str()) == (*kind, *text)
    }
}
