//! Trace of one request, from its headers to the end of its response.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::context::{SpanContext, TraceId};
use super::queue::Queue;
use super::record::{Read, Record, cut, text};
use crate::endpoints::health::ResponseStatus;
use crate::request::usage::Usage;
use crate::request::{Header, Rejection, Request, Timeline};

/// Trace of a request. Its spans are recorded if its sampler, or its caller, wants that.
#[derive(Debug)]
pub struct RequestTrace {
    context: SpanContext,
    record: Option<Box<Record>>,
    queue: Arc<Queue>,
}

/// Destination of a request, for its trace.
#[derive(Clone, Copy, Debug)]
pub struct Routing<'a> {
    /// `host:port` of the picks, the first choice first, separated by commas.
    pub destination: &'a [u8],
    /// Id that the request got, where it came without.
    pub new_id: Option<&'a str>,
}

impl RequestTrace {
    pub(super) fn new(context: SpanContext, record: Option<Box<Record>>, queue: Arc<Queue>) -> Self {
        Self { context, record, queue }
    }

    /// Id of the trace.
    pub fn id(&self) -> TraceId {
        self.context.trace
    }

    /// Header that makes what the endpoint does a part of the trace.
    pub fn header(&self) -> Header {
        Header { name: "traceparent".into(), value: Bytes::from(self.context.to_string()) }
    }

    /// The request is read and asks for a decision. Its profiles note their times in it from here on, if spans are
    /// recorded.
    pub fn deciding(&mut self, request: &mut Request, now: Instant) {
        let Some(record) = &mut self.record else { return };
        let timeline = Arc::<Timeline>::default();
        request.timeline = Some(Arc::clone(&timeline));
        record.read = Some(Read::of(request, timeline, now));
    }

    /// The request goes to an endpoint.
    pub fn routed(&mut self, routing: Routing<'_>, now: Instant) {
        let Some(record) = &mut self.record else { return };
        record.destination = cut(text(routing.destination));
        if let Some(read) = &mut record.read {
            read.decided = Some(now);
            if let Some(id) = routing.new_id {
                id.clone_into(&mut read.request_id);
            }
        }
    }

    /// The request is refused.
    pub fn refused(&mut self, rejection: &Rejection) {
        let Some(record) = &mut self.record else { return };
        record.refused = Some((rejection.code.name(), rejection.reason));
        record.status = Some(rejection.code.status());
        if let Some(read) = &mut record.read {
            read.decided.get_or_insert_with(Instant::now);
        }
    }

    /// The headers of the response came.
    pub fn response(&mut self, status: ResponseStatus) {
        if let Some(record) = &mut self.record {
            (record.status, record.grpc_status) = (status.http, status.grpc);
        }
    }

    /// The first token came.
    pub fn first_token(&mut self, now: Instant) {
        if let Some(record) = &mut self.record {
            record.first_token = Some(now);
        }
    }

    /// Ends the trace and hands its record to the exporter. `is_complete`: neither the request nor its response was
    /// cut off. Reads the clock, as streams end without a time.
    pub fn end(self, usage: Usage, is_complete: bool) {
        let Some(mut record) = self.record else { return };
        (record.usage, record.is_complete, record.ended) = (usage, is_complete, Instant::now());
        if let Some(read) = &mut record.read {
            read.runs = read.timeline.take();
        }
        self.queue.push(record);
    }
}
