//! Cases whose instructions are counted.

use std::hint::black_box;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use envoy_types::pb::envoy::service::ext_proc::v3::body_mutation::Mutation;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response;
use futures_util::FutureExt;
use usher::endpoints::SubsetHint;
use usher::request::{Headers, RequestParser};
use usher_wire::outbox::Written;

use super::callgrind::counted_by_callgrind;
use super::gateway::{Service, Stream, service};
use super::messages;
use super::picker::{self, Picker};

/// Repetitions that are not counted: caches and series are made, buffers have grown.
const WARM_UP: u32 = 20;

/// One number.
pub struct Case {
    pub name: &'static str,
    /// Repetitions that are counted.
    pub times: u32,
    /// Runs the case this often.
    pub run: fn(u32),
}

pub const CASES: [Case; 4] = [
    Case { name: "request-200", times: 200, run: |times| request(200, times) },
    Case { name: "request-100k", times: 10, run: |times| request(100_000, times) },
    Case { name: "response-chunk", times: 2000, run: response_chunk },
    Case { name: "decide-100", times: 2000, run: decide },
];

/// A request of this many tokens and its response, from the stream's first byte to its last.
fn request(tokens: usize, times: u32) {
    let mut service = service(&Picker::new(10));
    let body = messages::chat(tokens, false);
    let response = messages::response(&picker::response());
    let messages: Vec<Bytes> = messages::request(&body).into_iter().chain(response).collect();
    let mut replies = Vec::new();
    exchange(&mut service, &messages, &mut |mut frame| {
        replies.extend(frame.copy_to_bytes(frame.remaining()))
    });
    assert!(passed_on(&replies) == body, "the request was not sent on");
    for _ in 0..WARM_UP {
        exchange(&mut service, &messages, &mut drop);
    }
    for _ in 0..times {
        counted_by_callgrind(&mut || exchange(&mut service, &messages, &mut drop));
    }
}

fn exchange(service: &mut Service, messages: &[Bytes], each: &mut dyn FnMut(Written)) {
    let mut stream = Stream::open(service);
    for message in messages {
        stream.send(message, each);
    }
    assert_eq!(stream.end(each)["grpc-status"], "0");
}

/// The request's body in these replies.
fn passed_on(replies: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    for reply in messages::replies(replies) {
        if let Response::RequestBody(part) = reply
            && let Some(Mutation::StreamedResponse(chunk)) =
                part.response.unwrap().body_mutation.unwrap().mutation
        {
            body.extend(chunk.body);
        }
    }
    body
}

/// A chunk of a streamed response, in the middle of it.
fn response_chunk(times: u32) {
    let mut service = service(&Picker::new(10));
    let mut stream = Stream::open(&mut service);
    for message in &messages::request(&messages::chat(200, true)) {
        stream.send(message, &mut drop);
    }
    stream.send(&messages::response_headers("text/event-stream"), &mut drop);
    let chunk = messages::response_chunk();
    let mut replied = 0;
    for _ in 0..WARM_UP {
        stream.send(&chunk, &mut |frame| replied += frame.remaining());
    }
    assert!(replied > chunk.len() * WARM_UP as usize, "{replied} bytes");
    for _ in 0..times {
        counted_by_callgrind(&mut || stream.send(&chunk, &mut drop));
    }
}

/// A decision over 100 endpoints and its booking, given back at once.
fn decide(times: u32) {
    let picker = Picker::new(100);
    let request = RequestParser::new(Headers::default(), &picker.shared.parsers).without_body();
    let subset = SubsetHint::Missing;
    picker.dispatcher.enter(&Arc::new(request.clone()), &subset).decided().now_or_never().unwrap().unwrap();
    let mut decide = || {
        black_box(
            picker.dispatcher.decide_now(black_box(&request), &subset, &mut rand::rng()).unwrap().unwrap(),
        );
    };
    (0..WARM_UP).for_each(|_| decide());
    (0..times).for_each(|_| counted_by_callgrind(&mut decide));
}
