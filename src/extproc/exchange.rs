//! One HTTP request and its answer, as a state machine: messages and decisions
//! go in, replies come out. It does no I/O and owns no clock, so whatever a
//! gateway sends, in whatever order, can be tried in a test.
//!
//! ```text
//! headers ─▶ body ─▶ deciding ─▶ sent          (request; without a body: headers ─▶ deciding)
//!              answer: waiting ─▶ body ─▶ done  (may begin at any time: gateways answer themselves)
//! ```

use std::sync::Arc;
use std::task::Context;
use std::time::Instant;

use bytes::Bytes;

use crate::endpoints::SubsetHint;
use crate::flow::{Code, Rejection, Routed};
use crate::memory::{Budget, Kind, Reservation};
use crate::request::{Body, Headers, ParserKind, Parsers, Pieces, Request, RequestParser, RuleBook};
use crate::schedule::{Attribute, Served, Stages};

use super::answer::Answer;
use super::event::{Event, Message, Mode, Modes};
use super::metrics::ExtProcMetrics;
use super::outbox::KEEP;
use super::parsing::Parsing;
use super::replies::Replies;
use super::reply::{CHUNK_LIMIT, Reply, Route};
use super::series::SeriesKey;

/// What a client is told whose body there is no room for.
const NO_MEMORY: &str = "no memory is left for the request; it may be sent again";

/// What all exchanges of a server share.
#[derive(Debug)]
pub struct Shared {
    /// The configuration's parsers.
    pub parsers: Parsers,
    /// Largest body of a request in bytes; beyond it the client gets 413.
    pub max_request_body_bytes: usize,
    /// Where bodies are counted; what has no room there gets 429.
    pub budget: Arc<Budget>,
    /// The plugins around the decision; exchanges run those that read headers.
    pub stages: Arc<Stages>,
    /// What operators say about priorities and models.
    pub rules: Arc<RuleBook>,
    /// What exchanges count.
    pub metrics: ExtProcMetrics,
    /// How long parsers take.
    pub parsing: Parsing,
}

/// A request that waits for its destination.
#[derive(Clone, Debug)]
pub struct Question {
    /// The request.
    pub request: Arc<Request>,
    /// Where it may go.
    pub subset: SubsetHint,
}

/// What to do after a message.
#[derive(Debug)]
pub enum Step {
    /// Send the replies and wait for the next message.
    Continue,
    /// Find a destination and call [`Exchange::decided`].
    Decide(Question),
    /// Send the replies, then end the stream.
    End,
}

/// The gateway sent something that makes no sense where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Violation(&'static str);

/// How the body of a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyEnd {
    /// There was none.
    Headers,
    /// With the flag on the last chunk.
    Flag,
    /// With trailers, which wait for a reply of their own.
    Trailers,
    /// It doesn't come to us in full duplex: decided on the headers alone.
    NotOurs {
        /// Its last message has been here.
        ended: bool,
    },
}

#[derive(Debug)]
enum State {
    Idle,
    Body(Box<RequestParser>),
    Deciding(Arc<Request>, BodyEnd),
    /// Sent on; nothing more may come.
    Sent(BodyEnd),
    /// Sent on; every further message gets a reply as it is.
    Relaying,
    /// The gateway answered before we did.
    Abandoned,
    /// We answered ourselves.
    Refused,
}

/// The state of one exchange.
#[derive(Debug)]
pub struct Exchange {
    shared: Arc<Shared>,
    state: State,
    modes: Option<Modes>,
    subset: SubsetHint,
    started: Option<Instant>,
    routed: Option<Routed>,
    /// Room for the request's body, from its first chunk until the last is on its way, and for
    /// headers that are large.
    held: Option<Reservation>,
    answer: Answer,
    replies: Replies,
}

impl Exchange {
    /// An exchange before its first message.
    pub fn new(shared: Arc<Shared>) -> Self {
        let answer = Answer::new(&shared.parsers);
        Self {
            shared,
            state: State::Idle,
            modes: None,
            subset: SubsetHint::Missing,
            started: None,
            routed: None,
            held: None,
            answer,
            replies: Replies::default(),
        }
    }

    /// The next reply to send.
    pub fn next_reply(&mut self) -> Option<Reply> {
        self.replies.next()
    }

    /// Whether a decision is still wanted.
    pub fn is_deciding(&self) -> bool {
        matches!(self.state, State::Deciding(..))
    }

    /// All replies have been sent. A request that waits for its answer, which may take
    /// minutes, gives back the room for them.
    pub fn settle(&mut self) {
        if matches!(self.state, State::Sent(_)) && self.answer.is_awaited() {
            self.replies = Replies::default();
        }
    }

    /// The parser that reads the answer, while it does.
    pub fn answer_parser(&self) -> Option<ParserKind> {
        self.answer.parser()
    }

    /// Takes a message.
    ///
    /// # Errors
    /// When it can't come at this point. The stream has to end then.
    pub fn on_message(&mut self, message: Message, now: Instant) -> Result<Step, Violation> {
        if let Some(modes) = message.modes
            && self.modes.is_none()
        {
            self.note_modes(modes);
        }
        if let Some(subset) = message.subset {
            self.subset = subset;
        }
        let step = self.on_event(message.event, &message.served, now);
        if !matches!(self.state, State::Idle | State::Body(_) | State::Deciding(..)) {
            // Nothing is kept of the body, or it is on its way and has its room with it.
            self.held = None;
        }
        if step.is_err() {
            self.shared.metrics.violations.inc();
        }
        step
    }

    /// A message is arriving, and so much of it is kept until the rest is there.
    pub fn on_part(&mut self, bytes: usize, now: Instant) -> Step {
        let before = match &self.state {
            State::Idle => 0,
            State::Body(parser) => parser.counted(),
            // Parts of answers, which pass through.
            _ => return Step::Continue,
        };
        if self.has_room(before.saturating_add(bytes)) {
            return Step::Continue;
        }
        self.refuse_for_memory(now)
    }

    fn on_event(&mut self, event: Event, served: &Served, now: Instant) -> Result<Step, Violation> {
        match event {
            Event::RequestHeaders { headers, end_of_stream } => {
                self.request_headers(headers, end_of_stream, now)
            }
            Event::RequestBody { data, end_of_stream } => self.request_body(data, end_of_stream, now),
            Event::RequestTrailers => self.request_trailers(now),
            Event::ResponseHeaders { status, event_stream, end_of_stream } => {
                let asked = match &self.state {
                    State::Body(parser) => parser.api(),
                    State::Deciding(request, _) => Some(request.api),
                    _ => None,
                };
                if let Some(api) = asked {
                    self.answer.read_as(api);
                }
                if matches!(self.state, State::Idle | State::Body(_) | State::Deciding(..)) {
                    // The gateway answers itself, for example after a time-out, or
                    // shows us answers only. A body that is still on its way to us
                    // belongs to nobody.
                    self.state = State::Abandoned;
                }
                self.answer.headers(event_stream, end_of_stream).map_err(Violation)?;
                // What comes buffered, or not at all, says nothing about a first token.
                let is_shown = self.modes.is_none_or(|modes| modes.response == Mode::FullDuplex);
                let set = self
                    .routed
                    .as_mut()
                    .map(|routed| routed.answer_begins(served, status.verdict(), event_stream && is_shown))
                    .unwrap_or_default();
                self.replies.push(Reply::ResponseHeaders(set));
                if end_of_stream {
                    // There is no message left that could carry numbers.
                    self.attributes();
                }
                self.complete(end_of_stream, now);
                Ok(Step::Continue)
            }
            Event::ResponseBody { data, end_of_stream } => {
                self.answer.chunk(&data, now).map_err(Violation)?;
                if let Some(routed) = &mut self.routed
                    && !data.is_empty()
                {
                    routed.first_bytes();
                }
                let attributes = if end_of_stream { self.attributes() } else { Vec::new() };
                if self.modes.is_some_and(|modes| modes.response != Mode::FullDuplex) {
                    self.replies.push(Reply::ResponseBodyAsIs { attributes });
                } else {
                    let data = self.answer.restore(data, end_of_stream);
                    self.replies.response_body(data, end_of_stream, attributes);
                }
                self.complete(end_of_stream, now);
                Ok(Step::Continue)
            }
            Event::ResponseTrailers => {
                let held = self.answer.trailers().map_err(Violation)?;
                let attributes = self.attributes();
                self.replies.response_body(held, false, Vec::new());
                self.replies.push(Reply::ResponseTrailers { attributes });
                self.complete(true, now);
                Ok(Step::Continue)
            }
        }
    }

    /// The destination that was asked for, or why there is none.
    pub fn decided(&mut self, result: Result<Routed, Rejection>, now: Instant) -> Step {
        let (request, end) = match std::mem::replace(&mut self.state, State::Abandoned) {
            State::Deciding(request, end) => (request, end),
            other => {
                // The gateway went on without us: the destination is given back.
                self.state = other;
                return Step::Continue;
            }
        };
        match result {
            Ok(routed) => {
                self.route(&request, end, routed, now);
                Step::Continue
            }
            Err(rejection) => self.refuse(rejection, &series_key(&request), now),
        }
    }

    /// Whether the request runs and is to end, as others need its room. Wakes the task
    /// when that comes.
    pub fn is_revoked(&self, context: &mut Context<'_>) -> bool {
        self.routed.as_ref().is_some_and(|routed| routed.poll_revoked(context).is_ready())
    }

    /// Ends a request that runs.
    pub fn revoke(&mut self) -> Step {
        self.routed = None;
        if let Some(series) = self.answer.series() {
            self.shared.metrics.refused(series, Code::Evicted);
        }
        self.state = State::Refused;
        self.replies.immediate(Rejection::evicted());
        Step::End
    }

    fn note_modes(&mut self, modes: Modes) {
        self.modes = Some(modes);
        for (direction, mode) in [("request", modes.request), ("response", modes.response)] {
            if mode != Mode::FullDuplex {
                let first = self.shared.metrics.other_mode(direction, mode);
                // Every request of such a gateway says so; the log says it once.
                if first {
                    tracing::warn!(
                        direction,
                        ?mode,
                        "gateway does not send bodies in full duplex; set request_body_mode and response_body_mode to FULL_DUPLEX_STREAMED"
                    );
                }
            }
        }
    }

    fn request_headers(
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
        if !end_of_stream {
            // They are kept until the body is there, or while the request waits.
            let counted = headers.counted();
            if counted > 0 && !self.has_room(counted) {
                return Ok(self.refuse_for_memory(now));
            }
            if self.shared.budget.copies() {
                headers.detach();
            }
        }
        let parser = RequestParser::new(headers, &self.shared.parsers);
        let bodies = self.modes.map_or(Mode::FullDuplex, |modes| modes.request);
        if end_of_stream {
            return Ok(self.decide(parser.without_body(), BodyEnd::Headers, now));
        }
        if bodies != Mode::FullDuplex {
            // The gateway waits for this reply before it sends a body, or never sends one.
            return Ok(self.decide(parser.without_body(), BodyEnd::NotOurs { ended: false }, now));
        }
        self.state = State::Body(Box::new(parser));
        Ok(Step::Continue)
    }

    fn request_body(&mut self, data: Pieces, end_of_stream: bool, now: Instant) -> Result<Step, Violation> {
        match &mut self.state {
            State::Body(parser) => {
                if parser.body_len() + data.len() > self.shared.max_request_body_bytes {
                    let limit = self.shared.max_request_body_bytes;
                    let message = format!("the request body is larger than {limit} bytes");
                    let rejection = Rejection::new(Code::PayloadTooLarge, message);
                    return Ok(self.refuse(rejection, &SeriesKey::unknown(), now));
                }
                let counted = parser.counted() + data.len();
                if !self.has_room(counted) {
                    return Ok(self.refuse_for_memory(now));
                }
                let State::Body(parser) = &mut self.state else { return Ok(Step::Continue) };
                let copies = self.shared.budget.copies();
                data.into_iter().for_each(|piece| {
                    parser.push(if copies { Bytes::copy_from_slice(&piece) } else { piece });
                });
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

    fn request_trailers(&mut self, now: Instant) -> Result<Step, Violation> {
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

    fn decide(&mut self, mut request: Request, end: BodyEnd, now: Instant) -> Step {
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

    fn route(&mut self, request: &Request, end: BodyEnd, routed: Routed, now: Instant) {
        let held = self.held.take();
        let body = request.outgoing();
        let has_id = request.headers.get("x-request-id").is_some_and(|id| !id.is_empty());
        let route = Route {
            destination: routed.destination(),
            request_id: (!has_id).then(new_request_id),
            content_length: (body.len() != request.body.len()).then_some(body.len()),
            headers: routed.headers().to_vec(),
            scores: routed.scores(),
        };
        self.replies.request_headers(route);
        self.routed = Some(routed);
        match end {
            BodyEnd::Flag | BodyEnd::Trailers => self.state = State::Sent(end),
            // Without its body a request is not counted, as with the peer.
            BodyEnd::Headers | BodyEnd::NotOurs { .. } => {
                let more = end == BodyEnd::NotOurs { ended: false };
                self.state = if more { State::Relaying } else { State::Sent(end) };
                return self.answer.read_as(request.api);
            }
        }
        self.replies.request_body(outgoing(&body, held), end == BodyEnd::Flag);
        if end == BodyEnd::Trailers {
            self.replies.push(Reply::RequestTrailers);
        }
        let metrics = &self.shared.metrics;
        let series = metrics.series(&series_key(request));
        series.total.inc();
        series.request_size.observe(body.len() as f64);
        if let Some(started) = self.started {
            let taken = now.saturating_duration_since(started);
            metrics.request_processing.observe(taken.as_secs_f64());
        }
        self.answer.expect(request, series, self.started);
    }

    /// Whether there is room for so much of the request. It is taken then.
    fn has_room(&mut self, bytes: usize) -> bool {
        let budget = &self.shared.budget;
        let held = self.held.get_or_insert_with(|| Reservation::new(budget, Kind::Bodies));
        held.grow_to(bytes as u64).is_ok()
    }

    /// There is no room for the request. What is there of it is dropped.
    fn refuse_for_memory(&mut self, now: Instant) -> Step {
        self.shared.budget.count_refused();
        self.refuse(Rejection::saturated(NO_MEMORY), &SeriesKey::unknown(), now)
    }

    fn refuse(&mut self, rejection: Rejection, key: &SeriesKey, now: Instant) -> Step {
        let metrics = &self.shared.metrics;
        metrics.refused(&metrics.series(key), rejection.code);
        if let Some(started) = self.started {
            metrics.request_processing.observe(now.saturating_duration_since(started).as_secs_f64());
        }
        self.state = State::Refused;
        self.held = None;
        self.replies.immediate(rejection);
        Step::End
    }

    /// What the gateway is told once the answer is complete.
    fn attributes(&mut self) -> Vec<Attribute> {
        match &mut self.routed {
            Some(routed) => routed.answer_ends(&self.answer.used()),
            None => Vec::new(),
        }
    }

    /// Ends the answer if this was its last part: its load is given back at once,
    /// whenever the gateway closes the stream.
    fn complete(&mut self, last: bool, now: Instant) {
        if last {
            self.answer.complete(&self.shared.metrics, now);
            self.routed = None;
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // An answer that was cut off: what it used so far is counted.
        self.answer.cut_off(&self.shared.metrics);
    }
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

fn series_key(request: &Request) -> SeriesKey {
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

#[cfg(test)]
#[path = "exchange_tests.rs"]
mod tests;
