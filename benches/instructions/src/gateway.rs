//! A gateway without a network: gRPC frames go into the service and come out of it, as
//! from HTTP/2 and back to it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, Request};
use http_body::{Body, Frame};
use tonic::codegen::Service as _;
use usher::extproc::call::{CallBody, CallSource, Calls, MessageLimits};
use usher::extproc::service::ProcessCall;
use usher_wire::outbox::Written;

use super::picker::Picker;

/// Bytes of a message in one frame of HTTP/2: what Envoy sends at most.
const FRAME: usize = 16 * 1024;

/// The service as the server gets it.
pub type Service = Calls<Box<dyn Fn() -> ProcessCall>>;

/// The service in front of a picker.
pub fn service(picker: &Picker) -> Service {
    let (shared, dispatcher) = (Arc::clone(&picker.shared), Arc::clone(&picker.dispatcher));
    let limits = MessageLimits { receive: 4 << 20, send: usize::MAX };
    Calls::new(Box::new(move || ProcessCall::new(&shared, &dispatcher)), limits)
}

/// One ext_proc stream.
pub struct Stream {
    sent: Sent,
    replies: CallBody<ProcessCall, Sent>,
}

impl Stream {
    /// Opens a stream.
    pub fn open(service: &mut Service) -> Self {
        let sent = Sent::default();
        let request = Request::post("/envoy.service.ext_proc.v3.ExternalProcessor/Process")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(sent.clone())
            .unwrap();
        let response = service.call(request).now_or_never().unwrap().unwrap();
        Self { sent, replies: response.into_body() }
    }

    /// Sends a message, and gives every frame of replies that is there then to `each`.
    pub fn send(&mut self, message: &Bytes, each: &mut dyn FnMut(Written)) {
        let mut rest = message.clone();
        let mut sent = self.sent.0.lock().unwrap();
        while !rest.is_empty() {
            sent.frames.push_back(rest.split_to(rest.len().min(FRAME)));
        }
        drop(sent);
        assert!(self.replies(each).is_none(), "the stream ended");
    }

    /// Ends the gateway's side; how the service ends the stream.
    pub fn end(mut self, each: &mut dyn FnMut(Written)) -> HeaderMap {
        self.sent.0.lock().unwrap().ended = true;
        self.replies(each).unwrap()
    }

    fn replies(&mut self, each: &mut dyn FnMut(Written)) -> Option<HeaderMap> {
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(frame) = Pin::new(&mut self.replies).poll_frame(&mut context) {
            match frame.unwrap().unwrap().into_data() {
                Ok(data) => each(data),
                Err(frame) => return frame.into_trailers().ok(),
            }
        }
        None
    }
}

/// The body of the gateway's call: what was sent and is not read yet.
#[derive(Clone, Default)]
struct Sent(Arc<Mutex<Queue>>);

impl CallSource for Sent {}

#[derive(Default)]
struct Queue {
    frames: VecDeque<Bytes>,
    ended: bool,
}

impl Body for Sent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let mut queue = self.0.lock().unwrap();
        match queue.frames.pop_front() {
            Some(frame) => Poll::Ready(Some(Ok(Frame::data(frame)))),
            None if queue.ended => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}
