//! Bodies: what a request brought, and what a response is made of.

use std::io;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http::HeaderMap;
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use xxhash_rust::xxh64::Xxh64;

use super::live::Ticket;
use super::response::ModelResponse;

/// The body of a response.
pub(crate) type SimBody = UnsyncBoxBody<Bytes, io::Error>;

// Tokens written at once when many are there already.
const TOKENS_PER_FRAME: u32 = 64;

/// Body of a request, as it was received.
#[derive(Debug)]
pub(crate) struct Received {
    /// Empty if it was too long.
    pub(crate) body: Bytes,
    pub(crate) bytes: u64,
    pub(crate) hash: u64,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) too_long: bool,
}

/// Reads a body to its end. What is longer than `max` is counted and hashed, not kept.
pub(crate) async fn receive(mut body: Incoming, max: usize) -> io::Result<Received> {
    let mut received = Received { body: Bytes::new(), bytes: 0, hash: 0, trailers: None, too_long: false };
    let mut hash = Xxh64::new(0);
    let mut joined = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(io::Error::other)?;
        match frame.into_data() {
            Ok(data) => {
                received.bytes += data.len() as u64;
                hash.update(&data);
                if received.bytes > max as u64 {
                    received.too_long = true;
                    (received.body, joined) = (Bytes::new(), BytesMut::new());
                } else if received.body.is_empty() && joined.is_empty() {
                    // Small bodies come in one piece and are not copied.
                    received.body = data;
                } else {
                    joined.extend_from_slice(&std::mem::take(&mut received.body));
                    joined.extend_from_slice(&data);
                }
            }
            Err(frame) => received.trailers = frame.into_trailers().ok(),
        }
    }
    if !joined.is_empty() {
        received.body = joined.freeze();
    }
    received.hash = hash.digest();
    Ok(received)
}

/// A body that is there.
pub(crate) fn full(bytes: impl Into<Bytes>) -> SimBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// The first half of a body, and then the end of the connection.
pub(crate) fn half(whole: &Bytes) -> SimBody {
    let start = whole.slice(..whole.len() / 2);
    let steps = stream::unfold(Some(start), |start| async {
        match start {
            Some(start) if !start.is_empty() => Some((Ok(Frame::data(start)), Some(Bytes::new()))),
            Some(_) => Some((Err(broken_off().await), None)),
            None => None,
        }
    });
    StreamBody::new(steps).boxed_unsync()
}

/// A body followed by trailers.
pub(crate) fn with_trailers(body: SimBody, trailers: HeaderMap) -> SimBody {
    // An exact length would make HTTP/1.1 announce it and send no trailers.
    let frames = stream::unfold((body, Some(trailers)), |(mut body, mut trailers)| async {
        let frame = match body.frame().await {
            Some(frame) => frame,
            None => Ok(Frame::trailers(trailers.take()?)),
        };
        Some((frame, (body, trailers)))
    });
    StreamBody::new(frames).boxed_unsync()
}

// The error that ends a connection. What was written before is given the time to leave.
async fn broken_off() -> io::Error {
    for _ in 0..2 {
        tokio::task::yield_now().await;
    }
    io::ErrorKind::ConnectionAborted.into()
}

/// A response that streams: events as tokens come.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) ticket: Ticket,
    pub(crate) response: ModelResponse,
    /// Tokens written.
    pub(crate) sent: u32,
    /// Tokens of an event, but for the first and the last one.
    pub(crate) interval: u32,
    pub(crate) include_usage: bool,
    /// Break off after so many tokens.
    pub(crate) drop_after: Option<u32>,
    pub(crate) trailers: Option<HeaderMap>,
}

enum Step {
    Tokens(Box<Stream>),
    Trailers(HeaderMap),
    End,
}

impl Stream {
    pub(crate) fn into_body(self) -> SimBody {
        let steps = stream::unfold(Step::Tokens(Box::new(self)), |step| async {
            match step {
                Step::Tokens(stream) => Some(stream.next().await),
                Step::Trailers(trailers) => Some((Ok(Frame::trailers(trailers)), Step::End)),
                Step::End => None,
            }
        });
        StreamBody::new(steps).boxed_unsync()
    }

    async fn next(mut self: Box<Self>) -> (io::Result<Frame<Bytes>>, Step) {
        let last = self.drop_after.unwrap_or(u32::MAX);
        if self.sent >= last {
            return (Err(broken_off().await), Step::End);
        }
        let interval = self.interval;
        let seen = if self.sent == 0 { 0 } else { self.sent.saturating_add(interval - 1) };
        let progress = self.ticket.beyond(seen.min(last - 1)).await;
        let most = self.sent.saturating_add(interval.max(TOKENS_PER_FRAME)).min(last);
        let mut upto = progress.generated.min(most);
        if upto < last && (upto < progress.generated || !progress.finished) {
            // Whole events: what is left waits for more.
            upto -= upto.saturating_sub(1) % interval;
        }
        let ends = progress.finished && upto == progress.generated;
        let mut text = String::new();
        self.response.events(self.sent, upto, interval, ends, &mut text);
        self.sent = upto;
        let next = if !ends || upto == last {
            Step::Tokens(self)
        } else {
            self.response.end(upto, progress.cached_tokens, self.include_usage, &mut text);
            self.trailers.take().map_or(Step::End, Step::Trailers)
        };
        (Ok(Frame::data(text.into())), next)
    }
}
