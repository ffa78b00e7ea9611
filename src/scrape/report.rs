//! What the log hears about an endpoint's scrapes: changes, not every failure.

use std::time::Duration;

use tokio::time::Instant;

/// A change is told at once, the next not before this time is over; an
/// endpoint that comes and goes would fill the log otherwise.
const GAP: Duration = Duration::from_secs(10);

/// A state that is told when it changes.
#[derive(Debug)]
pub(super) struct Told<T> {
    state: T,
    at: Option<Instant>,
}

impl<T: PartialEq> Told<T> {
    /// `state` is what needs no telling.
    pub(super) fn new(state: T) -> Self {
        Self { state, at: None }
    }

    /// Whether this state has to be told now.
    pub(super) fn tell(&mut self, state: T, now: Instant) -> bool {
        if state == self.state || self.at.is_some_and(|at| now < at + GAP) {
            return false;
        }
        self.state = state;
        self.at = Some(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_once_and_a_flutter_rarely() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut failing = Told::new(false);
        assert!(!failing.tell(false, at(0)), "the expected needs no telling");
        assert!(failing.tell(true, at(0)));
        assert!(!failing.tell(true, at(60)));
        assert!(failing.tell(false, at(61)));
        assert!(!failing.tell(true, at(62)), "too soon");
        assert!(!failing.tell(false, at(70)));
        assert!(!failing.tell(true, at(70)));
        assert!(failing.tell(true, at(71)), "still so after the gap");
    }
}
