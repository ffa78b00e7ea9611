//! One HTTP request and its answer, as a state machine: messages and decisions
//! go in, replies come out. It does no I/O and owns no clock, so whatever a
//! gateway sends, in whatever order, can be tried in a test.
//!
//! ```text
//! headers ─▶ body ─▶ deciding ─▶ sent          (request; without a body: headers ─▶ deciding)
//!              answer: waiting ─▶ body ─▶ done  (may begin at any time: gateways answer themselves)
//! ```

mod request;
mod response;

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Instant;

use self::request::series_key;
use tokio_util::sync::CancellationToken;

use crate::endpoints::SubsetHint;
use crate::flow::{Code, Rejection, Routed};
use crate::memory::{Budget, FREE_UNSENT, GivenUp, Kind, RefusedStream, Reservation, Upload};
use crate::request::{Body, Headers, ParserKind, Parsers, Request, RequestParser, RuleBook};
use crate::schedule::{Served, Stages};

use super::answer::{self, Answer};
use super::event::{Event, Message, Mode, Modes};
use super::metrics::ExtProcMetrics;
use super::parsing::Parsing;
use super::replies::Replies;
use super::reply::Reply;
use super::series::SeriesKey;

/// Error message for a request body that stalls.
const IDLE_BODY: &str = "no more of the request body came for too long (--body-idle-timeout)";

/// The same for any other message, such as that of the headers.
const IDLE_MESSAGE: &str = "no more of a message came for too long (--body-idle-timeout)";

/// What a client is told whose body there is no room for.
const NO_MEMORY: &str = "no memory is left for the request; it may be sent again";

/// Message for clients whose request still waits when its body exceeds the limit.
const TOO_MUCH_TO_WAIT: &str =
    "the request waits, and more of its body came than is kept meanwhile (--max-request-body-bytes)";

/// Largest headers of a request, in bytes: they are put together when all of them are there, and
/// are there twice then.
const MAX_HEADERS: usize = 1 << 20;

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
    /// Decided on the headers alone, as nobody reads it, or as it doesn't come to us in full
    /// duplex: it goes on as it comes.
    Relayed {
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
    /// Sent on; every further part of the body goes on as it is.
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
    /// Priority of the request, once it is known.
    priority: i32,
    routed: Option<Routed>,
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
    /// Bytes of a body that nobody reads, so far.
    relayed: usize,
    /// Part of that body that arrived while the request waited.
    early: Body,
    answer: Answer,
    replies: Replies,
}

impl Exchange {
    /// An exchange before its first message.
    pub fn new(shared: Arc<Shared>) -> Self {
        let answer = Answer::new(&shared.parsers);
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
            held: None,
            part: None,
            leaving: None,
            upload: None,
            relayed: 0,
            early: Body::default(),
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

    /// All replies have been taken. Returns the room of what they say, which counts until they are
    /// written. A request that waits for its answer, which may take minutes, gives back the room for
    /// the replies themselves.
    pub fn settle(&mut self) -> Option<Box<Reservation>> {
        if matches!(self.state, State::Sent(_)) && self.answer.is_awaited() {
            self.replies = Replies::default();
        }
        self.leaving.take()
    }

    /// Priority of the request, 0 before it is known.
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// The parser that reads the answer, while it does.
    pub fn answer_parser(&self) -> Option<ParserKind> {
        self.answer.parser()
    }

    /// Cancelled when the stream has to be reset, as there is no room for it and its client doesn't take
    /// the refusal.
    pub fn end(&self) -> Option<&CancellationToken> {
        self.refused.as_deref().map(RefusedStream::end)
    }

    /// Ends the stream where no memory is left for it, or where its body doesn't come. To be asked
    /// before its first message, and whenever its task is woken.
    pub fn turn_away(&mut self, now: impl FnOnce() -> Instant) -> Option<Step> {
        if self.refused.is_some() && matches!(self.state, State::Idle) {
            return Some(self.refuse_for_memory(now()));
        }
        match self.upload.as_ref()?.given_up()? {
            GivenUp::Slow => Some(self.refuse_for_memory(now())),
            GivenUp::Idle => {
                let is_body = matches!(self.state, State::Body(_));
                let message = if is_body { IDLE_BODY } else { IDLE_MESSAGE };
                let rejection = Rejection::new(Code::RequestTimeout, message);
                Some(self.refuse(rejection, &SeriesKey::unknown(), now()))
            }
        }
    }

    /// Nothing more is there to read for now. Where some of the request is missing, the task that
    /// `waker` wakes is to be told when that takes too long, or others need the room. Not while
    /// replies are `unsent`: the rest may be there, and isn't read before the gateway takes them.
    #[inline]
    pub fn on_pending(&mut self, waker: &Waker, unsent: bool) {
        if unsent {
            self.upload = None;
            return;
        }
        let is_coming = matches!(self.state, State::Idle | State::Body(_)) || self.part.is_some();
        if self.upload.is_some() || !is_coming {
            return;
        }
        let received = self.held.as_ref().map_or(0, Reservation::bytes);
        let budget = &self.shared.budget;
        self.upload = Some(match &self.state {
            State::Body(parser) => {
                let priority = self.shared.rules.current().priority(parser.headers());
                budget.begin_upload(received, priority, waker)
            }
            State::Idle if received == 0 => budget.begin_silent(waker),
            // Its priority isn't known yet.
            State::Idle => budget.begin_upload(received, 0, waker),
            _ => {
                let received = self.part.as_ref().map_or(0, |part| part.bytes());
                budget.begin_upload(received, self.priority, waker)
            }
        });
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

    /// A message is arriving, and so much of it is kept until the rest is there.
    pub fn on_part(&mut self, bytes: usize, now: Instant) -> Step {
        let before = match &self.state {
            State::Idle if bytes > MAX_HEADERS => {
                let message = format!("the request's headers are larger than {MAX_HEADERS} bytes");
                let rejection = Rejection::new(Code::PayloadTooLarge, message);
                return self.refuse(rejection, &SeriesKey::unknown(), now);
            }
            State::Idle => {
                if self.held.is_none() {
                    // It isn't silent any more.
                    self.upload = None;
                }
                0
            }
            State::Body(parser) => self.subset.counted() + parser.counted(),
            State::Deciding(request, BodyEnd::Relayed { .. }) => {
                self.subset.counted() + request.headers.counted() + self.relayed
            }
            // It passes through, and is of a response, or of a body that nobody reads.
            State::Deciding(..) | State::Relaying | State::Sent(_) | State::Abandoned | State::Refused => {
                return self.pass_part(bytes, now);
            }
        };
        if self.has_room(before.saturating_add(bytes), None) {
            return Step::Continue;
        }
        self.refuse_for_memory(now)
    }

    /// A part of a message that passes through is kept. Its request may be on its way, so it is refused
    /// last.
    fn pass_part(&mut self, bytes: usize, now: Instant) -> Step {
        let Self { shared, part, priority, .. } = self;
        let part = part.get_or_insert_with(|| Box::new(Reservation::new(&shared.budget, Kind::Bodies)));
        if part.grow_beyond(bytes as u64, || Some(*priority)).is_ok() {
            if let Some(upload) = &self.upload {
                upload.received(bytes as u64);
            }
            return Step::Continue;
        }
        self.refuse_for_memory(now)
    }

    /// Keeps this room for the next replies, until they are written.
    fn leaves_with(&mut self, room: Reservation) {
        // Less counts with the stream.
        if room.bytes() <= FREE_UNSENT {
            return;
        }
        match &mut self.leaving {
            Some(leaving) => leaving.join(room),
            None => self.leaving = Some(Box::new(room)),
        }
    }

    fn on_event(&mut self, event: Event, served: &Served, now: Instant) -> Result<Step, Violation> {
        match event {
            Event::RequestHeaders { headers, end_of_stream } => {
                self.request_headers(headers, end_of_stream, now)
            }
            Event::RequestBody { data, end_of_stream } => self.request_body(data, end_of_stream, now),
            Event::RequestTrailers => self.request_trailers(now),
            Event::ResponseHeaders { status, event_stream, encoded, end_of_stream } => {
                let kind = answer::Kind { event_stream, encoded };
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
            Err(rejection) => self.refuse(rejection, &series_key(&request), now),
        };
        // By now all of them have been read that are.
        self.shared.metrics.ignored(&request.headers);
        step
    }

    /// Whether the request runs and is to end, as others need its room. Wakes the task
    /// when that comes.
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
            routed.cut_off(&self.answer.used(), self.answer.generated());
            routed.withdraw();
        }
        if let Some(series) = self.answer.series() {
            self.shared.metrics.refused(series, rejection.code);
        }
        self.refused_with(rejection)
    }

    /// Drops what there is of the request, and says this instead.
    fn refused_with(&mut self, rejection: Rejection) -> Step {
        self.count_ignored();
        self.state = State::Refused;
        (self.held, self.part, self.leaving, self.upload) = (None, None, None, None);
        self.early = Body::default();
        self.replies.immediate(rejection);
        Step::End
    }

    /// Counts headers that were read so far and ignored, where nothing was decided.
    fn count_ignored(&self) {
        match &self.state {
            State::Body(parser) => self.shared.metrics.ignored(parser.headers()),
            State::Deciding(request, _) => self.shared.metrics.ignored(&request.headers),
            _ => {}
        }
    }

    /// Gives back what was booked for an answer that doesn't end. What there was of it counts.
    fn cut_off(&mut self) {
        if let Some(mut routed) = self.routed.take() {
            routed.cut_off(&self.answer.used(), self.answer.generated());
        }
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

    /// Whether there is room for so much of the request. It is taken then. What waits makes
    /// room, but for higher priorities than this one has; its headers are those of the body that
    /// is being read, or these.
    fn has_room(&mut self, bytes: usize, headers: Option<&Headers>) -> bool {
        let Self { shared, held, state, upload, .. } = self;
        let priority = || {
            let of = |headers: &Headers| shared.rules.current().priority(headers);
            match state {
                State::Body(parser) => Some(of(parser.headers())),
                State::Deciding(request, _) => Some(request.priority),
                _ => headers.map(of),
            }
        };
        if bytes == 0 {
            return shared.budget.make_way(priority).is_ok();
        }
        if let Some(upload) = upload {
            upload.received(bytes as u64);
        }
        let held = held.get_or_insert_with(|| Reservation::new(&shared.budget, Kind::Bodies));
        held.grow_to(bytes as u64, priority).is_ok()
    }

    /// There is no room for the request. What is there of it is dropped.
    pub fn refuse_for_memory(&mut self, now: Instant) -> Step {
        self.shared.budget.count_refused();
        self.refuse(Rejection::saturated(NO_MEMORY), &SeriesKey::unknown(), now)
    }

    fn refuse(&mut self, rejection: Rejection, key: &SeriesKey, now: Instant) -> Step {
        if self.routed.is_some() {
            return self.give_up(rejection);
        }
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
        self.cut_off();
        // An answer that was cut off: what it used so far is counted.
        self.answer.cut_off(&self.shared.metrics);
    }
}

#[cfg(test)]
mod tests;
