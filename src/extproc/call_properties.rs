//! Any frames that a client sends give a call the messages that a reader of the whole stream finds, and the
//! status that it deserves.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

use bytes::Buf;
use futures_util::FutureExt;
use proptest::prelude::*;
use tonic::Code;

use super::*;
use crate::request::Span;

/// Largest message: more than what is copied together, less than all of a stream.
const LIMIT: usize = 3000;
/// Largest frame.
const FRAME: usize = 5000;

/// A frame's bytes, counted until the last reference to them is gone.
struct Counted {
    bytes: Vec<u8>,
    held: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

/// Continuation of a stream after its last frame.
#[derive(Clone, Copy, Debug)]
enum After {
    End,
    Silence,
    Reset(h2::Reason),
}

/// The client's half.
struct Client {
    /// Frames, and pauses in which there is none.
    frames: VecDeque<Option<Vec<u8>>>,
    after: After,
    /// Bytes of frames that are still referenced.
    held: Arc<AtomicUsize>,
}

impl Body for Client {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let held = self.held.load(Ordering::Relaxed);
        // The frame in which a message began may have held the end of another.
        assert!(held <= LIMIT + FRAME, "{held} bytes of frames are held for one message");
        match (self.frames.pop_front(), self.after) {
            (Some(Some(bytes)), _) => {
                self.held.fetch_add(bytes.len(), Ordering::Relaxed);
                let frame = Bytes::from_owner(Counted { bytes, held: Arc::clone(&self.held) });
                Poll::Ready(Some(Ok(Frame::data(frame))))
            }
            (Some(None), _) | (None, After::Silence) => Poll::Pending,
            (None, After::End) => Poll::Ready(None),
            (None, After::Reset(reason)) => Poll::Ready(Some(Err(Box::new(h2::Error::from(reason))))),
        }
    }
}

impl CallSource for Client {}

/// Sends every message back, as a copy, and counts how often the end was reported.
#[derive(Default)]
struct Echo {
    ends: usize,
}

impl Call for Echo {
    fn on_message(&mut self, message: Payload, out: &mut Outbox) -> ControlFlow<End> {
        assert_eq!(self.ends, 0, "a message after the end");
        let message = match message {
            Payload::One(bytes) => bytes.to_vec(),
            Payload::Many(body) => body.bytes(Span { start: 0, end: body.len() }).into_owned(),
        };
        out.message(message.len(), |out| out.extend(message), [], &[]);
        ControlFlow::Continue(())
    }

    fn poll(&mut self, _context: &mut Context<'_>, _out: &mut Outbox) -> ControlFlow<End> {
        ControlFlow::Continue(())
    }

    fn on_end(&mut self, received: End) -> End {
        self.ends += 1;
        received
    }
}

/// Response of a call that gets these frames: its bytes, and the status if it ended.
fn respond(frames: VecDeque<Option<Vec<u8>>>, after: After) -> (Vec<u8>, Option<Code>) {
    let held = Arc::new(AtomicUsize::new(0));
    let client = Client { frames, after, held: Arc::clone(&held) };
    let mut calls = Calls::new(Echo::default, MessageLimits { receive: LIMIT, send: LIMIT });
    let mut call = calls.call(Request::new(client)).now_or_never().unwrap().unwrap().into_body();
    let mut context = Context::from_waker(Waker::noop());
    let (mut bytes, mut status) = (Vec::new(), None);
    loop {
        let silent = call.incoming.as_ref().is_none_or(|client| client.frames.is_empty());
        match Pin::new(&mut call).poll_frame(&mut context) {
            Poll::Pending if silent => break,
            Poll::Pending => {}
            Poll::Ready(None) => break,
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(mut data) => bytes.extend(data.copy_to_bytes(data.remaining())),
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap();
                    assert!(status.replace(Code::from_bytes(trailers[GRPC_STATUS].as_bytes())).is_none());
                }
            },
        }
    }
    assert_eq!((call.call.ends, call.is_end_stream()), (usize::from(status.is_some()), status.is_some()));
    drop(call);
    assert_eq!(held.load(Ordering::Relaxed), 0, "frames outlive their call");
    (bytes, status)
}

/// Expected response: the messages up to the first that can't be read, as they were
/// framed, and how the stream ends.
fn expected(sent: &[u8], after: After) -> (&[u8], Option<Code>) {
    let mut rest = sent;
    let refused = loop {
        let Some((&[compressed, ref length @ ..], message)) = rest.split_first_chunk::<5>() else {
            break None;
        };
        let length = u32::from_be_bytes(*length) as usize;
        if compressed != 0 {
            break Some(Code::Unimplemented);
        }
        if length > LIMIT {
            break Some(Code::ResourceExhausted);
        }
        let Some((_, next)) = message.split_at_checked(length) else { break None };
        rest = next;
    };
    let ended = match after {
        After::End if rest.is_empty() => Some(Code::Ok),
        After::End => Some(Code::Internal),
        After::Silence => None,
        After::Reset(h2::Reason::CANCEL) => Some(Code::Ok),
        After::Reset(_) => Some(Code::Unknown),
    };
    (&sent[..sent.len() - rest.len()], refused.or(ended))
}

fn framed(compressed: u8, length: usize, content: impl IntoIterator<Item = u8>) -> Vec<u8> {
    [compressed].into_iter().chain((length as u32).to_be_bytes()).chain(content).collect()
}

/// A part of a stream: mostly a message.
fn part() -> impl Strategy<Value = Vec<u8>> {
    let message = |length: usize, first: u8| framed(0, length, (0..length).map(move |i| first ^ i as u8));
    let length = prop_oneof![Just(0), 1..40usize, 900..1200usize, LIMIT - 2..=LIMIT];
    prop_oneof![
        150 => (length, any::<u8>()).prop_map(move |(length, first)| message(length, first)),
        1 => (LIMIT + 1..LIMIT + 3).prop_map(move |length| message(length, 0)),
        1 => Just(framed(0, u32::MAX as usize, [])),
        1 => (1u8.., 0..2 * LIMIT).prop_map(|(flag, length)| framed(flag, length, vec![0; length])),
        1 => prop::collection::vec(any::<u8>(), 0..12),
    ]
}

fn after() -> impl Strategy<Value = After> {
    let reason = prop_oneof![Just(h2::Reason::CANCEL), Just(h2::Reason::PROTOCOL_ERROR)];
    prop_oneof![3 => Just(After::End), 1 => Just(After::Silence), 1 => reason.prop_map(After::Reset)]
}

/// The length of a frame, and what follows it: nothing, an empty frame, a pause.
fn cut() -> impl Strategy<Value = (usize, u8)> {
    let length = prop_oneof![1..8usize, 1..300usize, 1000..1100usize, 1..=FRAME];
    (length, prop_oneof![4 => Just(0u8), 1 => 1..3u8])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn messages_and_status_are_the_same_at_any_split(
        parts in prop::collection::vec(part(), 0..50),
        truncated in prop_oneof![Just(0usize), 1..1500usize],
        after in after(),
        cuts in prop::collection::vec(cut(), 1..20),
    ) {
        let mut sent = parts.concat();
        sent.truncate(sent.len().saturating_sub(truncated));
        let mut frames = VecDeque::new();
        let (mut rest, mut cuts) = (&sent[..], cuts.iter().cycle());
        while let (false, Some((length, then))) = (rest.is_empty(), cuts.next()) {
            let (frame, others) = rest.split_at(rest.len().min(*length));
            rest = others;
            frames.push_back(Some(frame.to_vec()));
            match then {
                1 => frames.push_back(Some(Vec::new())),
                2 => frames.push_back(None),
                _ => {}
            }
        }
        let (messages, status) = expected(&sent, after);
        let (got, ended) = respond(frames, after);
        prop_assert!(got == messages, "{} bytes of messages came back as {}", messages.len(), got.len());
        prop_assert_eq!(ended, status);
    }
}
