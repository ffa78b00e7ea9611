//! The request's half of an exchange: from its headers to the replies that send it on.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use crate::flow::{Code, Rejection, Routed};
use crate::memory::Reservation;
use crate::request::{Body, Headers, Pieces, Request, RequestParser};

use super::super::envoy::ENCODINGS;
use super::super::event::Mode;
use super::super::outbox::KEEP;
use super::super::reply::{CHUNK_LIMIT, Reply, Route};
use super::super::series::SeriesKey;
use super::{BodyEnd, Exchange, NO_MEMORY, Question, State, Step, Violation};

/// Largest frame that gateways may send, in bytes.
const FRAME: usize = 64 << 10;

impl Exchange {
    pub(super) fn request_headers(
        &mut self,
        mut headers: Headers,
        end_of_stream: bool,
        now: Instant,
    ) -> Result<Step, Violation> {
        match self.state {
            State::Idle => {}
            State::Abandoned => return Err(Violation("request headers came after the answer's")),
            _ => return Err(Violation("request headers came twice")),
        }
        self.started = Some(now);
        let is_ours = self.modes.is_none_or(|modes| modes.request == Mode::FullDuplex);
        if !end_of_stream && is_ours && self.is_too_large(content_length(&headers)) {
            // Before any of it is sent.
            return Ok(self.refuse_as_too_large(now));
        }
        if !end_of_stream {
            // They are kept until the body is there, or while the request waits.
            if !self.has_room(headers.counted() + self.subset.counted(), Some(&headers)) {
                return Ok(self.refuse_for_memory(now));
            }
            // What is larger than any frame has been put together, and is its own.
            if self.shared.budget.copies() && headers.counted() <= FRAME {
                headers.detach();
            }
        }
        let parser = RequestParser::new(headers, &self.shared.parsers);
        if end_of_stream {
            return Ok(self.decide(parser.without_body(), BodyEnd::Headers, now));
        }
        if !is_ours {
            // The gateway waits for this reply before it sends a body, or never sends one.
            return Ok(self.decide(parser.without_body(), BodyEnd::NotOurs { ended: false }, now));
        }
        self.state = State::Body(Box::new(parser));
        Ok(Step::Continue)
    }

    pub(super) fn request_body(
        &mut self,
        data: Pieces,
        end_of_stream: bool,
        now: Instant,
    ) -> Result<Step, Violation> {
        let subset = self.subset.counted();
        match &mut self.state {
            State::Body(parser) => {
                let length = parser.body_len() + data.len();
                let counted = subset + parser.counted() + data.len();
                if self.is_too_large(length) {
                    return Ok(self.refuse_as_too_large(now));
                }
                if !self.has_room(counted, None) {
                    return Ok(self.refuse_for_memory(now));
                }
                let State::Body(parser) = &mut self.state else { return Ok(Step::Continue) };
                let copies = self.shared.budget.copies();
                data.into_iter().for_each(|piece| {
                    parser.push(if copies { Bytes::copy_from_slice(&piece) } else { piece });
                });
                let read = subset + parser.counted();
                if read > counted && !self.has_room(read, None) {
                    return Ok(self.refuse_for_memory(now));
                }
                if end_of_stream { Ok(self.finish(BodyEnd::Flag, now)) } else { Ok(Step::Continue) }
            }
            State::Relaying | State::Deciding(_, BodyEnd::NotOurs { ended: false }) => {
                Ok(self.relay(Reply::RequestBodyAsIs, end_of_stream))
            }
            // Envoy 1.35 to 1.37 can send the last message of a long body twice
            // (envoyproxy/envoy#46237). The first one counts.
            State::Deciding(_, BodyEnd::Flag) | State::Sent(BodyEnd::Flag) if end_of_stream => {
                Ok(Step::Continue)
            }
            State::Abandoned => Ok(Step::Continue),
            State::Idle => Err(Violation("a request body came before its headers")),
            State::Deciding(..) | State::Sent(_) | State::Refused => {
                Err(Violation("a request body went on after its end"))
            }
        }
    }

    pub(super) fn request_trailers(&mut self, now: Instant) -> Result<Step, Violation> {
        match self.state {
            State::Body(_) => Ok(self.finish(BodyEnd::Trailers, now)),
            State::Relaying | State::Deciding(_, BodyEnd::NotOurs { ended: false }) => {
                Ok(self.relay(Reply::RequestTrailers, true))
            }
            State::Abandoned => Ok(Step::Continue),
            State::Idle => Err(Violation("request trailers came before their headers")),
            State::Deciding(..) | State::Sent(_) | State::Refused => {
                Err(Violation("request trailers came after the end of the request"))
            }
        }
    }

    /// Replies to a message that goes on as it is, though not before the headers do.
    fn relay(&mut self, reply: Reply, last: bool) -> Step {
        match &mut self.state {
            State::Deciding(_, BodyEnd::NotOurs { ended }) => {
                *ended = last;
                self.replies.push_after_headers(reply);
            }
            _ => {
                if last {
                    self.state = State::Sent(BodyEnd::NotOurs { ended: true });
                }
                self.replies.push(reply);
            }
        }
        Step::Continue
    }

    fn is_too_large(&self, length: usize) -> bool {
        length > self.shared.max_request_body_bytes
    }

    fn refuse_as_too_large(&mut self, now: Instant) -> Step {
        let limit = self.shared.max_request_body_bytes;
        let message = format!("the request body is larger than {limit} bytes");
        self.refuse(Rejection::new(Code::PayloadTooLarge, message), &SeriesKey::unknown(), now)
    }

    /// The request's body is complete.
    fn finish(&mut self, end: BodyEnd, now: Instant) -> Step {
        let State::Body(parser) = std::mem::replace(&mut self.state, State::Abandoned) else {
            return Step::Continue;
        };
        let finished = parser.finish_by(&self.shared.rules.current(), &mut rand::rng());
        match finished {
            Ok(request) => self.decide(request, end, now),
            Err(error) => {
                let rejection = Rejection::new(Code::BadRequest, error.to_string());
                self.refuse(rejection, &SeriesKey::unknown(), now)
            }
        }
    }

    pub(super) fn decide(&mut self, mut request: Request, end: BodyEnd, now: Instant) -> Step {
        request.priority = self.shared.rules.current().priority(&request.headers);
        self.shared.stages.process_headers(&mut request);
        if request.priority < 0 && !request.body.is_empty() && self.shared.budget.is_tight() {
            // These go first: what is left is for the others.
            self.shared.budget.count_refused();
            return self.refuse(Rejection::saturated(NO_MEMORY), &series_key(&request), now);
        }
        if let Some(by) = &request.rewritten_by {
            let series = self.shared.metrics.series(&series_key(&request));
            self.shared.metrics.rewritten(by, &series);
        }
        request.received = self.started;
        request.skips_queue = end == BodyEnd::Headers;
        let request = Arc::new(request);
        self.state = State::Deciding(Arc::clone(&request), end);
        Step::Decide(Question { request, subset: self.subset.clone() })
    }

    pub(super) fn route(&mut self, request: &Request, end: BodyEnd, mut routed: Routed, now: Instant) {
        let held = self.held.take();
        let body = request.outgoing();
        let series = match end {
            BodyEnd::Flag | BodyEnd::Trailers => {
                let series = self.shared.metrics.series(&series_key(request));
                self.answer.expect(request, Arc::clone(&series), self.started);
                Some(series)
            }
            // Without its body a request is not counted, as with the peer.
            BodyEnd::Headers | BodyEnd::NotOurs { .. } => {
                self.answer.read_as(request.api);
                None
            }
        };
        let is_shown = self.modes.is_none_or(|modes| modes.response != Mode::None);
        let has_id = request.headers.name("x-request-id").is_some_and(|id| !id.is_empty());
        let route = Route {
            destination: routed.destination(),
            request_id: (!has_id).then(new_request_id),
            content_length: (body.len() != request.body.len()).then_some(body.len()),
            headers: routed.headers().to_vec(),
            plain: is_shown && self.answer.is_read() && accepts_encodings(&request.headers),
            scores: routed.take_scores(),
        };
        self.replies.request_headers(route);
        self.routed = Some(routed);
        let more = end == BodyEnd::NotOurs { ended: false };
        self.state = if more { State::Relaying } else { State::Sent(end) };
        let Some(series) = series else { return };
        self.replies.request_body(outgoing(&body, held), end == BodyEnd::Flag);
        if end == BodyEnd::Trailers {
            self.replies.push(Reply::RequestTrailers);
        }
        series.total.inc();
        series.request_size.observe(body.len() as f64);
        if let Some(started) = self.started {
            let taken = now.saturating_duration_since(started);
            self.shared.metrics.request_processing.observe(taken.as_secs_f64());
        }
    }
}

/// Whether a request accepts an encoded answer; in others there is nothing to remove.
fn accepts_encodings(headers: &Headers) -> bool {
    ENCODINGS.iter().any(|name| headers.get(name).is_some())
}

/// Length of the body, as the headers say; 0 where they don't, or not in digits.
fn content_length(headers: &Headers) -> usize {
    let digits = headers.get("content-length").filter(|value| value.iter().all(u8::is_ascii_digit));
    digits.map_or(0, |digits| {
        let add =
            |length: usize, digit: &u8| length.saturating_mul(10).saturating_add(usize::from(digit - b'0'));
        digits.iter().fold(0, add)
    })
}

/// The chunks of a body. The last of which the outbox keeps a piece has the room with it that
/// the body takes, until it is written to the gateway, or dropped: by then so are the others.
fn outgoing(body: &Body, mut held: Option<Reservation>) -> impl Iterator<Item = Bytes> {
    let mut end = body.len();
    let with_room = body.chunks().iter().rposition(|chunk| {
        // Replies cut the body wherever one is full.
        let after_cut = chunk.len().min(end % CHUNK_LIMIT);
        end -= chunk.len();
        after_cut.max(chunk.len() - after_cut) >= KEEP
    });
    body.chunks().iter().enumerate().map(move |(index, chunk)| {
        match held.take_if(|_| Some(index) == with_room) {
            Some(held) => held.attach(chunk.clone()),
            None => chunk.clone(),
        }
    })
}

pub(super) fn series_key(request: &Request) -> SeriesKey {
    SeriesKey {
        model: request.model.clone(),
        target_model: request.target_model.clone(),
        fairness_id: request.fairness_id().to_owned(),
        priority: request.priority,
    }
}

/// A version 4 UUID.
fn new_request_id() -> String {
    let bits = (rand::random::<u128>() & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}
