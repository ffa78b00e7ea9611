//! Whether somebody else writes the number of replicas.
//!
//! One foreign write, a `kubectl scale`, is the new baseline: the next plan begins there. Two within two
//! intervals are another controller that wants something else. Then nothing is written until it has been
//! quiet for two intervals: two writers that undo each other's work are worse than one that is wrong.

use std::time::Duration;

/// Within so many intervals a second foreign write means another writer; for so many it has to be quiet.
const INTERVALS: u32 = 2;

/// Who writes the replicas of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writers {
    /// What was there when we last looked, or wrote.
    known: Option<u32>,
    /// When somebody else wrote last.
    foreign: Option<Duration>,
    /// Until when nothing is written.
    until: Option<Duration>,
}

impl Writers {
    /// So many replicas are there now. Says whether they may be changed.
    pub fn see(&mut self, replicas: u32, now: Duration, interval: Duration) -> bool {
        let window = interval * INTERVALS;
        if self.known.replace(replicas).is_some_and(|known| known != replicas) {
            let is_second = self.foreign.is_some_and(|before| now.saturating_sub(before) <= window);
            if is_second || self.until.is_some_and(|until| now < until) {
                self.until = Some(now + window);
            }
            self.foreign = Some(now);
        }
        self.until = self.until.filter(|until| now < *until);
        self.until.is_none()
    }

    /// So many were written.
    pub fn wrote(&mut self, replicas: u32) {
        self.known = Some(replicas);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn one_foreign_write_is_the_baseline_and_two_are_a_writer() {
        let mut writers = Writers::default();
        let mut see = |replicas, at| writers.see(replicas, s(at), s(15));
        assert!(see(4, 0), "what is there first is nobody's");
        assert!(see(4, 15));
        assert!(see(7, 30), "one is the new baseline");
        assert!(see(7, 45));
        assert!(see(9, 61), "31 s later is another one");
        assert!(!see(5, 75), "and 14 s after that is a writer");
        assert!(!see(5, 90));
        assert!(see(5, 105), "it was quiet for two intervals");
        assert!(see(6, 120));
        assert!(!see(4, 135));
        assert!(!see(8, 150), "each one begins the quiet anew");
        assert!(!see(8, 179));
        assert!(see(8, 180));
    }

    #[test]
    fn our_own_writes_are_not_foreign() {
        let mut writers = Writers::default();
        for replicas in 1..20 {
            assert!(writers.see(replicas, s(u64::from(replicas)), s(15)));
            writers.wrote(replicas + 1);
        }
    }
}
