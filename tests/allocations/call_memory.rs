//! Memory that a call holds for a client's messages, while they arrive.

use std::alloc::System;
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::FutureExt;
use http::Request;
use http_body::{Body, Frame};
use stats_alloc::Region;
use tonic::codegen::Service;
use usher::extproc::call::{Call, CallSource, Calls, End, MessageLimits};
use usher_wire::inbox::Payload;
use usher_wire::outbox::Outbox;

use crate::alone::{ALLOCATOR, passed_alone};

/// Largest message.
const LIMIT: usize = 256 << 10;

/// Forgets what it is told.
struct Deaf;

impl Call for Deaf {
    fn on_message(&mut self, _message: Payload, _out: &mut Outbox) -> ControlFlow<End> {
        ControlFlow::Continue(())
    }

    fn poll(&mut self, _context: &mut Context<'_>, _out: &mut Outbox) -> ControlFlow<End> {
        ControlFlow::Continue(())
    }

    fn on_end(&mut self, received: End) -> End {
        received
    }
}

/// Sends the same message again and again, in frames of these lengths in turn, each made
/// when it is asked for.
struct Client<'a> {
    /// Length of a message in bytes, as its head has it.
    length: usize,
    lengths: &'a [usize],
    turn: usize,
    /// Position in the stream.
    at: usize,
    /// Position at which it stops.
    end: usize,
    region: Region<'static, System>,
    /// Most bytes that were there when a frame was asked for.
    peak: &'a mut usize,
}

impl Body for Client<'_> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let change = self.region.change();
        let held = change.bytes_allocated.saturating_sub(change.bytes_deallocated);
        *self.peak = held.max(*self.peak);
        if self.at == self.end {
            return Poll::Pending;
        }
        let length = self.lengths[self.turn % self.lengths.len()].min(self.end - self.at);
        let head = [&[0][..], &(self.length as u32).to_be_bytes()].concat();
        let byte = |at: usize| head.get(at % (5 + self.length)).copied().unwrap_or(b'x');
        let frame: Vec<u8> = (self.at..self.at + length).map(byte).collect();
        self.at += length;
        self.turn += 1;
        Poll::Ready(Some(Ok(Frame::data(frame.into()))))
    }
}

impl CallSource for Client<'_> {}

/// Most bytes that are held while messages of `length` bytes arrive in such frames, until
/// `end` bytes of them are there.
fn peak(length: usize, end: usize, lengths: &[usize]) -> usize {
    let mut peak = 0;
    let region = Region::new(ALLOCATOR);
    let client = Client { length, lengths, turn: 0, at: 0, end, region, peak: &mut peak };
    let mut calls = Calls::new(|| Deaf, MessageLimits { receive: LIMIT, send: LIMIT });
    let mut call = calls.call(Request::new(client)).now_or_never().unwrap().unwrap().into_body();
    let mut context = Context::from_waker(Waker::noop());
    let polled = Pin::new(&mut call).poll_frame(&mut context);
    assert_eq!(polled.is_ready(), length > LIMIT, "only a message that is too large ends a call");
    drop(call);
    peak
}

#[test]
fn call_memory_is_bounded_by_the_largest_message() {
    if passed_alone("call_memory::call_memory_is_bounded_by_the_largest_message") {
        return;
    }
    // In tiny frames, in such as are copied together, kept, or both in turn, and in one.
    let tables: [&[usize]; 8] =
        [&[1], &[1000], &[1023, 1], &[1024], &[1024, 1], &[1, 1023], &[16_384], &[LIMIT + 5]];
    for lengths in tables {
        let held = peak(LIMIT, 3 * (LIMIT + 5), lengths);
        assert!(held <= 2 * LIMIT, "{held} bytes in frames of {lengths:?}");
    }
    // Many messages in a frame: the frame.
    for length in [0, 10, 1000] {
        let held = peak(length, 1000 * (5 + length), &[16_384]);
        assert!(held <= 17_000, "{held} bytes for messages of {length}");
    }
    // What is only announced takes nothing, and what is too large isn't kept.
    for length in [LIMIT, LIMIT + 1, u32::MAX as usize] {
        let held = peak(length, 6, &[1]);
        assert!(held <= 256, "{held} bytes for a head that says {length}");
    }
}
