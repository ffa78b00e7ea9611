//! The gRPC service: drives one [`Exchange`] per stream.

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use prometheus::IntGauge;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::flow::{Dispatcher, Entered, Rejection, Routed};

use super::call::{Call, End};
use super::exchange::{DecisionRequest, Exchange, Shared, Step};
use usher_wire::envoy;
use usher_wire::event::Event;
use usher_wire::inbox::Payload;
use usher_wire::outbox::Outbox;

type Decision = Pin<Box<dyn Future<Output = Result<Routed, Rejection>> + Send>>;

/// One stream of the ext_proc service. Dropping it, which is what happens when the
/// gateway goes away, gives everything back.
pub struct ProcessCall {
    exchange: Exchange,
    dispatcher: Arc<Dispatcher>,
    shared: Arc<Shared>,
    deciding: Option<Decision>,
    counted: Option<Counted>,
    /// Time that the request's messages took so far.
    parsing: Duration,
}

/// A stream in the metrics, from its start to its end.
struct Counted {
    started: Instant,
    inflight: IntGauge,
    shared: Arc<Shared>,
    code: Code,
}

impl ProcessCall {
    /// A call before its first message.
    pub fn new(shared: &Arc<Shared>, dispatcher: &Arc<Dispatcher>) -> Self {
        let counted = shared.metrics.streams.as_ref().map(|streams| {
            streams.inflight.inc();
            Counted {
                started: Instant::now(),
                inflight: streams.inflight.clone(),
                shared: Arc::clone(shared),
                // Until it ends otherwise: the gateway went away.
                code: Code::Cancelled,
            }
        });
        Self {
            exchange: Exchange::new(Arc::clone(shared)),
            dispatcher: Arc::clone(dispatcher),
            shared: Arc::clone(shared),
            deciding: None,
            counted,
            parsing: Duration::ZERO,
        }
    }

    /// Takes a message, and says whether the stream goes on.
    fn take(&mut self, payload: Payload) -> ControlFlow<End> {
        let now = Instant::now();
        let response_parser = self.exchange.response_parser();
        let mut is_response = false;
        let step = envoy::read(payload).and_then(|message| {
            is_response = matches!(message.event, Event::ResponseHeaders { .. } | Event::ResponseBody { .. });
            self.exchange
                .on_message(message, now)
                .map_err(|error| Status::failed_precondition(error.to_string()))
        });
        let taken = now.elapsed();
        if is_response {
            self.shared.metrics.response_processing.observe(taken.as_secs_f64());
            if let Some(parser) = response_parser {
                self.shared.parsing.response(parser, taken);
            }
        } else {
            self.parsing += taken;
        }
        let flow = match step {
            Ok(Step::Decide(question)) => {
                self.shared.parsing.request(question.request.api.parser(), self.parsing);
                self.decide(&question)
            }
            Ok(step) => after(&step),
            Err(status) => ControlFlow::Break(Err(status)),
        };
        if !self.exchange.is_deciding() {
            self.deciding = None;
        }
        flow
    }

    fn decide(&mut self, question: &DecisionRequest) -> ControlFlow<End> {
        match self.dispatcher.enter(&question.request, &question.subset) {
            Entered::Decided(result) => after(&self.exchange.decided(result, Instant::now())),
            Entered::Waits(decision) => {
                self.deciding = Some(decision);
                ControlFlow::Continue(())
            }
        }
    }

    /// Writes what the exchange has to say, and notes how the stream ends, if it does.
    fn reply(&mut self, mut flow: ControlFlow<End>, out: &mut Outbox) -> ControlFlow<End> {
        self.write(out);
        let priority = self.exchange.priority();
        if flow.is_continue() && out.count(&self.shared.budget, || Some(priority)).is_err() {
            // What wasn't sent so far is dropped: this is said instead.
            out.clear();
            flow = after(&self.exchange.refuse_for_memory(Instant::now()));
            self.write(out);
        }
        if flow.is_break() {
            // Its place in a queue, or what it got there, is another's at once, though the gateway may
            // not take the reply.
            self.deciding = None;
        }
        // A reply that is too large is another end.
        if let ControlFlow::Break(end) = &flow
            && out.check().is_ok()
        {
            self.count(end);
        }
        flow
    }

    fn write(&mut self, out: &mut Outbox) {
        while let Some(reply) = self.exchange.next_reply() {
            envoy::write(reply, out);
        }
        if let Some(room) = self.exchange.settle() {
            out.hold(room);
        }
    }

    fn count(&mut self, end: &End) {
        if let Some(counted) = &mut self.counted {
            counted.code = end.as_ref().err().map_or(Code::Ok, Status::code);
        }
        self.counted = None;
    }
}

fn after(step: &Step) -> ControlFlow<End> {
    match step {
        Step::End => ControlFlow::Break(Ok(())),
        Step::Continue | Step::Decide(_) => ControlFlow::Continue(()),
    }
}

impl Call for ProcessCall {
    fn on_message(&mut self, message: Payload, out: &mut Outbox) -> ControlFlow<End> {
        let flow = self.take(message);
        self.reply(flow, out)
    }

    fn on_part(&mut self, bytes: usize, out: &mut Outbox) -> ControlFlow<End> {
        let step = self.exchange.on_part(bytes, Instant::now());
        self.reply(after(&step), out)
    }

    fn poll(&mut self, context: &mut Context<'_>, out: &mut Outbox) -> ControlFlow<End> {
        if let Some(step) = self.exchange.refuse_if_starved(Instant::now) {
            return self.reply(after(&step), out);
        }
        let Some(deciding) = &mut self.deciding else {
            if self.exchange.is_revoked(context) {
                let step = self.exchange.revoke();
                return self.reply(after(&step), out);
            }
            return ControlFlow::Continue(());
        };
        let Poll::Ready(result) = deciding.as_mut().poll(context) else { return ControlFlow::Continue(()) };
        self.deciding = None;
        let step = self.exchange.decided(result, Instant::now());
        self.reply(after(&step), out)
    }

    fn end(&self) -> Option<CancellationToken> {
        self.exchange.end().cloned()
    }

    fn on_pending(&mut self, context: &mut Context<'_>, unsent: bool) {
        self.exchange.on_pending(context.waker(), unsent);
    }

    fn on_end(&mut self, received: End) -> End {
        // The gateway is done with us: with its request, or with waiting.
        let end = received
            .map_err(|status| Status::unknown(format!("cannot read from the stream: {}", status.message())));
        self.count(&end);
        end
    }

    fn on_refused(&mut self, status: Status) -> End {
        let end = Err(status);
        self.count(&end);
        end
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.inflight.dec();
        if let Some(streams) = &self.shared.metrics.streams {
            streams.duration.observe(self.started.elapsed().as_secs_f64());
            streams.total.with_label_values(&[code_name(self.code)]).inc();
        }
    }
}

/// A code as Go's gRPC writes it.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}
