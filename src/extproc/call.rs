//! A gRPC call with a stream of messages in both directions, on one HTTP/2 stream.
//!
//! The body of the response is polled by the connection, and polls the body of the
//! request: no task and no channel stand in between. All that there is to say at a time
//! is said in one write.

use std::convert::Infallible;
use std::error::Error;
use std::future::{Ready, ready};
use std::iter::successors;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::{Body, Frame};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::codegen::Service;
use tower::BoxError;

use crate::memory::StreamState;
use usher_wire::inbox::{Inbox, Payload};
use usher_wire::outbox::{Outbox, Written};

/// Bytes after which replies are handed to the connection, though more could be said.
const ENOUGH: usize = 64 * 1024;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const OK: HeaderValue = HeaderValue::from_static("0");

/// End of a call: with the status OK, or another.
pub type End = Result<(), Status>;

/// Handler of a call. A call whose client went away ends by dropping it.
pub trait Call {
    /// Takes a message of the client. What there is to answer is put into `out`.
    fn on_message(&mut self, message: Payload, out: &mut Outbox) -> ControlFlow<End>;

    /// Part of a message has arrived, and so many bytes of it are kept until the rest has.
    /// Called again when there is more, and not for a message that comes in one frame.
    fn on_part(&mut self, bytes: usize, out: &mut Outbox) -> ControlFlow<End> {
        let _ = (bytes, out);
        ControlFlow::Continue(())
    }

    /// Goes on with what takes time, if there is any, and wakes the task when there is
    /// more to do. Called after messages, and whenever the task is woken.
    fn poll(&mut self, context: &mut Context<'_>, out: &mut Outbox) -> ControlFlow<End>;

    /// All that has arrived was read. `unsent`: replies are left to send, and nothing is read again
    /// before the client takes them.
    fn on_pending(&mut self, context: &mut Context<'_>, unsent: bool) {
        let _ = (context, unsent);
    }

    /// The client has sent its last message, or its stream has broken.
    fn on_end(&mut self, received: End) -> End;

    /// Cancelled when the stream is to be reset, also while its client takes nothing of it. Asked once,
    /// before the first message.
    fn end(&self) -> Option<CancellationToken> {
        None
    }

    /// A reply was too large to be sent.
    fn on_refused(&mut self, status: Status) -> End {
        Err(status)
    }
}

/// The body of a call's request.
pub trait CallSource: Body<Data = Bytes, Error: Into<BoxError>> + Unpin {
    /// Resets the stream when `end` is cancelled. Called before the call is answered.
    fn end_with(&self, end: CancellationToken) {
        let _ = end;
    }

    /// The stream, where somebody looks whether its replies are taken.
    fn stream_state(&self) -> Option<Arc<StreamState>> {
        None
    }
}

/// Answers every call with a new [`Call`].
#[derive(Clone, Debug)]
pub struct Calls<F> {
    call: F,
    limits: MessageLimits,
}

/// Largest messages, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct MessageLimits {
    /// Largest message that is read. [`Call::on_end`] gets `RESOURCE_EXHAUSTED` for a larger
    /// one, as soon as its length is known.
    pub receive: usize,
    /// Largest message that is sent. [`Call::on_refused`] is called for a larger one, and nothing follows it.
    pub send: usize,
}

impl<C: Call, F: Fn() -> C> Calls<F> {
    /// Calls made by `call`.
    pub fn new(call: F, limits: MessageLimits) -> Self {
        Self { call, limits }
    }
}

impl<C, F, B> Service<Request<B>> for Calls<F>
where
    C: Call,
    F: Fn() -> C,
    B: CallSource,
{
    type Response = Response<CallBody<C, B>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (incoming, call) = (request.into_body(), (self.call)());
        if let Some(end) = call.end() {
            incoming.end_with(end);
        }
        let out = Outbox::of_stream(self.limits.send, incoming.stream_state());
        let body = CallBody {
            incoming: Some(incoming),
            inbox: Inbox::new(self.limits.receive),
            call,
            out,
            state: State::Open,
        };
        let mut response = Response::new(body);
        response.headers_mut().insert(CONTENT_TYPE, GRPC);
        ready(Ok(response))
    }
}

#[derive(Debug)]
enum State {
    Open,
    /// The remaining replies are sent, then the status.
    Ending(End),
    Done,
}

/// The body of a call's response: its messages, and its status as trailers.
#[derive(Debug)]
pub struct CallBody<C, B> {
    /// Until the call ends: what is left unread is dropped then, however long the replies take.
    incoming: Option<B>,
    inbox: Inbox,
    call: C,
    out: Outbox,
    state: State,
}

impl<C: Call, B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin> CallBody<C, B> {
    /// Reads and responds until nothing is left to read, or enough to send.
    fn run(&mut self, context: &mut Context<'_>) -> ControlFlow<End> {
        self.call.poll(context, &mut self.out)?;
        while self.out.len() < ENOUGH {
            match self.inbox.next_message() {
                Ok(Some(message)) => {
                    self.call.on_message(message, &mut self.out)?;
                    self.call.poll(context, &mut self.out)?;
                    continue;
                }
                Ok(None) => {
                    if let held @ 1.. = self.inbox.held() {
                        self.call.on_part(held, &mut self.out)?;
                    }
                }
                Err(status) => return ControlFlow::Break(self.call.on_end(Err(status))),
            }
            let Some(incoming) = &mut self.incoming else { break };
            match Pin::new(incoming).poll_frame(context) {
                Poll::Pending => {
                    self.call.on_pending(context, !self.out.is_empty());
                    break;
                }
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.inbox.push(data);
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    let error = error.into();
                    // A client that resets its stream is done with it.
                    let received =
                        if is_reset(&*error) { Ok(()) } else { Err(Status::unknown(error.to_string())) };
                    return ControlFlow::Break(self.call.on_end(received));
                }
                Poll::Ready(None) => {
                    let received = if self.inbox.is_within_message() {
                        Err(Status::internal("the stream ended within a message"))
                    } else {
                        Ok(())
                    };
                    return ControlFlow::Break(self.call.on_end(received));
                }
            }
        }
        ControlFlow::Continue(())
    }
}

impl<C, B> Body for CallBody<C, B>
where
    C: Call + Unpin,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Written;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Written>, Infallible>>> {
        let this = &mut *self;
        if matches!(this.state, State::Open) {
            let flow = this.run(context);
            if let Err(status) = this.out.check() {
                this.state = State::Ending(this.call.on_refused(status));
            } else if let ControlFlow::Break(end) = flow {
                this.state = State::Ending(end);
            }
            if !matches!(this.state, State::Open) {
                this.incoming = None;
                this.inbox.clear();
            }
        }
        if !this.out.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(this.out.take()))));
        }
        match std::mem::replace(&mut this.state, State::Done) {
            State::Open => {
                this.state = State::Open;
                Poll::Pending
            }
            // As long as the stream has a task, it can be reset.
            State::Ending(end) if this.out.waits_for_client(context.waker()) => {
                this.state = State::Ending(end);
                Poll::Pending
            }
            State::Ending(end) => Poll::Ready(Some(Ok(Frame::trailers(trailers(end))))),
            State::Done => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.state, State::Done)
    }
}

/// Returns `true` if a client took its call back.
fn is_reset(error: &(dyn Error + 'static)) -> bool {
    let mut causes = successors(Some(error), |&error| error.source());
    let reason = causes.find_map(|cause| cause.downcast_ref::<h2::Error>()).and_then(h2::Error::reason);
    matches!(reason, Some(h2::Reason::CANCEL | h2::Reason::NO_ERROR))
}

fn trailers(end: End) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    match end {
        Ok(()) => {
            trailers.insert(GRPC_STATUS, OK);
        }
        Err(status) => {
            // Fails for metadata that no header can hold, and we set none.
            if status.add_header(&mut trailers).is_err() {
                trailers.insert(GRPC_STATUS, HeaderValue::from(status.code() as i32));
            }
        }
    }
    trailers
}

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "call_properties.rs"]
mod properties;
