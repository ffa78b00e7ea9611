//! The response's half of an exchange.

use std::time::Instant;

use crate::endpoints::health::ResponseStatus;
use crate::request::{Body, Pieces};
use crate::schedule::{Attribute, Served};

use super::super::response_tracker::Kind;
use super::{Exchange, State, Step, Violation};
use usher_wire::event::Mode;
use usher_wire::reply::Reply;

impl Exchange {
    pub(super) fn response_headers(
        &mut self,
        status: ResponseStatus,
        kind: Kind,
        end_of_stream: bool,
        served: &Served,
        now: Instant,
    ) -> Result<Step, Violation> {
        let asked = match &self.state {
            State::Body(parser) => parser.api(),
            State::Deciding(request, _) => Some(request.api),
            _ => None,
        };
        if let Some(api) = asked {
            self.response.read_as(api);
        }
        if let Some(trace) = &mut self.trace {
            trace.response(status);
        }
        if matches!(self.state, State::Idle | State::Body(_) | State::Deciding(..)) {
            // The gateway responds itself, for example after a time-out, or shows us
            // responses only. A body that is still on its way to us belongs to nobody.
            self.count_ignored();
            self.state = State::Abandoned;
            self.replies.forget_early();
            self.early = Body::default();
        }
        self.response.status(status);
        if self.response.headers(kind, end_of_stream).map_err(Violation)? {
            self.shared.metrics.encoded.inc();
        }
        // A body that comes buffered, or not at all, says nothing about a first token.
        let is_stream = self.is_shown_stream();
        let set = self
            .routed
            .as_mut()
            .map(|routed| routed.response_begins(served, status.verdict(), is_stream))
            .unwrap_or_default();
        if let Some(tracked) = &mut self.tracked {
            tracked.begins(status, served);
        }
        self.replies.push(Reply::ResponseHeaders(set));
        if end_of_stream {
            // There is no message left that could carry numbers.
            self.attributes();
        }
        self.complete(end_of_stream, now);
        Ok(Step::Continue)
    }

    pub(super) fn response_body(
        &mut self,
        data: Pieces,
        end_of_stream: bool,
        now: Instant,
    ) -> Result<Step, Violation> {
        let is_first_token = self.response.chunk(&data, now).map_err(Violation)?;
        let is_stream = self.is_shown_stream();
        if let Some(trace) = self.trace.as_mut().filter(|_| is_first_token && is_stream) {
            trace.first_token(now);
        }
        if let Some(routed) = &mut self.routed {
            routed.goes_on();
            if is_first_token {
                routed.first_token();
            }
        }
        if let Some(tracked) = self.tracked.as_mut().filter(|_| is_first_token) {
            tracked.first_token(now);
        }
        let attributes = if end_of_stream { self.attributes() } else { Vec::new() };
        if self.modes.is_some_and(|modes| modes.response != Mode::FullDuplex) {
            self.replies.push(Reply::ResponseBodyAsIs { attributes });
        } else {
            let data = self.response.restore(data, end_of_stream);
            self.replies.response_body(data, end_of_stream, attributes);
        }
        self.complete(end_of_stream, now);
        Ok(Step::Continue)
    }

    pub(super) fn response_trailers(&mut self, now: Instant) -> Result<Step, Violation> {
        let held = self.response.trailers().map_err(Violation)?;
        let attributes = self.attributes();
        self.replies.response_body(held, false, Vec::new());
        self.replies.push(Reply::ResponseTrailers { attributes });
        self.complete(true, now);
        Ok(Step::Continue)
    }

    /// Attributes that the gateway gets once the response is complete.
    fn attributes(&mut self) -> Vec<Attribute> {
        match &mut self.routed {
            Some(routed) => routed.response_ends(&self.response.used(), self.response.generated()),
            None => Vec::new(),
        }
    }

    /// Ends the response if this was its last part: its load is given back at once,
    /// whenever the gateway closes the stream.
    fn complete(&mut self, last: bool, now: Instant) {
        if last {
            self.record_end(now);
            self.end_trace(true);
            self.response.complete(&self.shared.metrics, now);
            self.routed = None;
        }
    }
}
