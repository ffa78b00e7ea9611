//! The request's half of an exchange: from its headers to the replies that send it on.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use crate::flow::{Code, Rejection, Routed};
use crate::otel::Routing;
use crate::request::{Headers, ParseError, Pieces, Request, RequestParser};

use super::super::series::SeriesKey;
use super::decision_log::LogIds;
use super::room::NO_MEMORY;
use super::{BodyEnd, DecisionRequest, Exchange, State, Step, TOO_MUCH_TO_WAIT, Violation, decision_log};
use usher_wire::envoy::ENCODINGS;
use usher_wire::event::Mode;
use usher_wire::reply::{Reply, Route};

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
            State::Abandoned => return Err(Violation("request headers came after the response's")),
            _ => return Err(Violation("request headers came twice")),
        }
        self.started = Some(now);
        self.trace = self.shared.tracer.as_ref().map(|tracer| tracer.begin(&headers, now));
        self.priority = self.shared.rules.current().priority(&headers);
        // What is missing from now on is of the body.
        self.upload = None;
        let is_ours = self.is_full_duplex();
        if !end_of_stream {
            // They are kept until the body is there, or while the request waits.
            if !self.has_room(headers.counted() + self.subset.counted()) {
                self.state = State::Body(Box::new(RequestParser::new(headers, &self.shared.parsers)));
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
            return Ok(self.decide(parser.without_body(), BodyEnd::Relayed { ended: false }, now));
        }
        let is_read = parser.reads_body();
        let length = content_length(parser.headers());
        self.state = State::Body(Box::new(parser));
        if is_read && self.is_too_large(length) {
            // Before any of it is sent.
            return Ok(self.refuse_as_too_large(now));
        }
        if is_read { Ok(Step::Continue) } else { Ok(self.finish(BodyEnd::Relayed { ended: false }, now)) }
    }

    pub(super) fn request_body(
        &mut self,
        data: Pieces,
        end_of_stream: bool,
        now: Instant,
    ) -> Result<Step, Violation> {
        let (subset, is_full_duplex) = (self.subset.counted(), self.is_full_duplex());
        match &mut self.state {
            State::Body(parser) => {
                let length = parser.body_len() + data.len();
                let counted = subset + parser.counted() + data.len();
                if self.is_too_large(length) {
                    return Ok(self.refuse_as_too_large(now));
                }
                if !self.has_room(counted) {
                    return Ok(self.refuse_for_memory(now));
                }
                let State::Body(parser) = &mut self.state else { return Ok(Step::Continue) };
                let copies = self.shared.budget.copies();
                data.into_iter().for_each(|piece| {
                    parser.push(if copies { Bytes::copy_from_slice(&piece) } else { piece });
                });
                if let Some(problem) = parser.problem() {
                    return Ok(self.refuse_as_invalid(&problem, now));
                }
                let read = subset + parser.counted();
                if read > counted && !self.has_room(read) {
                    return Ok(self.refuse_for_memory(now));
                }
                if end_of_stream { Ok(self.finish(BodyEnd::Flag, now)) } else { Ok(Step::Continue) }
            }
            State::Relaying | State::Deciding(_, BodyEnd::Relayed { ended: false }) => {
                Ok(self.relay(data, end_of_stream, now))
            }
            // Envoy 1.35 to 1.37 can send the last message of a long body twice
            // (envoyproxy/envoy#46237). The first one counts.
            State::Deciding(_, BodyEnd::Flag) | State::Sent(BodyEnd::Flag) if end_of_stream => {
                Ok(Step::Continue)
            }
            State::Deciding(_, BodyEnd::Relayed { ended: true })
            | State::Sent(BodyEnd::Relayed { ended: true })
                if end_of_stream && is_full_duplex =>
            {
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
            State::Relaying | State::Deciding(_, BodyEnd::Relayed { ended: false }) => {
                Ok(self.relay_reply(Reply::RequestTrailers, true))
            }
            State::Abandoned => Ok(Step::Continue),
            State::Idle => Err(Violation("request trailers came before their headers")),
            State::Deciding(..) | State::Sent(_) | State::Refused => {
                Err(Violation("request trailers came after the end of the request"))
            }
        }
    }

    /// Returns `true` if the request's body comes at its own pace, and only what we send of it goes on.
    fn is_full_duplex(&self) -> bool {
        self.modes.is_none_or(|modes| modes.request == Mode::FullDuplex)
    }

    /// A part of a body that goes on as it is.
    fn relay(&mut self, data: Pieces, last: bool, now: Instant) -> Step {
        if !self.is_full_duplex() {
            return self.relay_reply(Reply::RequestBodyAsIs, last);
        }
        self.relayed = self.relayed.saturating_add(data.len());
        if let State::Deciding(request, _) = &self.state {
            let counted = self.subset.counted() + request.headers.counted() + self.relayed;
            // Whoever doesn't have to wait may send more.
            if self.is_too_large(self.relayed) {
                return self.refuse(Rejection::saturated(TOO_MUCH_TO_WAIT), SeriesKey::unknown(), now);
            }
            if !self.has_room(counted) {
                return self.refuse_for_memory(now);
            }
            let copies = self.shared.budget.copies();
            data.into_iter().for_each(|piece| {
                self.early.push(if copies { Bytes::copy_from_slice(&piece) } else { piece });
            });
        } else {
            self.replies.request_body(data, last);
            self.report_relayed();
        }
        if last {
            self.relay_ends();
        }
        Step::Continue
    }

    /// Replies to a message that goes on as it is, though not before the headers do.
    fn relay_reply(&mut self, reply: Reply, last: bool) -> Step {
        if matches!(self.state, State::Deciding(..)) {
            self.replies.push_after_headers(reply);
        } else {
            self.replies.push(reply);
        }
        if last {
            self.relay_ends();
        }
        Step::Continue
    }

    /// The last part of a body went on.
    fn relay_ends(&mut self) {
        if let State::Deciding(_, BodyEnd::Relayed { ended }) = &mut self.state {
            *ended = true;
            return;
        }
        self.state = State::Sent(BodyEnd::Relayed { ended: true });
        self.note_relayed();
    }

    /// A relayed body is on its way as a whole, as is the rest of its request.
    fn note_relayed(&mut self) {
        if !self.is_full_duplex() {
            return;
        }
        if let Some(series) = self.response.series() {
            series.request_size.observe(self.relayed as f64);
        }
        if let Some(routed) = &mut self.routed {
            routed.body_sent(self.relayed);
        }
    }

    fn report_relayed(&mut self) {
        if let Some(routed) = &mut self.routed {
            routed.relayed(self.relayed);
        }
    }

    fn is_too_large(&self, length: usize) -> bool {
        length > self.shared.max_request_body_bytes
    }

    fn refuse_as_too_large(&mut self, now: Instant) -> Step {
        let limit = self.shared.max_request_body_bytes;
        let message = format!("the request body is larger than {limit} bytes");
        self.refuse(Rejection::new(Code::PayloadTooLarge, message), SeriesKey::unknown(), now)
    }

    /// The request's body is complete, or relayed.
    fn finish(&mut self, end: BodyEnd, now: Instant) -> Step {
        let State::Body(mut parser) = std::mem::replace(&mut self.state, State::Abandoned) else {
            return Step::Continue;
        };
        let finished = parser.finish_by(&self.shared.rules.current(), &mut rand::rng());
        match finished {
            Ok(request) => self.decide(request, end, now),
            Err(error) => {
                self.state = State::Body(parser);
                self.refuse_as_invalid(&error, now)
            }
        }
    }

    fn refuse_as_invalid(&mut self, error: &ParseError, now: Instant) -> Step {
        let rejection = Rejection::new(Code::BadRequest, error.to_string());
        self.refuse(rejection, SeriesKey::unknown(), now)
    }

    pub(super) fn decide(&mut self, mut request: Request, end: BodyEnd, now: Instant) -> Step {
        request.priority = self.priority;
        self.shared.policy.load().stages.process_headers(&mut request);
        // A plugin may have its own view of it.
        self.priority = request.priority;
        let relays = matches!(end, BodyEnd::Relayed { .. }) && self.is_full_duplex();
        if request.priority < 0 && (!request.body.is_empty() || relays) && self.shared.budget.is_tight() {
            // These go first: what is left is for the others.
            self.shared.budget.count_refused();
            let request = Arc::new(request);
            self.state = State::Deciding(Arc::clone(&request), end);
            return self.refuse(Rejection::saturated(NO_MEMORY), SeriesKey::of(&request), now);
        }
        if let Some(by) = &request.rewritten_by {
            let series = self.shared.metrics.series(SeriesKey::of(&request));
            self.shared.metrics.rewritten(by, &series);
        }
        request.received = self.started;
        request.skips_queue = end == BodyEnd::Headers;
        request.is_uploading = relays;
        if let Some(trace) = &mut self.trace {
            trace.deciding(&mut request, now);
        }
        let request = Arc::new(request);
        self.state = State::Deciding(Arc::clone(&request), end);
        Step::Decide(DecisionRequest { request, subset: self.subset.clone() })
    }

    pub(super) fn route(&mut self, request: &Request, end: BodyEnd, mut routed: Routed, now: Instant) {
        let held = self.held.take();
        let body = request.outgoing();
        let relays = matches!(end, BodyEnd::Relayed { .. });
        let series = if end == BodyEnd::Headers || relays && !self.is_full_duplex() {
            // Without its body a request is not counted, as in llm-d-router.
            self.response.read_as(request.api);
            None
        } else {
            let series = self.shared.metrics.series(SeriesKey::of(request));
            let gen_ai = self.shared.metrics.gen_ai.as_ref().and_then(|metrics| metrics.of(request));
            self.response.expect(request, Arc::clone(&series), gen_ai, self.started);
            Some(series)
        };
        let is_shown = self.modes.is_none_or(|modes| modes.response != Mode::None);
        let has_id = request.headers.name("x-request-id").is_some_and(|id| !id.is_empty());
        let (destination, request_id) = (routed.destination(), (!has_id).then(new_request_id));
        let ids = LogIds { new_request: request_id.as_deref(), trace: self.trace_id() };
        decision_log::routed(request, ids, &destination, &routed);
        self.record(request, request_id.as_deref(), &mut routed);
        let mut headers = routed.headers().to_vec();
        if let Some(trace) = &mut self.trace {
            headers.push(trace.header());
            trace.routed(Routing { destination: &destination, new_id: request_id.as_deref() }, now);
        }
        let route = Route {
            destination,
            request_id,
            content_length: (body.len() != request.body.len()).then_some(body.len()),
            headers,
            plain: is_shown && self.response.is_read() && accepts_encodings(&request.headers),
            scores: routed.take_scores(),
        };
        let more = end == BodyEnd::Relayed { ended: false };
        let mut early = std::mem::take(&mut self.early);
        if relays && self.is_full_duplex() {
            early.seal();
            self.replies.early_request_body(early.chunks().iter().cloned(), !more);
        }
        self.replies.request_headers(route);
        routed.relayed(self.relayed);
        self.routed = Some(routed);
        self.state = if more { State::Relaying } else { State::Sent(end) };
        let Some(series) = series else { return };
        series.total.inc();
        if let Some(held) = held {
            self.leaves_with(held);
        }
        if !relays {
            self.replies.request_body(body.chunks().iter().cloned(), end == BodyEnd::Flag);
            series.request_size.observe(body.len() as f64);
        } else if !more {
            self.note_relayed();
        }
        if end == BodyEnd::Trailers {
            self.replies.push(Reply::RequestTrailers);
        }
        if let Some(started) = self.started {
            let taken = now.saturating_duration_since(started);
            self.shared.metrics.request_processing.observe(taken.as_secs_f64());
        }
    }
}

/// Returns `true` if a request accepts an encoded response; in others there is nothing to remove.
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

/// A version 4 UUID.
fn new_request_id() -> String {
    let bits = (rand::random::<u128>() & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}
