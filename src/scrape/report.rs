//! Log messages about an endpoint's scrapes: changes, and every failure at debug level only.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::endpoints::Endpoint;

use super::client::{Reason, ScrapeError};

/// A change is logged at once, the next not before this time is over; an
/// endpoint that comes and goes would fill the log otherwise.
const GAP: Duration = Duration::from_secs(10);

/// A state that is logged when it changes.
#[derive(Debug)]
pub(super) struct LoggedState<T> {
    state: T,
    at: Option<Instant>,
}

impl<T: PartialEq> LoggedState<T> {
    /// `state` is expected, and not logged.
    pub(super) fn new(state: T) -> Self {
        Self { state, at: None }
    }

    /// Returns `true` if this state is to be logged now.
    pub(super) fn changes_to(&mut self, state: T, now: Instant) -> bool {
        if state == self.state || self.at.is_some_and(|at| now < at + GAP) {
            return false;
        }
        self.state = state;
        self.at = Some(now);
        true
    }
}

/// The log's view of the scrapes of one endpoint by one source.
pub(super) struct Log<'a> {
    endpoint: &'a Endpoint,
    source: &'static str,
    /// Address that is scraped.
    address: SocketAddr,
    failing: LoggedState<Option<Reason>>,
}

impl<'a> Log<'a> {
    pub(super) fn new(endpoint: &'a Endpoint, source: &'static str, address: SocketAddr) -> Self {
        Self { endpoint, source, address, failing: LoggedState::new(None) }
    }

    pub(super) fn failed(&mut self, error: &ScrapeError, now: Instant) {
        let (endpoint, source, address) = (self.endpoint.id(), self.source, self.address);
        debug!(%endpoint, source, %error, "scrape failed");
        if self.failing.changes_to(Some(error.reason()), now) {
            warn!(%endpoint, %address, source, %error, "endpoint can't be scraped");
        }
    }

    pub(super) fn got_page(&mut self, now: Instant) {
        if self.failing.changes_to(None, now) {
            info!(endpoint = %self.endpoint.id(), source = self.source, "endpoint can be scraped again");
        }
    }

    /// The server doesn't understand which metrics are asked for.
    pub(super) fn gets_whole_pages(&self) {
        info!(endpoint = %self.endpoint.id(), source = self.source, "scraping whole pages of the endpoint: its page of selected metrics lacked some");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_change_is_logged_once_and_flapping_rarely() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut failing = LoggedState::new(false);
        assert!(!failing.changes_to(false, at(0)), "the expected state is not logged");
        assert!(failing.changes_to(true, at(0)));
        assert!(!failing.changes_to(true, at(60)));
        assert!(failing.changes_to(false, at(61)));
        assert!(!failing.changes_to(true, at(62)), "too soon");
        assert!(!failing.changes_to(false, at(70)));
        assert!(!failing.changes_to(true, at(70)));
        assert!(failing.changes_to(true, at(71)), "still so after the gap");
    }
}
