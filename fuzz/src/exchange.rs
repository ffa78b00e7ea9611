//! The exchange under any sequence of messages and decisions.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::FutureExt;
use prometheus::Registry;
use usher::extproc::exchange::{DecisionRequest, Exchange, Shared, Step};
use usher::flow::{Code, Dispatcher, Rejection, Routed};
use usher::request::restore::ModelRestorer;
use usher::request::{Headers, Pieces, Request, RequestParser};
use usher_wire::event::{Event, Message, Mode};
use usher_wire::reply::{CHUNK_LIMIT, Reply, Route};

use super::pool::{MAX_BODY, Pool};
use super::script::{self, Script};
use super::wire::check_reply;

/// A [`Script`].
///
/// - A message is refused exactly when it can't stand where it does.
/// - Replies come in the order that the protocol wants, each after the message
///   that it answers, and none after the last. Encoded, they say the same.
/// - Bodies come out as they went in, but for the model's name where that was
///   rewritten, and so do those that the gateway keeps to itself.
/// - A request is in flight at one endpoint from its decision to the end of its
///   response, and nowhere when the exchange is gone. So is the gauge of running ones.
pub fn exchange(bytes: &[u8]) {
    let script = Script::of(bytes);
    let mut run = Run::new(&script);
    for step in script.steps {
        let going_on = match step {
            script::Step::Message(message) => run.message(message),
            script::Step::Decide => run.decide(),
            script::Step::Refuse => run.decided(|_| Err(Rejection::no_endpoints())),
            script::Step::Leave => false,
        };
        run.check();
        if !going_on {
            break;
        }
    }
    run.leave();
}

/// An exchange that is driven as the service does, and a record of its messages.
struct Run {
    exchange: Exchange,
    shared: Arc<Shared>,
    pool: Rc<Pool>,
    registry: Registry,
    late: bool,
    full_duplex: (bool, bool),
    waiting: Option<DecisionRequest>,
    request: Incoming,
    response: Incoming,
    upstream: Outgoing,
    downstream: Outgoing,
    /// The request that was routed, and its route.
    routed: Option<(Arc<Request>, Box<Route>)>,
    /// The response began before there was a destination.
    abandoned: bool,
    refused: bool,
    violations: u64,
}

/// Messages that came in one direction.
#[derive(Debug, Default)]
struct Incoming {
    headers: Option<Headers>,
    body: Vec<u8>,
    chunks: usize,
    ended: bool,
    flagged: bool,
    trailers: bool,
}

/// Replies to the messages of one direction.
#[derive(Debug, Default)]
struct Outgoing {
    headers: bool,
    body: Vec<u8>,
    as_is: usize,
    ended: bool,
    trailers: bool,
}

impl Incoming {
    fn chunk(&mut self, data: &Pieces, end: bool) {
        data.iter().for_each(|piece| self.body.extend_from_slice(piece));
        self.chunks += 1;
        (self.ended, self.flagged) = (end, end);
    }

    fn is_open(&self) -> bool {
        self.headers.is_some() && !self.ended
    }
}

impl Outgoing {
    fn chunk(&mut self, data: &Pieces, end: bool) {
        assert!(self.headers && !self.ended && !self.trailers, "a chunk where none can be");
        assert!(data.len() <= CHUNK_LIMIT && (end || !data.is_empty()));
        data.iter().for_each(|piece| self.body.extend_from_slice(piece));
        self.ended = end;
    }

    fn trailers(&mut self) {
        assert!(self.headers && !self.trailers, "trailers where none can be");
        self.trailers = true;
    }
}

impl Run {
    fn new(script: &Script) -> Self {
        let pool = Pool::of(script.endpoints);
        let registry = Registry::new();
        let shared = Arc::new(pool.shared(&registry));
        let full_duplex = |mode| mode == Mode::FullDuplex;
        Self {
            exchange: Exchange::new(Arc::clone(&shared)),
            shared,
            pool,
            registry,
            late: script.late,
            full_duplex: script
                .modes
                .map_or((true, true), |modes| (full_duplex(modes.request), full_duplex(modes.response))),
            waiting: None,
            request: Incoming::default(),
            response: Incoming::default(),
            upstream: Outgoing::default(),
            downstream: Outgoing::default(),
            routed: None,
            abandoned: false,
            refused: false,
            violations: 0,
        }
    }

    /// Sends a message. Says whether the stream goes on.
    fn message(&mut self, message: Message) -> bool {
        let event = message.event.clone();
        let can_come = self.can_come(&event);
        match self.exchange.on_message(message, Instant::now()) {
            Err(_) => {
                assert!(!can_come, "refused: {event:?}");
                self.violations += 1;
                self.replies();
                false
            }
            Ok(step) => {
                assert!(can_come, "taken: {event:?}");
                self.note(event);
                let going_on = self.step(step);
                if !self.exchange.is_deciding()
                    && let Some(question) = self.waiting.take()
                {
                    self.too_late(&question);
                }
                going_on
            }
        }
    }

    /// Returns `true` if a gateway may send this now.
    fn can_come(&self, event: &Event) -> bool {
        match event {
            Event::RequestHeaders { .. } => self.request.headers.is_none() && self.response.headers.is_none(),
            Event::RequestBody { end_of_stream, .. } => {
                // Envoy can send the last message twice.
                let again = *end_of_stream && self.request.flagged && self.full_duplex.0;
                self.abandoned || self.request.is_open() || again
            }
            Event::RequestTrailers => self.abandoned || self.request.is_open(),
            Event::ResponseHeaders { .. } => self.response.headers.is_none(),
            Event::ResponseBody { .. } => self.response.is_open(),
            Event::ResponseTrailers => self.response.headers.is_some() && !self.response.trailers,
        }
    }

    fn note(&mut self, event: Event) {
        match event {
            Event::RequestHeaders { headers, end_of_stream } => {
                self.request.headers = Some(headers);
                self.request.ended = end_of_stream;
            }
            Event::RequestBody { .. } if self.request.ended => {}
            Event::RequestBody { data, end_of_stream } => self.request.chunk(&data, end_of_stream),
            Event::RequestTrailers => (self.request.ended, self.request.trailers) = (true, true),
            Event::ResponseHeaders { end_of_stream, .. } => {
                self.abandoned |= self.routed.is_none();
                self.response.headers = Some(Headers::default());
                self.response.ended = end_of_stream;
            }
            Event::ResponseBody { data, end_of_stream } => self.response.chunk(&data, end_of_stream),
            Event::ResponseTrailers => (self.response.ended, self.response.trailers) = (true, true),
        }
    }

    fn step(&mut self, step: Step) -> bool {
        match step {
            Step::Continue => {
                self.replies();
                true
            }
            Step::Decide(question) => {
                assert!(self.waiting.is_none() && self.routed.is_none(), "asked twice");
                self.replies();
                self.waiting = Some(question);
                self.late || self.decide()
            }
            Step::End => {
                assert!(!self.refused, "ended twice");
                self.replies();
                assert!(self.refused, "it ends without a word");
                false
            }
        }
    }

    fn decide(&mut self) -> bool {
        let pool = Rc::clone(&self.pool);
        self.decided(|question| dispatch(&pool.dispatcher, question))
    }

    /// Answers the question that waits, if one does.
    fn decided(&mut self, decide: impl FnOnce(&DecisionRequest) -> Result<Routed, Rejection>) -> bool {
        let Some(question) = self.waiting.take() else { return true };
        assert!(self.exchange.is_deciding() && !self.upstream.headers);
        let result = decide(&question);
        let refusal = result.as_ref().err().cloned();
        let step = self.exchange.decided(result, Instant::now());
        assert!(!self.exchange.is_deciding());
        match refusal {
            None => {
                assert!(matches!(step, Step::Continue));
                self.routed = Some((question.request, Box::default()));
                self.step(step)
            }
            Some(refusal) => {
                let reply = self.exchange.next_reply();
                assert_eq!(reply, Some(Reply::Immediate(refusal.clone())));
                check_reply(&Reply::Immediate(refusal));
                self.refused = true;
                assert!(matches!(step, Step::End));
                assert_eq!(self.exchange.next_reply(), None);
                false
            }
        }
    }

    /// A destination that nobody waits for any more.
    fn too_late(&mut self, question: &DecisionRequest) {
        let result = dispatch(&self.pool.dispatcher, question);
        let step = self.exchange.decided(result, Instant::now());
        assert!(matches!(step, Step::Continue));
        assert_eq!(self.exchange.next_reply(), None, "nobody waits for it");
    }

    /// Takes the replies.
    fn replies(&mut self) {
        while let Some(reply) = self.exchange.next_reply() {
            assert!(!self.refused, "nothing may follow a response of our own");
            check_reply(&reply);
            self.reply(reply);
        }
    }

    fn reply(&mut self, reply: Reply) {
        match reply {
            Reply::RequestHeaders(route) => {
                assert!(!self.upstream.headers);
                self.upstream.headers = true;
                self.routed.as_mut().expect("there is a destination").1 = route;
            }
            Reply::RequestBody { data, end_of_stream } => {
                assert!(self.full_duplex.0);
                self.upstream.chunk(&data, end_of_stream);
            }
            Reply::RequestBodyAsIs => {
                assert!(!self.full_duplex.0 && self.upstream.headers);
                self.upstream.as_is += 1;
            }
            Reply::RequestTrailers => self.upstream.trailers(),
            Reply::ResponseHeaders(_) => {
                assert!(!self.downstream.headers);
                self.downstream.headers = true;
            }
            Reply::ResponseBody { data, end_of_stream, .. } => {
                assert!(self.full_duplex.1);
                self.downstream.chunk(&data, end_of_stream);
            }
            Reply::ResponseBodyAsIs { .. } => {
                assert!(!self.full_duplex.1 && self.downstream.headers);
                self.downstream.as_is += 1;
            }
            Reply::ResponseTrailers { .. } => self.downstream.trailers(),
            Reply::Immediate(rejection) => {
                self.refused = true;
                let too_large = self.request.body.len() > MAX_BODY;
                let want = if too_large { Code::PayloadTooLarge } else { Code::BadRequest };
                assert_eq!(rejection.code, want);
                assert!(too_large || self.parsed().is_err());
            }
        }
    }

    /// The request as it is read in one piece.
    fn parsed(&self) -> Result<Request, usher::request::ParseError> {
        let headers = self.request.headers.clone().expect("it had headers");
        let mut parser = RequestParser::new(headers, &self.shared.parsers);
        parser.push(Bytes::copy_from_slice(&self.request.body));
        parser.finish()
    }

    /// Asserts the conditions that hold after every message and decision.
    fn check(&self) {
        let running = self.routed.is_some() && !self.response.ended;
        assert_eq!(self.in_flight(), i64::from(running));
        if self.routed.is_some() {
            self.check_upstream();
        } else {
            assert!(!self.upstream.headers && self.upstream.body.is_empty() && self.upstream.as_is == 0);
        }
        assert_eq!(self.downstream.headers, self.response.headers.is_some());
        assert_eq!(self.downstream.trailers, self.response.trailers);
        if self.full_duplex.1 {
            self.check_downstream();
        } else {
            assert_eq!(self.downstream.as_is, self.response.chunks);
        }
    }

    /// Returns `true` if the request's body has been read.
    fn was_read(&self) -> bool {
        self.full_duplex.0 && (self.request.chunks > 0 || self.request.trailers)
    }

    fn check_upstream(&self) {
        let Some((request, route)) = &self.routed else { return };
        assert!(self.upstream.headers);
        assert_eq!(self.upstream.trailers, self.request.trailers);
        assert_eq!(route.request_id.is_none(), request.headers.get("x-request-id").is_some());
        if !self.full_duplex.0 {
            return assert_eq!(self.upstream.as_is, self.request.chunks);
        }
        assert_eq!(self.upstream.ended, self.request.flagged);
        if self.was_read() {
            let parsed = self.parsed().expect("it was routed");
            let body = parsed.outgoing();
            assert!(self.upstream.body == body.chunks().concat(), "another body was sent on");
            let changed = (body.len() != self.request.body.len()).then_some(body.len());
            assert_eq!(route.content_length, changed);
        } else {
            assert!(self.upstream.body.is_empty());
        }
    }

    fn check_downstream(&self) {
        assert_eq!(self.downstream.ended, self.response.flagged);
        let (came, sent) = (&self.response.body, &self.downstream.body);
        let renamed = self.routed.as_ref().map(|(request, _)| request).filter(|request| {
            self.was_read() && !request.model.is_empty() && request.model != request.target_model
        });
        let Some(request) = renamed else {
            return assert!(came == sent, "another response was sent on");
        };
        let mut restorer = ModelRestorer::new(&request.target_model, &request.model);
        let want = restorer.feed(Bytes::copy_from_slice(came), true);
        let held = want.len() - sent.len();
        assert!(
            want.starts_with(sent) && (!self.response.ended || held == 0),
            "another response was sent on"
        );
    }

    fn in_flight(&self) -> i64 {
        self.pool.snapshot.endpoints().iter().map(|endpoint| endpoint.load().in_flight()).sum()
    }

    /// The gateway goes away.
    fn leave(self) {
        let Self { exchange, pool, registry, violations, .. } = self;
        drop(exchange);
        assert!(pool.snapshot.endpoints().iter().all(|endpoint| endpoint.load().in_flight() == 0));
        let families = registry.gather();
        let family = |name: &'static str| {
            families.iter().filter(move |f| f.name() == name).flat_map(|f| f.get_metric())
        };
        assert!(family("llm_d_epp_request_running").all(|metric| metric.get_gauge().get_value() == 0.0));
        let counted: f64 = family("usher_extproc_protocol_violations_total")
            .map(|metric| metric.get_counter().get_value())
            .sum();
        assert_eq!(counted, violations as f64);
    }
}

fn dispatch(dispatcher: &Arc<Dispatcher>, question: &DecisionRequest) -> Result<Routed, Rejection> {
    let DecisionRequest { request, subset } = question;
    dispatcher.enter(request, subset).decided().now_or_never().expect("nothing to wait for")
}
