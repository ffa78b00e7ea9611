//! Room for what an exchange keeps, and streams that end for want of it.

use std::task::Waker;
use std::time::Instant;

use tokio_util::sync::CancellationToken;

use super::super::series::SeriesKey;
use super::{BodyEnd, Exchange, State, Step};
use crate::flow::{Code, Rejection};
use crate::memory::{AbortReason, FREE_UNSENT, Kind, RefusedStream, Reservation};

/// Error message for a request body that stalls.
const IDLE_BODY: &str = "no more of the request body came for too long (--body-idle-timeout)";

/// Error message for any other message that stalls, such as the headers.
const IDLE_MESSAGE: &str = "no more of a message came for too long (--body-idle-timeout)";

/// Error message for a request that there is no room for.
pub(super) const NO_MEMORY: &str = "no memory is left for the request; it may be sent again";

/// Largest headers of a request, in bytes: they are put together when all of them are there, and
/// are there twice then.
const MAX_HEADERS: usize = 1 << 20;

impl Exchange {
    /// Cancelled when the stream has to be reset, as there is no room for it and its client doesn't take
    /// the refusal.
    pub fn end(&self) -> Option<&CancellationToken> {
        self.refused.as_deref().map(RefusedStream::end)
    }

    /// Ends the stream where no memory is left for it, or where its body doesn't come. To be asked
    /// before its first message, and whenever its task is woken.
    pub fn refuse_if_starved(&mut self, now: impl FnOnce() -> Instant) -> Option<Step> {
        if self.refused.is_some() && matches!(self.state, State::Idle) {
            return Some(self.refuse_for_memory(now()));
        }
        match self.upload.as_ref()?.abort_reason()? {
            AbortReason::Slow => Some(self.refuse_for_memory(now())),
            AbortReason::Idle => {
                let is_body = matches!(self.state, State::Body(_));
                let message = if is_body { IDLE_BODY } else { IDLE_MESSAGE };
                let rejection = Rejection::new(Code::RequestTimeout, message);
                Some(self.refuse(rejection, SeriesKey::unknown(), now()))
            }
        }
    }

    /// Notes that all arrived data is read. If some of the request is missing, the task of `waker` is woken
    /// when that takes too long, or others need the room. Not while replies are `unsent`: the rest may have
    /// arrived, and isn't read before the gateway takes them.
    #[inline]
    pub fn on_pending(&mut self, waker: &Waker, unsent: bool) {
        if unsent {
            self.upload = None;
            return;
        }
        let is_coming = matches!(self.state, State::Idle | State::Body(_)) || self.part.is_some();
        if self.upload.is_some() || !is_coming {
            return;
        }
        let received = self.held.as_ref().map_or(0, Reservation::bytes);
        let budget = &self.shared.budget;
        self.upload = Some(match &self.state {
            State::Body(_) => budget.begin_upload(received, self.priority, waker),
            State::Idle if received == 0 => budget.begin_silent(waker),
            // Its priority isn't known yet.
            State::Idle => budget.begin_upload(received, 0, waker),
            _ => {
                let received = self.part.as_ref().map_or(0, |part| part.bytes());
                budget.begin_upload(received, self.priority, waker)
            }
        });
    }

    /// A message is arriving, and so much of it is kept until the rest is there.
    pub fn on_part(&mut self, bytes: usize, now: Instant) -> Step {
        let before = match &self.state {
            State::Idle if bytes > MAX_HEADERS => {
                let message = format!("the request's headers are larger than {MAX_HEADERS} bytes");
                let rejection = Rejection::new(Code::PayloadTooLarge, message);
                return self.refuse(rejection, SeriesKey::unknown(), now);
            }
            State::Idle => {
                if self.held.is_none() {
                    // It isn't silent any more.
                    self.upload = None;
                }
                0
            }
            State::Body(parser) => self.subset.counted() + parser.counted(),
            State::Deciding(request, BodyEnd::Relayed { .. }) => {
                self.subset.counted() + request.headers.counted() + self.relayed
            }
            // It passes through, and is of a response, or of a body that nobody reads.
            State::Deciding(..) | State::Relaying | State::Sent(_) | State::Abandoned | State::Refused => {
                return self.pass_part(bytes, now);
            }
        };
        if self.has_room(before.saturating_add(bytes)) {
            return Step::Continue;
        }
        self.refuse_for_memory(now)
    }

    /// A part of a message that passes through is kept. Its request may be on its way, so it is refused
    /// last.
    fn pass_part(&mut self, bytes: usize, now: Instant) -> Step {
        let Self { shared, part, priority, .. } = self;
        let part = part.get_or_insert_with(|| Box::new(Reservation::new(&shared.budget, Kind::Bodies)));
        if part.grow_over_limit(bytes as u64, || Some(*priority)).is_ok() {
            if let Some(upload) = &self.upload {
                upload.received(bytes as u64);
            }
            return Step::Continue;
        }
        self.refuse_for_memory(now)
    }

    /// Keeps this room for the next replies, until they are written.
    pub(super) fn leaves_with(&mut self, room: Reservation) {
        // Less counts with the stream.
        if room.bytes() <= FREE_UNSENT {
            return;
        }
        match &mut self.leaving {
            Some(leaving) => leaving.join(room),
            None => self.leaving = Some(Box::new(room)),
        }
    }

    /// Returns `true` if there is room for so much of the request. It is taken then. What
    /// waits makes room, but for higher priorities than this one has.
    pub(super) fn has_room(&mut self, bytes: usize) -> bool {
        let Self { shared, held, started, priority, upload, .. } = self;
        // Not known before its headers.
        let priority = || started.map(|_| *priority);
        if bytes == 0 {
            return shared.budget.admit(priority).is_ok();
        }
        if let Some(upload) = upload {
            upload.received(bytes as u64);
        }
        let held = held.get_or_insert_with(|| Reservation::new(&shared.budget, Kind::Bodies));
        held.grow_to(bytes as u64, priority).is_ok()
    }

    /// Refuses the request for lack of memory, and drops what is there of it.
    pub fn refuse_for_memory(&mut self, now: Instant) -> Step {
        self.shared.budget.count_refused();
        self.refuse(Rejection::saturated(NO_MEMORY), SeriesKey::unknown(), now)
    }
}
