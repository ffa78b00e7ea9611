//! Completes the record of a decision with the facts of its response.

use std::time::Instant;

use super::{Exchange, decision_log};
use crate::flow::Routed;
use crate::records::{Ending, Response, Tracked};
use crate::request::Request;
use usher_wire::event::Mode;

impl Exchange {
    /// Puts the record of a decision into the ring, if there is one.
    pub(super) fn record(&mut self, request: &Request, new_id: Option<&str>, routed: &mut Routed) {
        if let Some(draft) = routed.take_draft() {
            let id = decision_log::request_id(request, new_id);
            self.tracked = draft.keep(&id).map(Box::new);
        }
    }

    /// The response is complete.
    pub(super) fn record_end(&mut self, now: Instant) {
        if let Some(tracked) = self.tracked.take() {
            self.record_as(*tracked, Ending::Complete, now);
        }
    }

    /// The request ends before its response does.
    pub(super) fn record_cut_off(&mut self) {
        let Some(tracked) = self.tracked.take() else { return };
        let is_hidden = self.modes.is_some_and(|modes| modes.response == Mode::None);
        let ending = match (tracked.has_begun(), is_hidden) {
            // A gateway that shows headers alone ends the stream after them.
            (false, true) => Ending::Unseen,
            _ => Ending::CutOff,
        };
        self.record_as(*tracked, ending, Instant::now());
    }

    fn record_as(&self, tracked: Tracked, ending: Ending, now: Instant) {
        let response = Response { usage: self.response.used(), is_stream: self.response.is_stream(), ending };
        tracked.ends(&response, now);
    }
}
