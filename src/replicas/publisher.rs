//! Schedule of this replica's messages: after a change, on request of another replica, and as a heartbeat. No
//! I/O, no clock.

use std::time::Duration;

use tokio::time::Instant;

use super::message::{Counts, EndpointKey, Message, Origin};
use super::queue::{FlowService, QueueState};

/// Shortest time between two messages with the service of flows.
pub(super) const SERVICE_INTERVAL: Duration = Duration::from_millis(200);

/// State of a replica, without its name, and what flows got.
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
    /// Time at which the service of flows was last sent, and the number of events that this was of.
    service_sent: Option<(Instant, u64)>,
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
            service_sent: None,
            is_due: true,
            asks: true,
        }
    }

    /// The others may know nothing of this replica, nor it of them: a connection is new, or the counters are.
    pub(super) fn begin(&mut self) {
        (self.is_due, self.asks, self.sent, self.service_sent) = (true, true, None, None);
    }

    /// Asks the others what they have in flight with the next message.
    pub(super) fn ask(&mut self) {
        (self.is_due, self.asks) = (true, true);
    }

    /// Another replica wants to know.
    pub(super) fn answer(&mut self) {
        self.is_due = true;
    }

    /// Returns `true` if the next message has the service of flows: it changed, or wasn't sent for long, as a message
    /// may be lost. `events` is how often flows got something.
    pub(super) fn is_service_due(&self, events: u64, now: Instant) -> bool {
        let is_early = self.age(now).is_some_and(|age| age < self.interval);
        let is_old = |(at, sent): (Instant, u64)| {
            let age = now.saturating_duration_since(at);
            age >= self.keep_alive || (sent != events && age >= SERVICE_INTERVAL)
        };
        !is_early && (self.is_due || self.service_sent.is_none_or(is_old))
    }

    /// The message that is due at `now` if this is the state. `service`: what flows got after so many events, if it is
    /// due.
    pub(super) fn next(
        &mut self,
        state: State,
        service: Option<(u64, Vec<FlowService>)>,
        now: Instant,
    ) -> Option<Message> {
        let age = self.age(now);
        if age.is_some_and(|age| age < self.interval) {
            return None;
        }
        let is_changed = self.state != state || service.is_some();
        if !is_changed && !self.is_due && age.is_some_and(|age| age < self.keep_alive) {
            return None;
        }
        self.sequence += 1;
        self.sent = Some(now);
        self.is_due = false;
        if let Some((events, _)) = &service {
            self.service_sent = Some((now, *events));
        }
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
            service: service.map(|(_, flows)| flows),
        })
    }

    /// Time since the last message.
    fn age(&self, now: Instant) -> Option<Duration> {
        self.sent.map(|sent| now.saturating_duration_since(sent))
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
            let message = publisher.next(state, None, start + Duration::from_millis(ms));
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

    #[test]
    fn service_of_flows_is_sent_more_rarely_than_load() {
        let start = Instant::now();
        let mut publisher = Publisher::new(Origin(1), "a".to_owned(), INTERVAL, TTL);
        let mut has_service = |events: u64, ms: u64| {
            let now = start + Duration::from_millis(ms);
            let service = publisher.is_service_due(events, now).then(|| (events, Vec::new()));
            // Something else changes all the time.
            let state = State { counters: vec![ms.to_string()], ..State::default() };
            publisher.next(state, service, now).map(|message| message.service.is_some())
        };
        assert_eq!(has_service(0, 0), Some(true), "a new replica says all");
        assert_eq!(has_service(1, 10), None);
        assert_eq!(has_service(1, 20), Some(false));
        assert_eq!(has_service(1, 199), Some(false));
        assert_eq!(has_service(1, 219), Some(true));
        assert_eq!(has_service(1, 718), Some(false), "nothing is new");
        assert_eq!(has_service(1, 738), Some(true), "the last may be lost");
        publisher.answer();
        let now = start + Duration::from_millis(760);
        assert!(publisher.is_service_due(1, now), "another asked");
    }
}
