//! Completes the record of a decision with the facts of its response.

use std::time::Instant;

use super::{Exchange, State, decision_log};
use crate::flow::{Rejection, Routed};
use crate::records::{Draft, Ending, Refusal, Response, Tracked};
use crate::request::Request;
use usher_wire::event::Mode;

/// Header with a request's id.
const REQUEST_ID: &str = "x-request-id";

impl Exchange {
    /// Puts the record of a decision into the ring, if there is one.
    pub(super) fn record(&mut self, request: &Request, new_id: Option<&str>, routed: &mut Routed) {
        if let Some(draft) = routed.take_draft() {
            let id = decision_log::request_id(request, new_id);
            self.tracked = draft.keep(&id).map(Box::new);
        }
    }

    /// Records a request that is refused while it is read, or before there is a decision. What a decision refuses has
    /// been recorded with it.
    pub(super) fn record_refusal(&self, rejection: &Rejection, now: Instant) {
        let Some(records) = &self.shared.records else { return };
        let mut unread = Request::default();
        (unread.received, unread.priority) = (self.started, self.priority);
        let (headers, request, body_bytes) = match &self.state {
            State::Body(parser) => (parser.headers(), &unread, parser.body_len()),
            State::Deciding(request, _) => {
                (&request.headers, &**request, request.body.len().max(self.relayed))
            }
            _ => return,
        };
        if records.takes_refusal(now) {
            let id = headers.name(REQUEST_ID).map(String::from_utf8_lossy).unwrap_or_default();
            let refusal = Refusal::new(rejection.code.status(), rejection.reason, &rejection.body());
            Draft::unscheduled(records, request, body_bytes, refusal, now).keep(&id);
        }
    }

    /// The response is complete.
    pub(super) fn record_end(&mut self, now: Instant) {
        if let Some(tracked) = self.tracked.take() {
            self.record_as(*tracked, Ending::Complete, now);
        }
    }

    /// The request ends in this way, before its response is complete.
    pub(super) fn record_ending(&mut self, ending: Ending) {
        if let Some(tracked) = self.tracked.take() {
            self.record_as(*tracked, ending, Instant::now());
        }
    }

    /// Meaning of a stream that ends before the response is complete. A gateway that doesn't show bodies of responses
    /// ends it when the request is sent, or after the headers.
    pub(super) fn ending(&self) -> Ending {
        let is_hidden = self.modes.is_some_and(|modes| modes.response == Mode::None);
        let is_sent = matches!(self.state, State::Sent(_) | State::Relaying);
        if is_hidden && is_sent { Ending::Unseen } else { Ending::CutOff }
    }

    /// Returns `true` if the response comes token by token, and is shown as it comes.
    pub(super) fn is_shown_stream(&self) -> bool {
        self.response.is_stream() && self.modes.is_none_or(|modes| modes.response == Mode::FullDuplex)
    }

    fn record_as(&self, tracked: Tracked, ending: Ending, now: Instant) {
        let response = Response {
            usage: self.response.used(),
            generated: self.response.generated(),
            is_stream: self.is_shown_stream(),
            ending,
        };
        tracked.ends(&response, now);
    }
}
