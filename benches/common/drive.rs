//! Drives an exchange without a wire.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::FutureExt;
use usher::endpoints::health::ResponseStatus;
use usher::extproc::exchange::{Exchange, Step};
use usher::flow::Entered;
use usher_wire::event::{Event, Message};
use usher_wire::reply::Reply;

use super::picker::Picker;

/// Runs a whole exchange: request headers, the body's chunks, a response of one
/// chunk. Returns the bytes that were sent upstream.
pub fn run(picker: &Picker, headers: &[(&str, &str)], chunks: &[Bytes], response: &Bytes) -> usize {
    let mut exchange = Exchange::new(Arc::clone(&picker.shared));
    let mut sent = 0;
    let headers = headers.iter().copied().collect();
    step(picker, &mut exchange, Event::RequestHeaders { headers, end_of_stream: false }, &mut sent);
    for (index, chunk) in chunks.iter().enumerate() {
        let end_of_stream = index + 1 == chunks.len();
        step(
            picker,
            &mut exchange,
            Event::RequestBody { data: chunk.clone().into(), end_of_stream },
            &mut sent,
        );
    }
    let event = Event::ResponseHeaders {
        status: ResponseStatus::default(),
        event_stream: false,
        encoded: false,
        end_of_stream: false,
    };
    step(picker, &mut exchange, event, &mut sent);
    let event = Event::ResponseBody { data: response.clone().into(), end_of_stream: true };
    step(picker, &mut exchange, event, &mut sent);
    sent
}

fn step(picker: &Picker, exchange: &mut Exchange, event: Event, sent: &mut usize) {
    let message = Message { event, modes: None, subset: None, served: usher::schedule::Served::Unknown };
    if let Step::Decide(question) = exchange.on_message(message, Instant::now()).unwrap() {
        let result = match picker.dispatcher.enter(&question.request, &question.subset) {
            Entered::Decided(result) => result,
            Entered::Waits(decision) => decision.now_or_never().unwrap(),
        };
        exchange.decided(result, Instant::now());
    }
    while let Some(reply) = exchange.next_reply() {
        if let Reply::RequestBody { data, .. } = reply {
            *sent += data.len();
        }
    }
}
