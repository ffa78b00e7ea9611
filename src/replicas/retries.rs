//! Pauses between connections, and which of their failures are logged: each cause once, whatever state it is that it keeps
//! from being shared.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::failure::Failure;
use crate::cluster::Backoff;

/// Time after which the same failure is logged again.
const REPEATED: Duration = Duration::from_secs(600);

/// Time for which a connection has to last until its next failure is logged, whatever it is.
const SETTLED: Duration = Duration::from_secs(10);

/// Pauses after a failure that may end by itself: a store that is back is found within half a second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// Pauses after a failure that only a change of the configuration or the store ends.
const LONG_PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// Reason of a failure, and the line of the log that names it.
pub(super) type Cause = (&'static str, &'static str);

/// Causes that the log has named, and when: of all that is shared through one store.
#[derive(Clone, Debug, Default)]
pub struct NamedCauses {
    // Taken when a connection fails.
    named: Arc<Mutex<HashMap<Cause, Instant>>>,
}

impl NamedCauses {
    /// Returns `true` if a refusal that ends no connection is to be logged.
    pub(super) fn is_new(&self, cause: Cause, now: Instant) -> bool {
        self.name(cause, None, now).0
    }

    /// Names a cause, unless it was named after `forgotten`, and not long ago. Returns whether it is to be logged now,
    /// and the time at which it was.
    fn name(&self, cause: Cause, forgotten: Option<Instant>, now: Instant) -> (bool, Instant) {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = |at: &Instant| {
            forgotten.is_none_or(|forgotten| *at > forgotten) && now.saturating_duration_since(*at) < REPEATED
        };
        match named.get(&cause).filter(|at| is_known(at)) {
            Some(at) => (false, *at),
            None => {
                named.insert(cause, now);
                (true, now)
            }
        }
    }
}

/// Pauses between the connections of one kind of state, and which of their failures are logged.
#[derive(Debug)]
pub(super) struct Retries {
    short: Backoff,
    long: Backoff,
    named: NamedCauses,
    /// Last time that a connection which has lasted was there: what was named before is forgotten.
    settled: Option<Instant>,
    /// Last time that a connection was there.
    connected: Option<Instant>,
    /// First failure since.
    failed: Option<Instant>,
    /// The log says that none is there.
    is_down: bool,
}

impl Retries {
    /// Retries that log what is not named yet.
    pub(super) fn new(named: NamedCauses) -> Self {
        let [short, long] = [PAUSES, LONG_PAUSES].map(|(first, most)| Backoff::new(first, most));
        Self { short, long, named, settled: None, connected: None, failed: None, is_down: false }
    }

    /// A connection is there. Returns `true` if that is to be logged, as its absence was.
    pub(super) fn connected(&mut self, now: Instant) -> bool {
        (self.connected, self.failed) = (Some(now), None);
        std::mem::take(&mut self.is_down)
    }

    /// The connection that began at this time has ended.
    pub(super) fn ended(&mut self, began: Instant) {
        if self.connected.is_some_and(|last| last.saturating_duration_since(began) >= SETTLED) {
            self.settled = self.connected;
            self.short.reset();
            self.long.reset();
        }
    }

    /// Returns `true` if the log has named this cause since the last connection was there.
    pub(super) fn is_named(&self, cause: Cause) -> bool {
        let named = self.named.named.lock().unwrap_or_else(PoisonError::into_inner);
        named.get(&cause).is_some_and(|at| self.connected.is_some_and(|connected| *at >= connected))
    }

    /// Returns whether a failure is to be logged under this message, and the pause until the next attempt.
    pub(super) fn failed(
        &mut self,
        failure: &Failure,
        message: &'static str,
        now: Instant,
    ) -> (bool, Duration) {
        let cause = (failure.reason(), message);
        let (mut is_new, at) = self.named.name(cause, self.settled, now);
        // Or the log is silent about a store that comes and goes.
        self.is_down |= self.connected.is_none_or(|connected| at >= connected);
        let failed = *self.failed.get_or_insert(now);
        if !self.is_down && now.saturating_duration_since(failed) > SETTLED {
            // It doesn't come again, and the last line says that it is there.
            (is_new, _) = self.named.name(cause, Some(now), now);
            self.is_down = true;
        }
        let pauses = if failure.needs_somebody() { &mut self.long } else { &mut self.short };
        (is_new, pauses.next(&mut rand::rng()))
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    const MESSAGE: &str = "away";

    fn closed() -> Failure {
        Failure::Closed(io::ErrorKind::UnexpectedEof.into())
    }

    fn connect() -> Failure {
        Failure::Connect(io::ErrorKind::ConnectionRefused.into())
    }

    /// A clock, and retries of several kinds of state.
    fn start(kinds: usize) -> (impl Fn(u64) -> Instant, Vec<Retries>) {
        let (begin, named) = (Instant::now(), NamedCauses::default());
        let retries = (0..kinds).map(|_| Retries::new(named.clone())).collect();
        (move |ms| begin + Duration::from_millis(ms), retries)
    }

    #[test]
    fn each_cause_is_logged_once_while_a_server_comes_and_goes() {
        let (at, mut retries) = start(1);
        let [retries] = &mut retries[..] else { panic!() };
        let mut logged = 0;
        let mut connections = 0;
        for round in 0..100 {
            let began = round * 5000;
            connections += usize::from(retries.connected(at(began)));
            retries.connected(at(began + 3000));
            retries.ended(at(began));
            for (ms, failure) in
                [(3000, closed()), (3100, connect()), (3500, connect()), (4000, Failure::Loading)]
            {
                logged += usize::from(retries.failed(&failure, MESSAGE, at(began + ms)).0);
            }
        }
        assert_eq!((logged, connections), (3, 1));
        assert!(retries.failed(&closed(), MESSAGE, at(603_000)).0, "somebody may have missed it");
    }

    #[test]
    fn failures_of_a_connection_that_lasted_are_logged_again() {
        let (at, mut retries) = start(1);
        let [retries] = &mut retries[..] else { panic!() };
        assert!(!retries.connected(at(0)));
        for round in 0..3 {
            let began = round * 20_000;
            assert!(!retries.connected(at(began + 10_500)));
            retries.ended(at(began));
            assert!(retries.failed(&closed(), MESSAGE, at(began + 11_000)).0);
            assert!(retries.failed(&connect(), MESSAGE, at(began + 11_100)).0);
            assert!(!retries.failed(&connect(), MESSAGE, at(began + 11_200)).0);
            assert!(retries.connected(at(began + 20_000)) && !retries.connected(at(began + 20_001)));
        }
    }

    #[test]
    fn log_does_not_end_with_a_connection_that_is_gone() {
        let (at, mut retries) = start(2);
        for kind in &mut retries {
            kind.connected(at(0));
            kind.failed(&closed(), MESSAGE, at(100));
            kind.failed(&connect(), MESSAGE, at(200));
            assert!(kind.connected(at(3000)));
            kind.connected(at(8000));
            kind.ended(at(3000));
        }
        let mut logged = Vec::new();
        for ms in (8100..60_000).step_by(500) {
            for (number, kind) in (0..).zip(&mut retries) {
                if kind.failed(&connect(), MESSAGE, at(ms + number)).0 {
                    logged.push(ms);
                }
            }
        }
        assert_eq!(logged, [18_600], "once, as both have it in common");
        assert!(retries.iter_mut().all(|kind| kind.connected(at(60_000))));
    }

    #[test]
    fn cause_of_several_kinds_of_state_is_logged_once_and_its_end_by_each() {
        let (at, mut retries) = start(3);
        retries.iter_mut().for_each(|kind| assert!(!kind.connected(at(0))));
        let mut logged = Vec::new();
        for (ms, kind) in (20_000..).zip(&mut retries) {
            kind.connected(at(19_000));
            kind.ended(at(0));
            logged.push(kind.failed(&closed(), MESSAGE, at(ms)).0);
            logged.push(kind.failed(&connect(), MESSAGE, at(ms + 100)).0);
        }
        assert_eq!(logged, [true, true, false, false, false, false]);
        assert!(retries[0].failed(&closed(), "another effect", at(21_000)).0);
        assert!(retries.iter_mut().all(|kind| kind.connected(at(30_000))));
        // Then one after the other, each alone.
        for (ms, kind) in (50_000..).step_by(5000).zip(&mut retries) {
            assert!(!kind.connected(at(ms)));
            kind.ended(at(30_000));
            assert!(kind.failed(&closed(), MESSAGE, at(ms + 100)).0);
            assert!(kind.connected(at(ms + 200)));
        }
    }
}
