//! Calls over a connection that is a list of frames.

use std::collections::VecDeque;
use std::task::Waker;

use bytes::Buf;
use futures_util::FutureExt;

use super::*;
use crate::request::Span;

/// The client's half: frames, then the end, or silence.
#[derive(Default)]
struct Sent {
    frames: VecDeque<Frame<Bytes>>,
    /// Reset after the frames.
    broken: Option<h2::Reason>,
    ends: bool,
}

impl Body for Sent {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.frames.pop_front() {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None if self.broken.is_some() => {
                let error = h2::Error::from(self.broken.take().unwrap());
                Poll::Ready(Some(Err(Box::new(error))))
            }
            None if self.ends => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

impl CallSource for Sent {}

/// Sends every message back as often as its first byte says. One that begins with 0 asks
/// for something that takes until the call is looked at again.
#[derive(Default)]
struct Echo {
    deciding: bool,
    /// Presence of replies to send, each time that nothing was left to read.
    unsent: Vec<bool>,
}

impl Call for Echo {
    fn on_message(&mut self, message: Payload, out: &mut Outbox) -> ControlFlow<End> {
        let bytes = match message {
            Payload::One(bytes) => bytes,
            Payload::Many(body) => body.bytes(Span { start: 0, end: body.len() }).into_owned().into(),
        };
        self.deciding = bytes.first() == Some(&0);
        for _ in 0..bytes.first().copied().unwrap_or(0) {
            out.message(bytes.len(), |_| {}, [bytes.clone()], &[]);
        }
        ControlFlow::Continue(())
    }

    fn poll(&mut self, context: &mut Context<'_>, out: &mut Outbox) -> ControlFlow<End> {
        if std::mem::take(&mut self.deciding) {
            out.message(7, |out| out.extend(*b"decided"), [], &[]);
            context.waker().wake_by_ref();
        }
        ControlFlow::Continue(())
    }

    fn on_pending(&mut self, _context: &mut Context<'_>, unsent: bool) {
        self.unsent.push(unsent);
    }

    fn on_end(&mut self, received: End) -> End {
        received
    }
}

const LIMITS: MessageLimits = MessageLimits { receive: 1000, send: 2000 };

fn framed(message: &[u8]) -> Vec<u8> {
    [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat()
}

fn call(sent: Sent, limits: MessageLimits) -> CallBody<Echo, Sent> {
    let mut calls = Calls::new(Echo::default, limits);
    calls.call(Request::new(sent)).now_or_never().unwrap().unwrap().into_body()
}

/// All frames that there are, and the trailers if the call ended.
fn run(call: &mut CallBody<Echo, Sent>) -> (Vec<Vec<u8>>, Option<HeaderMap>) {
    let mut context = Context::from_waker(Waker::noop());
    let mut frames = Vec::new();
    while let Poll::Ready(Some(frame)) = Pin::new(&mut *call).poll_frame(&mut context) {
        match frame.unwrap().into_data() {
            Ok(mut data) => frames.push(data.copy_to_bytes(data.remaining()).to_vec()),
            Err(frame) => return (frames, frame.into_trailers().ok()),
        }
    }
    (frames, None)
}

#[test]
fn call_ends_with_its_grpc_status() {
    let message = framed(b"\x01one");
    let cut = |bytes: &[u8]| [&message, bytes].concat();
    let too_large = framed(&[1; 1001]);
    let compressed = [&[1][..], &message[1..]].concat();
    // what is sent, replies, status
    let table: [(Vec<u8>, usize, &str); 6] = [
        (message.clone(), 1, "0"),
        (cut(&message), 2, "0"),
        (cut(&message[..3]), 1, "13"),
        (cut(&message[..7]), 1, "13"),
        (cut(&compressed), 1, "12"),
        (cut(&too_large), 1, "8"),
    ];
    for (sent, replies, status) in table {
        // In one frame, and byte by byte.
        for step in [sent.len(), 1] {
            let frames = sent.chunks(step).map(|bytes| Frame::data(Bytes::copy_from_slice(bytes)));
            let mut call = call(Sent { frames: frames.collect(), ends: true, ..Sent::default() }, LIMITS);
            let (frames, trailers) = run(&mut call);
            assert_eq!(frames.concat(), message.repeat(replies), "{sent:?}");
            assert_eq!(trailers.unwrap()["grpc-status"], status, "{sent:?}");
            assert!(call.is_end_stream());
        }
    }
}

#[test]
fn client_cancel_is_ok_and_a_broken_stream_is_an_error() {
    for (reason, status) in [(h2::Reason::CANCEL, "0"), (h2::Reason::PROTOCOL_ERROR, "2")] {
        let mut call = call(Sent { broken: Some(reason), ..Sent::default() }, LIMITS);
        assert_eq!(run(&mut call).1.unwrap()["grpc-status"], status, "{reason:?}");
    }
}

#[test]
fn client_trailers_do_not_end_the_call() {
    let message = framed(b"\x01x");
    let frames = [Frame::data(message.clone().into()), Frame::trailers(HeaderMap::new())];
    let mut open = call(Sent { frames: frames.into(), ends: false, ..Sent::default() }, LIMITS);
    let (frames, trailers) = run(&mut open);
    assert_eq!((frames, trailers), (vec![message], None));
    assert!(!open.is_end_stream());
}

#[test]
fn many_replies_are_passed_on_in_parts_without_loss() {
    let message = framed(&[200; 1000]);
    let frames = (0..3).map(|_| Frame::data(message.clone().into()));
    let mut call = call(Sent { frames: frames.collect(), ends: true, ..Sent::default() }, LIMITS);
    let (frames, trailers) = run(&mut call);
    assert_eq!(frames.len(), 3, "more than enough each time");
    assert!(frames.concat() == message.repeat(600));
    assert_eq!(trailers.unwrap()["grpc-status"], "0");
}

#[test]
fn overlarge_reply_ends_the_call() {
    let limits = MessageLimits { receive: 1000, send: 10 };
    let sent = [framed(b"\x01first"), framed(b"\x01much too large"), framed(b"\x01third")].concat();
    let mut call =
        call(Sent { frames: [Frame::data(sent.into())].into(), ends: true, ..Sent::default() }, limits);
    let (frames, trailers) = run(&mut call);
    assert_eq!(frames.concat(), framed(b"\x01first"));
    assert_eq!(trailers.unwrap()["grpc-status"], "8");
}

#[test]
fn pending_decision_is_sent_when_ready() {
    let mut call = call(
        Sent { frames: [Frame::data(framed(&[0]).into())].into(), ends: false, ..Sent::default() },
        LIMITS,
    );
    assert_eq!(run(&mut call), (vec![framed(b"decided")], None));
    assert_eq!(call.call.unsent, [true, false]);
    // And a client that ends meanwhile ends it.
    call.call.deciding = true;
    call.incoming.as_mut().unwrap().ends = true;
    let (frames, trailers) = run(&mut call);
    assert_eq!(frames.concat(), framed(b"decided"));
    assert_eq!(trailers.unwrap()["grpc-status"], "0");
}

#[test]
fn unread_messages_are_dropped_when_the_call_ends() {
    let limits = MessageLimits { receive: 1000, send: 10 };
    let first = [framed(b"\x01first"), framed(b"\x01much too large"), framed(b"\x01third")].concat();
    let frames = [first, vec![0, 0, 0]].map(|frame| Frame::data(frame.into()));
    let mut call = call(Sent { frames: frames.into(), ends: false, ..Sent::default() }, limits);
    let mut context = Context::from_waker(Waker::noop());
    let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut call).poll_frame(&mut context) else {
        panic!("no reply")
    };
    assert!(frame.is_data() && matches!(call.state, State::Ending(_)));
    assert!(call.incoming.is_none());
    assert!(!call.inbox.is_within_message() && matches!(call.inbox.next_message(), Ok(None)));
}
