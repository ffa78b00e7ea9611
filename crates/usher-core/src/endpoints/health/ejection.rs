//! Ejection and recovery of an endpoint: a state machine that gets
//! what happens and what time it is.
//!
//! ```text
//!            failures in a row                 successes in a row
//!   well ───────────────────────▶ ejected ───────────────────────▶ well
//!                                 │     ▲
//!                                 └─────┘ probes: one at a time, a pause after each; a
//!                                         failure doubles the pause, a success halves it
//! ```

use std::time::Duration;

/// Parameters of ejection and recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthParams {
    /// Requests that fail in a row until the endpoint is ejected; 0 counts as 1. Default 3:
    /// one bad request that its client sends again doesn't cost a pod.
    pub failures: u32,
    /// Scrapes that fail in a row, without a request that succeeds in between, until the
    /// endpoint is ejected; 0: never. Default 3: with the default interval 0.3 s after a
    /// server stops to listen.
    pub failed_scrapes: u32,
    /// Pause before the first probe, and the shortest after one that fails. Default 1 s.
    pub first_pause: Duration,
    /// The longest pause between probes; less than `first_pause` counts as that. Default
    /// 2 s: a server that works again is back within 4 s and the time of its responses.
    pub longest_pause: Duration,
    /// Requests that succeed in a row until an ejected endpoint is as good as any other; 0
    /// counts as 1. Default 4.
    pub successes: u32,
    /// Shortest time without a first byte after which a request counts as failed; zero:
    /// never. Default 2 s. More where that is usual for requests of its class.
    pub first_byte: Duration,
}

impl Default for HealthParams {
    fn default() -> Self {
        Self {
            failures: 3,
            failed_scrapes: 3,
            first_pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(2),
            successes: 4,
            first_byte: Duration::from_secs(2),
        }
    }
}

/// A failure that counts against an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Response with this status, or one of the gateway that could not reach the endpoint.
    Status(u16),
    /// The gateway was served by another endpoint than this one, which it was to try first.
    Elsewhere,
    /// Failed scrape.
    Scrape,
    /// No first byte of a response for longer than other endpoints take.
    Timeout,
}

impl Failure {
    /// Names in metrics, in the order of [`number`](Self::number).
    pub const NAMES: [&'static str; 4] = ["status", "elsewhere", "scrapes", "timeout"];

    /// The position of its name.
    pub fn number(self) -> usize {
        match self {
            Self::Status(_) => 0,
            Self::Elsewhere => 1,
            Self::Scrape => 2,
            Self::Timeout => 3,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Status(status) => write!(f, "status {status}"),
            Self::Elsewhere => f.write_str("another endpoint served"),
            Self::Scrape => f.write_str("can't be scraped"),
            Self::Timeout => f.write_str("no first byte in time"),
        }
    }
}

/// Effect of an event on whether an endpoint is ejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Neither ejected nor recovered.
    Nothing,
    /// Ejected, by this failure.
    Ejected(Failure),
    /// Recovered after so many milliseconds.
    Recovered(u64),
}

/// Time for the response to a probe to begin. After that the next one may go, should its
/// stream still be open: an endpoint that hangs would keep its probe for ever.
pub(super) const PATIENCE_MS: u64 = 10_000;

/// After a request that could not be the probe, as the filters kept it from this endpoint,
/// another one is tried so much later.
const RETRY_MS: u64 = 10;

/// Ejection state of one endpoint. All times are milliseconds of one clock, from 1.
#[derive(Debug, Default)]
pub struct EjectionState {
    failures: u32,
    /// Failed scrapes in a row that count, with no good response that began or ended since.
    scrapes: u32,
    /// Requests said that it is well while its scrapes failed: those don't count until one
    /// brings a page.
    excused: bool,
    /// The last scrape's connection was refused at the request port: a probe would fail.
    refused: bool,
    /// Time at which it was ejected or recovered last; 0: never. Requests that were sent before say
    /// nothing about it any more.
    changed_ms: u64,
    ejected: Option<EjectedState>,
    /// Probes so far.
    probes: u32,
}

/// A ejection.
#[derive(Debug)]
struct EjectedState {
    /// The failure that led to it: says what else than probes may end it, whatever those meet meanwhile.
    cause: Failure,
    /// Successes in a row.
    good: u32,
    /// Scrapes in a row that brought a page.
    good_scrapes: u32,
    pause_ms: u64,
    /// Time at which the next probe may go.
    next_ms: u64,
    /// The probe that is out, and until when it is waited for.
    out: Option<(u32, u64)>,
}

/// State of an endpoint's health, for the admin page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// Requests in a row that failed; 0 for one that is ejected.
    pub failures: u32,
    /// The ejection, if it is ejected.
    pub ejection: Option<Ejection>,
}

/// State of a ejection, for the admin page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// The failure that led to it.
    pub cause: Failure,
    /// Since when.
    pub since_ms: u64,
    /// Successes in a row since.
    pub successes: u32,
    /// Time at which the next probe may go.
    pub next_probe_ms: u64,
    /// `true` if a probe is under way.
    pub probing: bool,
}

impl EjectionState {
    /// A request that was sent at `sent_ms` failed.
    pub fn failed(&mut self, params: &HealthParams, failure: Failure, sent_ms: u64, now_ms: u64) -> Change {
        if sent_ms <= self.changed_ms {
            return Change::Nothing;
        }
        let Some(ejected) = &mut self.ejected else {
            self.failures += 1;
            let enough = self.failures >= params.failures.max(1);
            return if enough { self.eject(params, failure, now_ms) } else { Change::Nothing };
        };
        let (first, longest) = pauses(params);
        if failure == Failure::Timeout {
            // The probe is waited for no longer.
            ejected.out = None;
        }
        (ejected.good, ejected.good_scrapes) = (0, 0);
        ejected.pause_ms = ejected.pause_ms.saturating_mul(2).clamp(first, longest);
        ejected.next_ms = now_ms.saturating_add(ejected.pause_ms);
        Change::Nothing
    }

    /// A request that was sent at `sent_ms` was answered well.
    pub fn succeeded(&mut self, params: &HealthParams, sent_ms: u64, now_ms: u64) -> Change {
        if sent_ms <= self.changed_ms {
            return Change::Nothing;
        }
        let Some(ejected) = &mut self.ejected else {
            (self.failures, self.scrapes) = (0, 0);
            return Change::Nothing;
        };
        ejected.good += 1;
        if ejected.good >= params.successes.max(1) {
            return self.recover(now_ms);
        }
        ejected.pause_ms = (ejected.pause_ms / 2).max(1);
        ejected.next_ms = now_ms.saturating_add(ejected.pause_ms);
        Change::Nothing
    }

    /// The first byte of a request came that counted as failed: a success, also where it was
    /// sent before the ejection that it led to.
    pub fn answered_late(&mut self, params: &HealthParams, now_ms: u64) -> Change {
        match self.cause() {
            Some(Failure::Timeout) => self.succeeded(params, u64::MAX, now_ms),
            Some(_) => Change::Nothing,
            None => {
                self.failures = 0;
                Change::Nothing
            }
        }
    }

    /// A response came to its end: the server lives, whatever keeps it from answering scrapes.
    pub fn finished(&mut self) {
        if self.ejected.is_none() {
            self.scrapes = 0;
        }
    }

    /// A scrape failed, in a way that says something about the server. `refused`: nobody
    /// listens where requests go.
    pub fn scrape_failed(&mut self, params: &HealthParams, refused: bool, now_ms: u64) -> Change {
        self.refused = refused;
        if self.excused {
            return Change::Nothing;
        }
        self.scrapes = self.scrapes.saturating_add(1);
        if let Some(ejected) = &mut self.ejected {
            ejected.good_scrapes = 0;
            return Change::Nothing;
        }
        let enough = params.failed_scrapes > 0 && self.scrapes >= params.failed_scrapes;
        if enough { self.eject(params, Failure::Scrape, now_ms) } else { Change::Nothing }
    }

    /// A scrape brought a page. That brings back who was ejected for nothing else.
    pub fn scrape_succeeded(&mut self, params: &HealthParams, now_ms: u64) -> Change {
        (self.scrapes, self.excused, self.refused) = (0, false, false);
        let Some(ejected) = self.ejected.as_mut().filter(|ejected| ejected.cause == Failure::Scrape) else {
            return Change::Nothing;
        };
        ejected.good_scrapes += 1;
        if ejected.good_scrapes >= params.successes.max(1) { self.recover(now_ms) } else { Change::Nothing }
    }

    /// Takes the place of the probe; `None` while none is due. The number is the probe's.
    pub fn claim(&mut self, now_ms: u64) -> Option<u32> {
        if now_ms < self.due_ms()? {
            return None;
        }
        self.probes = self.probes.wrapping_add(1);
        let probe = (self.probes, now_ms.saturating_add(PATIENCE_MS));
        self.ejected.as_mut()?.out = Some(probe);
        Some(probe.0)
    }

    /// The request that was to be the probe went elsewhere.
    pub fn unused(&mut self, probe: u32, now_ms: u64) {
        if let Some(ejected) = self.with_probe(probe) {
            ejected.next_ms = now_ms.saturating_add(RETRY_MS);
        }
    }

    /// The response to the probe said how the endpoint is, and was counted.
    pub fn answered(&mut self, probe: u32) {
        self.with_probe(probe);
    }

    /// The probe ended without a word about the endpoint.
    pub fn unanswered(&mut self, probe: u32, now_ms: u64) {
        if let Some(ejected) = self.with_probe(probe) {
            ejected.next_ms = now_ms.saturating_add(ejected.pause_ms);
        }
    }

    /// Time at which a probe can be claimed: `u64::MAX` while connections are refused; `None` for an
    /// endpoint that is well.
    pub fn due_ms(&self) -> Option<u64> {
        let ejected = self.ejected.as_ref()?;
        if self.refused {
            return Some(u64::MAX);
        }
        Some(ejected.out.map_or(ejected.next_ms, |(_, until)| until.max(ejected.next_ms)))
    }

    /// Returns `true` if a success would change nothing.
    pub fn is_quiet(&self) -> bool {
        self.ejected.is_none() && self.failures == 0 && self.scrapes == 0
    }

    /// Returns `true` if a scrape that brings a page would change nothing.
    pub fn is_quiet_for_scrapes(&self) -> bool {
        self.scrapes == 0 && !self.excused && !self.refused && self.cause() != Some(Failure::Scrape)
    }

    /// State of the endpoint's health, for the admin page.
    pub fn condition(&self) -> Condition {
        let ejection = self.ejected.as_ref().map(|ejected| Ejection {
            cause: ejected.cause,
            since_ms: self.changed_ms,
            successes: ejected.good,
            next_probe_ms: ejected.next_ms,
            probing: ejected.out.is_some(),
        });
        Condition { failures: self.failures, ejection }
    }

    fn cause(&self) -> Option<Failure> {
        self.ejected.as_ref().map(|ejected| ejected.cause)
    }

    /// The ejection whose probe this is; it is no longer out.
    fn with_probe(&mut self, probe: u32) -> Option<&mut EjectedState> {
        let ejected =
            self.ejected.as_mut().filter(|ejected| ejected.out.is_some_and(|(out, _)| out == probe))?;
        ejected.out = None;
        Some(ejected)
    }

    fn eject(&mut self, params: &HealthParams, cause: Failure, now_ms: u64) -> Change {
        let (pause_ms, _) = pauses(params);
        let next_ms = now_ms.saturating_add(pause_ms);
        self.ejected = Some(EjectedState { cause, good: 0, good_scrapes: 0, pause_ms, next_ms, out: None });
        (self.failures, self.changed_ms) = (0, now_ms);
        Change::Ejected(cause)
    }

    fn recover(&mut self, now_ms: u64) -> Change {
        let since = std::mem::replace(&mut self.changed_ms, now_ms);
        self.ejected = None;
        // Scrapes that still fail were no reason; a server may have its metrics elsewhere.
        self.excused = self.scrapes > 0;
        (self.failures, self.scrapes) = (0, 0);
        Change::Recovered(now_ms.saturating_sub(since))
    }
}

/// The first pause and the longest, at least a millisecond.
fn pauses(params: &HealthParams) -> (u64, u64) {
    let ms = |pause: Duration| u64::try_from(pause.as_millis()).unwrap_or(u64::MAX).max(1);
    let first = ms(params.first_pause);
    (first, ms(params.longest_pause).max(first))
}

#[cfg(test)]
#[path = "ejection_tests.rs"]
mod tests;
