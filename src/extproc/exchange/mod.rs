//! One HTTP request and its response, as a state machine: messages and decisions
//! go in, replies come out. It does no I/O and owns no clock, so whatever a
//! gateway sends, in whatever order, can be tried in a test.
//!
//! ```text
//! headers ─▶ body ─▶ deciding ─▶ sent          (request; without a body: headers ─▶ deciding)
//!              response: waiting ─▶ body ─▶ done  (may begin at any time: gateways respond themselves)
//! ```

mod decision_log;
mod recording;
mod request;
mod response;
mod room;

use std::sync::Arc;
use std::task::Context;
use std::time::Instant;

use crate::endpoints::SubsetHint;
use crate::flow::{ActivePolicy, Rejection, Routed};
use crate::memory::{Budget, RefusedStream, Reservation, Upload};
use crate::otel::{RequestTrace, TraceId, Tracer};
use crate::records::{Ending, Records, Tracked};
use crate::request::{Body, ParserKind, Parsers, Request, RequestParser, RuleBook};
use crate::schedule::Served;

use super::metrics::ExtProcMetrics;
use super::parsing::Parsing;
use super::replies::Replies;
use super::response_tracker::{self, ResponseTracker};
use super::series::SeriesKey;
use usher_wire::event::{Event, Message, Mode, Modes};
use usher_wire::reply::Reply;

/// Message for clients whose request still waits when its body exceeds the limit.
const TOO_MUCH_TO_WAIT: &str =
    "the request waits, and more of its body came than is kept meanwhile (--max-request-body-bytes)";

/// State shared by all exchanges of a server.
#[derive(Debug)]
pub struct Shared {
    /// The configuration's parsers.
    pub parsers: Parsers,
    /// Largest body of a request in bytes; beyond it the client gets 413.
    pub max_request_body_bytes: usize,
    /// Budget of bodies; what has no room there gets 429.
    pub budget: Arc<Budget>,
    /// The policy in effect; exchanges run its plugins that read headers.
    pub policy: ActivePolicy,
    /// The operators' rules on priorities and models.
    pub rules: Arc<RuleBook>,
    /// Metrics of exchanges.
    pub metrics: ExtProcMetrics,
    /// Durations of parsers.
    pub parsing: Parsing,
    /// Traces requests; `None`: nothing is traced.
    pub tracer: Option<Tracer>,
    /// Ring that requests enter which are refused before they are scheduled; `None`: nothing is recorded.
    pub records: Option<Arc<Records>>,
}

/// A request that waits for its destination.
#[derive(Clone, Debug)]
pub struct DecisionRequest {
    /// The request.
    pub request: Arc<Request>,
    /// Endpoints that it may go to.
    pub subset: SubsetHint,
}

/// Next step after a message.
#[derive(Debug)]
pub enum Step {
    /// Send the replies and wait for the next message.
    Continue,
    /// Find a destination and call [`Exchange::decided`].
    Decide(DecisionRequest),
    /// Send the replies, then end the stream.
    End,
}

/// The gateway sent something that makes no sense where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Violation(&'static str);

/// End of a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyEnd {
    /// No body.
    Headers,
    /// With the flag on the last chunk.
    Flag,
    /// With trailers, which wait for a reply of their own.
    Trailers,
    /// Decided on the headers alone, as nobody reads it, or as it doesn't come to us in full
    /// duplex: it goes on as it comes.
    Relayed {
        /// `true` once its last message has been here.
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
    /// Sent on; every further part of the body goes on as it is.
    Relaying,
    /// The gateway responded before we did.
    Abandoned,
    /// We responded ourselves.
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
    /// Priority of the request, once it is known.
    priority: i32,
    routed: Option<Routed>,
    /// Record of the decision, until the response ends. In a box, as there may be none.
    tracked: Option<Box<Tracked>>,
    /// Place of a stream for which there is no room.
    refused: Option<Box<RefusedStream>>,
    /// Room for the request's body, from its first chunk until the last is on its way, and for
    /// headers that are large.
    held: Option<Reservation>,
    /// Room for a part of a message that passes through, until its rest is there. In a box, as most
    /// streams never have one.
    part: Option<Box<Reservation>>,
    /// Room for what the next replies say.
    leaving: Option<Box<Reservation>>,
    /// The request, while some of it is missing that didn't come at once.
    upload: Option<Arc<Upload>>,
    /// Bytes of a relayed body, so far.
    relayed: usize,
    /// Part of that body that arrived while the request waited.
    early: Body,
    response: ResponseTracker,
    replies: Replies,
    /// Trace of the request until it ends, where requests are traced.
    trace: Option<Box<RequestTrace>>,
}

impl Exchange {
    /// An exchange before its first message.
    pub fn new(shared: Arc<Shared>) -> Self {
        let response = ResponseTracker::new(&shared.parsers);
        let refused = (!shared.budget.open_stream()).then(|| Box::new(shared.budget.refuse_stream()));
        Self {
            shared,
            refused,
            state: State::Idle,
            modes: None,
            subset: SubsetHint::Missing,
            started: None,
            priority: 0,
            routed: None,
            tracked: None,
            held: None,
            part: None,
            leaving: None,
            upload: None,
            relayed: 0,
            early: Body::default(),
            response,
            replies: Replies::default(),
            trace: None,
        }
    }

    /// The next reply to send.
    pub fn next_reply(&mut self) -> Option<Reply> {
        self.replies.next()
    }

    /// Returns `true` if a decision is still wanted.
    pub fn is_deciding(&self) -> bool {
        matches!(self.state, State::Deciding(..))
    }

    /// All replies have been taken. Returns the room of what they say, which counts until they are
    /// written. A request that waits for its response, which may take minutes, gives back the room for
    /// the replies themselves.
    pub fn settle(&mut self) -> Option<Box<Reservation>> {
        if matches!(self.state, State::Sent(_)) && self.response.is_awaited() {
            self.replies = Replies::default();
        }
        self.leaving.take()
    }

    /// Priority of the request, 0 before it is known.
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// The parser that reads the response, while it does.
    pub fn response_parser(&self) -> Option<ParserKind> {
        self.response.parser()
    }

    /// Takes a message.
    ///
    /// # Errors
    /// `Violation` if the message isn't allowed at this point. The stream has to end then.
    pub fn on_message(&mut self, message: Message, now: Instant) -> Result<Step, Violation> {
        if let Some(modes) = message.modes
            && self.modes.is_none()
        {
            self.note_modes(modes);
        }
        if let Some(subset) = message.subset {
            self.subset = subset;
        }
        // What is kept while a request waits is counted with the rest of it.
        let part = self.part.take().filter(|_| !self.is_deciding());
        let step = self.on_event(message.event, &message.served, now);
        if let Some(part) = part.filter(|_| !matches!(self.state, State::Refused)) {
            self.leaves_with(*part);
        }
        if !matches!(self.state, State::Idle | State::Body(_) | State::Deciding(..)) {
            // Nothing is kept of the body, or it is on its way and has its room with it.
            self.held = None;
        }
        if !matches!(self.state, State::Body(_)) {
            self.upload = None;
        }
        if step.is_err() {
            self.shared.metrics.violations.inc();
        }
        step
    }

    fn on_event(&mut self, event: Event, served: &Served, now: Instant) -> Result<Step, Violation> {
        match event {
            Event::RequestHeaders { headers, end_of_stream } => {
                self.request_headers(headers, end_of_stream, now)
            }
            Event::RequestBody { data, end_of_stream } => self.request_body(data, end_of_stream, now),
            Event::RequestTrailers => self.request_trailers(now),
            Event::ResponseHeaders { status, event_stream, encoded, end_of_stream } => {
                let kind = response_tracker::Kind { event_stream, encoded };
                self.response_headers(status, kind, end_of_stream, served, now)
            }
            Event::ResponseBody { data, end_of_stream } => self.response_body(data, end_of_stream, now),
            Event::ResponseTrailers => self.response_trailers(now),
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
        let step = match result {
            Ok(routed) => {
                self.route(&request, end, routed, now);
                Step::Continue
            }
            Err(rejection) => {
                decision_log::refused(&request, self.trace_id(), &rejection);
                self.refuse(rejection, SeriesKey::of(&request), now)
            }
        };
        // By now all of them have been read that are.
        self.shared.metrics.ignored(&request.headers);
        step
    }

    /// Returns `true` if the request runs and is to end, as others need its room. Wakes the
    /// task when that comes.
    pub fn is_revoked(&self, context: &mut Context<'_>) -> bool {
        self.routed.as_ref().is_some_and(|routed| routed.poll_revoked(context).is_ready())
    }

    /// Ends a request that runs, for another.
    pub fn revoke(&mut self) -> Step {
        self.give_up(Rejection::evicted())
    }

    /// Ends a request that is on its way.
    fn give_up(&mut self, rejection: Rejection) -> Step {
        if let Some(mut routed) = self.routed.take() {
            routed.cut_off(&self.response.used(), self.response.generated());
            routed.withdraw();
        }
        self.record_ending(Ending::CutOff);
        if let Some(series) = self.response.series() {
            self.shared.metrics.refused(series, rejection.code);
        }
        self.refused_with(rejection)
    }

    /// Drops what there is of the request, and says this instead.
    fn refused_with(&mut self, rejection: Rejection) -> Step {
        self.count_ignored();
        if let Some(trace) = &mut self.trace {
            trace.refused(&rejection);
        }
        self.end_trace(true);
        self.state = State::Refused;
        (self.held, self.part, self.leaving, self.upload) = (None, None, None, None);
        self.early = Body::default();
        self.replies.immediate(rejection);
        Step::End
    }

    /// Ends the trace, if there is one. `is_complete`: nothing of the request or its response is missing.
    fn end_trace(&mut self, is_complete: bool) {
        if let Some(trace) = self.trace.take() {
            trace.end(self.response.used(), is_complete);
        }
    }

    /// Id of the request's trace, for the log.
    fn trace_id(&self) -> Option<TraceId> {
        self.trace.as_ref().map(|trace| trace.id())
    }

    /// Counts headers that were read so far and ignored, where nothing was decided.
    fn count_ignored(&self) {
        match &self.state {
            State::Body(parser) => self.shared.metrics.ignored(parser.headers()),
            State::Deciding(request, _) => self.shared.metrics.ignored(&request.headers),
            _ => {}
        }
    }

    /// Gives back what was booked for a response that doesn't end. What there was of it counts.
    fn cut_off(&mut self) {
        if let Some(mut routed) = self.routed.take() {
            routed.cut_off(&self.response.used(), self.response.generated());
        }
        let ending = self.ending();
        self.record_ending(ending);
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
                        mode = mode.name(),
                        "gateway does not send bodies in full duplex; set request_body_mode and response_body_mode to FULL_DUPLEX_STREAMED"
                    );
                }
            }
        }
    }

    fn refuse(&mut self, rejection: Rejection, key: SeriesKey<'_>, now: Instant) -> Step {
        if self.routed.is_some() {
            return self.give_up(rejection);
        }
        self.record_refusal(&rejection, now);
        let metrics = &self.shared.metrics;
        metrics.refused(&metrics.series(key), rejection.code);
        if let Some(started) = self.started {
            metrics.request_processing.observe(now.saturating_duration_since(started).as_secs_f64());
        }
        self.refused_with(rejection)
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.shared.budget.close_stream();
        self.end_trace(self.ending() == Ending::Unseen);
        self.cut_off();
        // A response that was cut off: what it used so far is counted.
        self.response.cut_off(&self.shared.metrics);
    }
}

#[cfg(test)]
mod tests;
