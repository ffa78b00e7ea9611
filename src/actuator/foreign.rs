//! Detects another writer of the number of replicas.
//!
//! One foreign write, such as a `kubectl scale`, is the new baseline: the next plan begins there. Two within
//! a minute (two intervals, if longer) are another controller: one that acts every 15 s, as an HPA does,
//! writes more often. So are two that each revert what was written before, however far apart: a GitOps
//! controller writes only after somebody else did. Writes then stop until no foreign write was seen for as
//! long: two writers that revert each other are worse than one that is wrong. A foreign write soon after that
//! doubles the pause each time, up to an hour.

use std::time::Duration;

/// Intervals, and the least time, within which a second foreign write means another writer.
const INTERVALS: u32 = 2;
const WINDOW: Duration = Duration::from_secs(60);

/// Time after which a changed number counts as a new wish rather than a revert. GitOps controllers poll every
/// ten minutes by default.
const STANDS: Duration = Duration::from_mins(20);

/// Longest pause of writes.
const LONGEST: Duration = Duration::from_hours(1);

/// Writers of the replicas of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writers {
    /// Replicas at the last observation, or written last.
    known: Option<u32>,
    /// Time of the last foreign write.
    foreign: Option<Duration>,
    /// Times of our first and last write since the last foreign one.
    wrote: Option<(Duration, Duration)>,
    /// `true` if a foreign write reverted ours, and none has lasted since.
    is_undone: bool,
    /// End of the pause of writes.
    until: Option<Duration>,
    /// Length of the last pause, and the time at which writes resumed.
    quiet: Duration,
    resumed: Option<Duration>,
    /// Our write whose response was lost.
    attempt: Option<Attempt>,
}

/// A write that the server may have carried out, or may yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Attempt {
    to: u32,
    /// `true` until the first observation after it.
    is_new: bool,
}

impl Writers {
    /// Records the observed replicas. Returns `true` if they may be changed.
    pub fn see(&mut self, replicas: u32, now: Duration, interval: Duration) -> bool {
        let window = WINDOW.max(interval * INTERVALS);
        if let Some(until) = self.until.filter(|until| now >= *until) {
            (self.until, self.resumed) = (None, Some(until));
        }
        if self.attempt.is_some_and(|attempt| attempt.to == replicas) {
            self.wrote(replicas, now);
        }
        let is_recent = |at: Duration| now.saturating_sub(at) <= STANDS.max(window);
        if self.wrote.is_some_and(|(first, _)| !is_recent(first)) {
            (self.is_undone, self.resumed) = (false, None);
        }
        let before = self.known.replace(replicas);
        if before.is_some_and(|known| known != replicas) {
            let undoes = self.wrote.take().is_some_and(|(_, last)| is_recent(last));
            let is_again = undoes && self.is_undone;
            let is_within = |since: Option<Duration>, time: Duration| {
                since.is_some_and(|since| now.saturating_sub(since) <= time)
            };
            let is_back = is_within(self.resumed, self.quiet) || (is_again && self.resumed.is_some());
            if self.until.is_some() {
                self.until = Some(now + self.quiet);
            } else if is_back || is_again || is_within(self.foreign, window) {
                self.quiet = if is_back { (self.quiet * 2).min(LONGEST.max(window)) } else { window };
                self.until = Some(now + self.quiet);
            }
            (self.foreign, self.is_undone) = (Some(now), self.is_undone || undoes);
        }
        self.until.is_none()
    }

    /// Records a write of these replicas.
    pub fn wrote(&mut self, replicas: u32, now: Duration) {
        self.known = Some(replicas);
        self.wrote.get_or_insert((now, now)).1 = now;
        self.attempt = None;
    }

    /// Records a write whose response was lost.
    pub fn attempted(&mut self, replicas: u32) {
        self.attempt = Some(Attempt { to: replicas, is_new: true });
    }

    /// Returns `true` if the first observation after a lost response showed that the write was not carried
    /// out.
    pub fn is_lost(&mut self) -> bool {
        self.attempt.as_mut().is_some_and(|attempt| std::mem::take(&mut attempt.is_new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn two_foreign_writes_within_a_minute_are_a_writer() {
        let mut writers = Writers::default();
        let mut see = |replicas, at| writers.see(replicas, s(at), s(15));
        assert!(see(4, 0), "what is there first is nobody's");
        assert!(see(4, 15));
        assert!(see(7, 30), "one is the new baseline");
        assert!(see(7, 45));
        assert!(see(9, 91), "61 s later is another one");
        assert!(!see(5, 151), "and 60 s after that is a writer");
        assert!(!see(5, 165));
        assert!(!see(8, 180), "each one begins the quiet anew");
        assert!(!see(8, 239));
        assert!(see(8, 240), "it was quiet for a minute");
    }

    #[test]
    fn pauses_grow_for_a_persistent_foreign_writer() {
        let mut writers = Writers::default();
        // Every 15 s an HPA writes 3 where another number is, and every second we write 8.
        let (mut ours, mut replicas) = (Vec::new(), 8);
        for at in 0..7200 {
            if at % 15 == 0 {
                replicas = 3;
            }
            if writers.see(replicas, s(at), s(1)) && replicas != 8 {
                ours.push(at);
                replicas = 8;
                writers.wrote(8, s(at));
            }
        }
        // Once in the beginning, and after 1, 2, 4, … minutes.
        assert!(ours.len() <= 8, "{ours:?}");
        let pauses: Vec<u64> = ours.windows(2).map(|pair| pair[1] - pair[0]).skip(1).collect();
        assert!(pauses.windows(2).all(|pair| pair[1] > pair[0] + pair[0] / 2), "{ours:?}");
        // After a long quiet it begins anew.
        assert!(writers.see(8, s(90_000), s(1)));
        assert!(writers.see(9, s(95_000), s(1)));
        assert!(!writers.see(8, s(95_010), s(1)));
        assert!(writers.see(8, s(95_070), s(1)));
    }

    /// Times of our writes while another controller keeps 4 replicas and we want 6, at most every so many
    /// seconds.
    fn contested(until: u64, rest: u64, corrects: u64) -> Vec<u64> {
        let (mut writers, mut ours, mut replicas) = (Writers::default(), Vec::<u64>::new(), 4);
        for at in 0..until {
            if at % corrects == 0 {
                replicas = 4;
            }
            let may_write = at % 5 != 0 || writers.see(replicas, s(at), s(15));
            if at % 5 == 0 && may_write && replicas != 6 && ours.last().is_none_or(|last| at - last >= rest) {
                ours.push(at);
                replicas = 6;
                writers.wrote(6, s(at));
            }
        }
        ours
    }

    #[test]
    fn two_undone_writes_in_a_row_are_another_writer() {
        // A rule that rests for five minutes, or pods that take two to drain, beside a controller that syncs every
        // 15 s or every 5 minutes: twice, and then after pauses that get longer up to an hour.
        for (rest, corrects) in [(300, 15), (120, 15), (120, 290), (420, 300)] {
            let ours = contested(40_000, rest, corrects);
            let uncontested = 40_000 / rest.max(corrects);
            assert!(ours.len() as u64 <= 24 && uncontested > 80, "{rest} {corrects}: {ours:?}");
        }
        // Somebody who wants another number once an hour is none.
        let mut writers = Writers::default();
        for hour in 1..9 {
            assert!(writers.see(6, s(hour * 3600), s(15)));
            assert!(writers.see(4, s(hour * 3600 + 1800), s(15)), "{hour}");
            writers.wrote(6, s(hour * 3600 + 1805));
        }
    }

    #[test]
    fn writes_whose_response_was_lost_are_not_foreign() {
        let mut writers = Writers::default();
        assert!(writers.see(4, s(0), s(15)));
        assert!(!writers.is_lost());
        // Carried out all the same, twice within a minute.
        for (replicas, at) in [(6, 15), (8, 30)] {
            writers.attempted(replicas);
            assert!(writers.see(replicas, s(at), s(15)));
            assert!(!writers.is_lost(), "it was carried out");
        }
        // Not carried out, or only after the next observation.
        writers.attempted(10);
        assert!(writers.see(8, s(45), s(15)));
        assert!(writers.is_lost());
        assert!(writers.see(8, s(46), s(15)) && !writers.is_lost(), "said once");
        assert!(writers.see(10, s(47), s(15)), "late");
        // Another number is somebody else's.
        writers.attempted(12);
        assert!(writers.see(3, s(60), s(15)), "one is the new baseline");
        assert!(!writers.see(5, s(75), s(15)));
    }

    #[test]
    fn our_own_writes_are_not_foreign() {
        let mut writers = Writers::default();
        for replicas in 1..20 {
            assert!(writers.see(replicas, s(u64::from(replicas)), s(15)));
            writers.wrote(replicas + 1, s(u64::from(replicas)));
        }
    }
}
