//! Counters and histograms of a run.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::failure::Failure;
use super::histogram::Histogram;
use usher_core::request::usage::Usage;

/// A request that began later than this after it was due was late.
const LATE: Duration = Duration::from_millis(1);

/// Endpoints that are counted apart; the rest counts together.
const MOST_ENDPOINTS: usize = 10_000;

/// Kind of the failures of requests that had no end when the run was interrupted.
const INTERRUPTED: &str = "interrupted";

/// The name under which the rest counts.
const OTHERS: &[u8] = b"(others)";

/// A request that is on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Started {
    /// All its times count from here.
    pub(super) due: Instant,
    /// `true` if it belongs to what is measured.
    pub(super) measured: bool,
    /// Number of the request in the run.
    pub(super) number: u64,
}

/// All numbers of a run.
#[derive(Debug, Default)]
pub struct Numbers {
    /// Measured requests that were due.
    pub due: u64,
    /// Number of these with a good end.
    pub completed: u64,
    /// Number of these with another end.
    pub failed: u64,
    /// Good ends within the measured time, also of requests that began before it.
    pub ended_in_time: u64,
    /// Good ends of measured requests after the measured time.
    pub ended_later: u64,
    /// Chunks of responses that were sent within the measured time.
    pub chunks_sent: u64,
    /// Chunks of responses that came back within the measured time.
    pub chunks_returned: u64,
    /// Until the destination was known.
    pub decision: Histogram,
    /// Until the first byte of the response.
    pub first_byte: Histogram,
    /// Until the end.
    pub total: Histogram,
    /// From sending a chunk of the response to its return.
    pub chunk: Histogram,
    /// Failed requests by kind.
    pub errors: BTreeMap<String, u64>,
    /// Detail of the first failure of each kind.
    pub reasons: BTreeMap<String, String>,
    /// By how much requests began after they were due.
    pub late: Histogram,
    /// Requests that began more than a millisecond after they were due.
    pub late_requests: u64,
    /// Requests by the endpoint that was picked first, or that served.
    pub endpoints: HashMap<Vec<u8>, u64>,
    /// Most bytes of request bodies that were sent and had not come back.
    pub peak_body_bytes: u64,
    /// Tokens of the responses, where the server counts them.
    pub tokens: Usage,
    body_bytes: u64,
    /// `true` if it is within the measured time.
    pub(super) in_time: bool,
    /// All requests so far, warm-up included, and how many of them ended and failed.
    pub(super) begun: u64,
    pub(super) ended: u64,
    pub(super) ended_badly: u64,
}

impl Numbers {
    /// A request that is begun, `now`.
    pub(super) fn begin(&mut self, due: Instant, measured: bool) -> Started {
        let number = self.begun;
        self.begun += 1;
        self.due += u64::from(measured);
        Started { due, measured, number }
    }

    /// By how much a request of an open loop began after it was due.
    pub(super) fn late(&mut self, started: Started, now: Instant) {
        if started.measured {
            let late = now.saturating_duration_since(started.due);
            self.late.record(late);
            self.late_requests += u64::from(late > LATE);
        }
    }

    pub(super) fn decided(&mut self, started: Started, endpoints: &[u8], now: Instant) {
        if !started.measured {
            return;
        }
        self.decision.record(now - started.due);
        self.endpoint(endpoints);
    }

    /// An endpoint responded.
    pub(super) fn served(&mut self, started: Started, endpoint: &[u8]) {
        if started.measured {
            self.endpoint(endpoint);
        }
    }

    /// Counts the first endpoint of a list.
    fn endpoint(&mut self, endpoints: &[u8]) {
        let first = endpoints.split(|byte| *byte == b',').next().unwrap_or_default().trim_ascii();
        if let Some(count) = self.endpoints.get_mut(first) {
            *count += 1;
            return;
        }
        let name = if self.endpoints.len() < MOST_ENDPOINTS { first } else { OTHERS };
        *self.endpoints.entry(name.to_vec()).or_default() += 1;
    }

    pub(super) fn first_byte(&mut self, started: Started, now: Instant) {
        if started.measured {
            self.first_byte.record(now - started.due);
        }
    }

    pub(super) fn chunk_sent(&mut self) {
        self.chunks_sent += u64::from(self.in_time);
    }

    /// A chunk is back that was sent at `sent`.
    pub(super) fn chunk_returned(&mut self, sent: Instant, now: Instant) {
        if self.in_time {
            self.chunks_returned += 1;
            self.chunk.record(now - sent);
        }
    }

    pub(super) fn body_sent(&mut self, bytes: usize) {
        self.body_bytes += bytes as u64;
        self.peak_body_bytes = self.peak_body_bytes.max(self.body_bytes);
    }

    pub(super) fn body_returned(&mut self, bytes: usize) {
        self.body_bytes = self.body_bytes.saturating_sub(bytes as u64);
    }

    pub(super) fn tokens(&mut self, started: Started, usage: Usage) {
        if started.measured {
            let add = |sum: &mut Option<u64>, more: Option<u64>| {
                if let Some(more) = more {
                    *sum = Some(sum.unwrap_or(0) + more);
                }
            };
            add(&mut self.tokens.prompt_tokens, usage.prompt_tokens);
            add(&mut self.tokens.completion_tokens, usage.completion_tokens);
            add(&mut self.tokens.cached_tokens, usage.cached_tokens);
        }
    }

    /// Records the end of a request that was held open: when it did, is not its own doing.
    pub(super) fn end_of_idle(&mut self, result: &Result<(), Failure>) {
        self.ended += 1;
        match result {
            Ok(()) => self.completed += 1,
            Err(failure) => self.fail(failure),
        }
    }

    /// Records the end of a request.
    pub(super) fn end(&mut self, started: Started, result: &Result<(), Failure>, now: Instant) {
        self.ended += 1;
        match result {
            Ok(()) => {
                self.ended_in_time += u64::from(self.in_time);
                if started.measured {
                    self.ended_later += u64::from(!self.in_time);
                    self.completed += 1;
                    self.total.record(now - started.due);
                }
            }
            Err(failure) if started.measured => self.fail(failure),
            Err(_) => self.ended_badly += 1,
        }
    }

    fn fail(&mut self, failure: &Failure) {
        self.ended_badly += 1;
        self.failed += 1;
        *self.errors.entry(failure.kind.to_string()).or_default() += 1;
        self.reasons.entry(failure.kind.to_string()).or_insert_with(|| failure.detail.clone());
    }

    /// Counts the measured requests that have no end yet as failed.
    pub(super) fn give_up(&mut self) {
        let open = self.due - self.completed - self.failed;
        if open > 0 {
            self.failed += open;
            self.errors.insert(INTERRUPTED.to_owned(), open);
            self.reasons.insert(INTERRUPTED.to_owned(), "the run was ended before they were".to_owned());
        }
    }

    /// Requests among the failed ones that the user ended.
    pub fn interrupted(&self) -> u64 {
        self.errors.get(INTERRUPTED).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn request_started_over_a_millisecond_after_due_is_late() {
        let mut numbers = Numbers::default();
        for delay in [0, 900, 1000, 1100, 40_000] {
            let started = numbers.begin(Instant::now(), true);
            advance(Duration::from_micros(delay)).await;
            numbers.late(started, Instant::now());
        }
        let warm_up = numbers.begin(Instant::now(), false);
        advance(Duration::from_secs(1)).await;
        numbers.late(warm_up, Instant::now());
        assert_eq!((numbers.late.count(), numbers.late_requests), (5, 2));
        assert_eq!(numbers.late.max(), Duration::from_millis(40));
    }

    #[tokio::test(start_paused = true)]
    async fn latencies_count_from_when_a_request_was_due() {
        let mut numbers = Numbers::default();
        let due = Instant::now();
        advance(Duration::from_millis(3)).await;
        let started = numbers.begin(due, true);
        numbers.decided(started, b"a:1, b:2", Instant::now());
        advance(Duration::from_millis(2)).await;
        numbers.end(started, &Ok(()), Instant::now());
        let times = [numbers.decision.max(), numbers.total.max()];
        assert_eq!(times, [Duration::from_millis(3), Duration::from_millis(5)]);
        assert_eq!(numbers.endpoints, HashMap::from([(b"a:1".to_vec(), 1)]));
    }

    #[tokio::test(start_paused = true)]
    async fn only_measured_requests_count() {
        let mut numbers = Numbers::default();
        let (now, bad) = (Instant::now(), Err(Failure::protocol("x")));
        let warm_up = [(); 2].map(|()| numbers.begin(now, false));
        numbers.decided(warm_up[0], b"a:1", now);
        numbers.end(warm_up[0], &Ok(()), now);
        numbers.end(warm_up[1], &bad, now);
        let measured = [(); 3].map(|()| numbers.begin(now, true));
        numbers.end(measured[0], &Ok(()), now);
        numbers.end(measured[1], &bad, now);
        numbers.give_up();
        assert_eq!((numbers.due, numbers.completed, numbers.failed), (3, 1, 2));
        let errors = [("interrupted".to_owned(), 1), ("protocol".to_owned(), 1)];
        assert_eq!(numbers.errors, BTreeMap::from(errors));
        assert!(numbers.endpoints.is_empty());
        assert_eq!((numbers.begun, numbers.ended, numbers.ended_badly), (5, 4, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn good_ends_after_the_measured_time_count_apart() {
        let mut numbers = Numbers::default();
        let now = Instant::now();
        let warm_up = numbers.begin(now, false);
        numbers.in_time = true;
        let measured = [(); 3].map(|()| numbers.begin(now, true));
        numbers.end(warm_up, &Ok(()), now);
        numbers.end(measured[0], &Ok(()), now);
        numbers.in_time = false;
        numbers.end(measured[1], &Ok(()), now);
        numbers.end(measured[2], &Err(Failure::protocol("x")), now);
        assert_eq!((numbers.completed, numbers.ended_in_time, numbers.ended_later), (2, 2, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn chunks_count_only_within_the_measured_time() {
        let mut numbers = Numbers::default();
        let now = Instant::now();
        for in_time in [false, true, false] {
            numbers.in_time = in_time;
            numbers.chunk_sent();
            numbers.chunk_returned(now, now);
        }
        assert_eq!((numbers.chunks_sent, numbers.chunks_returned, numbers.chunk.count()), (1, 1, 1));
    }

    #[test]
    fn many_endpoints_take_bounded_memory() {
        let mut numbers = Numbers::default();
        for endpoint in 0..MOST_ENDPOINTS + 5 {
            numbers.endpoint(endpoint.to_string().as_bytes());
        }
        assert_eq!(numbers.endpoints.len(), MOST_ENDPOINTS + 1);
        assert_eq!(numbers.endpoints[OTHERS], 5);
    }

    #[test]
    fn bodies_in_flight_have_a_peak() {
        let mut numbers = Numbers::default();
        for (sent, returned) in [(10, 0), (20, 10), (5, 25)] {
            numbers.body_sent(sent);
            numbers.body_returned(returned);
        }
        assert_eq!((numbers.peak_body_bytes, numbers.body_bytes), (30, 0));
    }
}
