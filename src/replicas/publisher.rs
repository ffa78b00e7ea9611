//! Schedule of this replica's messages: after a change, on request of another replica, and as a heartbeat. No
//! I/O, no clock.

use std::time::Duration;

use tokio::time::Instant;

use super::message::{Counts, EndpointKey, Message, Origin};
use super::queue::QueueState;

/// State of a replica, without its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// Names of the counters.
    pub(super) counters: Vec<String>,
    /// Requests and tokens in flight.
    pub(super) endpoints: Vec<(EndpointKey, Counts)>,
    /// Endpoints that get no new requests.
    pub(super) draining: Vec<EndpointKey>,
    /// Requests that wait.
    pub(super) queue: QueueState,
}

/// Messages of this replica, each with a higher number than the last.
#[derive(Debug)]
pub(super) struct Publisher {
    origin: Origin,
    name: String,
    /// Shortest time between two messages.
    interval: Duration,
    /// Longest time between two messages.
    keep_alive: Duration,
    sequence: u64,
    sent: Option<Instant>,
    state: State,
    /// Another replica asked, or the others may not know the last message.
    is_due: bool,
    /// The others are to send theirs.
    asks: bool,
}

impl Publisher {
    /// Messages of this origin under this name, of which others forget what is older than `ttl`.
    pub(super) fn new(origin: Origin, name: String, interval: Duration, ttl: Duration) -> Self {
        Self {
            origin,
            name,
            interval,
            // Two may be lost or late.
            keep_alive: ttl / 4,
            sequence: 0,
            sent: None,
            state: State::default(),
            is_due: true,
            asks: true,
        }
    }

    /// The others may know nothing of this replica, nor it of them: a connection is new, or the counters are.
    pub(super) fn begin(&mut self) {
        (self.is_due, self.asks, self.sent) = (true, true, None);
    }

    /// Another replica wants to know.
    pub(super) fn answer(&mut self) {
        self.is_due = true;
    }

    /// The message that is due at `now` if this is the state.
    pub(super) fn next(&mut self, state: State, now: Instant) -> Option<Message> {
        let age = self.sent.map(|sent| now.saturating_duration_since(sent));
        if age.is_some_and(|age| age < self.interval) {
            return None;
        }
        let is_changed = self.state != state;
        if !is_changed && !self.is_due && age.is_some_and(|age| age < self.keep_alive) {
            return None;
        }
        self.sequence += 1;
        self.sent = Some(now);
        self.is_due = false;
        self.state = state;
        let State { counters, endpoints, draining, queue } = self.state.clone();
        Some(Message {
            origin: self.origin,
            sequence: self.sequence,
            asks: std::mem::take(&mut self.asks),
            name: self.name.clone(),
            counters,
            endpoints,
            draining,
            queue,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(2);
    const INTERVAL: Duration = Duration::from_millis(20);

    #[test]
    fn messages_follow_changes_questions_and_the_clock() {
        let start = Instant::now();
        let mut publisher = Publisher::new(Origin(1), "a".to_owned(), INTERVAL, TTL);
        let busy = [(EndpointKey(7), Counts::default())];
        let sent = |publisher: &mut Publisher, endpoints: &[(EndpointKey, Counts)], ms: u64| {
            let state = State { endpoints: endpoints.to_vec(), ..State::default() };
            let message = publisher.next(state, start + Duration::from_millis(ms));
            message.map(|message| (message.sequence, message.asks, message.endpoints.len()))
        };
        assert_eq!(sent(&mut publisher, &[], 0), Some((1, true, 0)), "a new replica asks the others");
        assert_eq!(sent(&mut publisher, &busy, 19), None, "not so soon");
        assert_eq!(sent(&mut publisher, &busy, 20), Some((2, false, 1)));
        assert_eq!(sent(&mut publisher, &busy, 519), None, "nothing is new");
        assert_eq!(sent(&mut publisher, &busy, 520), Some((3, false, 1)), "a sign of life");
        publisher.answer();
        assert_eq!(sent(&mut publisher, &busy, 530), None);
        assert_eq!(sent(&mut publisher, &busy, 540), Some((4, false, 1)), "another asked");
        assert_eq!(sent(&mut publisher, &busy, 560), None);
        publisher.begin();
        assert_eq!(sent(&mut publisher, &busy, 561), Some((5, true, 1)), "a new connection");
        assert_eq!(sent(&mut publisher, &[], 581), Some((6, false, 0)), "the end of load is a change");
    }
}
