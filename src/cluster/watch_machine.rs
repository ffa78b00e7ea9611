//! Next steps to follow a collection: list what there is, then watch from there.
//! No I/O and no clock, so that every order of failures can be tried in a test.

use std::time::Duration;

use rand::Rng;

use super::{Backoff, Problem};

/// First pause before a server is asked again that didn't respond as it should.
pub const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest.
pub const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// Before it is believed that a kind of objects is gone that was there: a server that
/// starts may not know of it yet.
const ASKED_AGAIN: u32 = 3;

/// Next step to follow a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// List all objects, after a pause.
    List(Duration),
    /// Watch from a version on, after a pause.
    Watch(String, Duration),
    /// Stop: the server has no objects of this kind.
    Stop,
}

/// State machine that follows a collection.
#[derive(Debug)]
pub(super) struct WatchMachine {
    /// The last version that was seen; empty before the first list.
    version: String,
    /// The collection was listed at least once.
    known: bool,
    /// `true` if this watch has delivered an event.
    progress: bool,
    not_found: u32,
    backoff: Backoff,
}

impl WatchMachine {
    pub(super) fn new() -> Self {
        let backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        Self { version: String::new(), known: false, progress: false, not_found: 0, backoff }
    }

    /// All objects were listed, at this version.
    pub(super) fn listed(&mut self, version: String) -> Step {
        self.version = version;
        (self.known, self.progress, self.not_found) = (true, false, 0);
        // Not reset: a list that works and a watch that doesn't would make a tight loop.
        let pause = Duration::ZERO;
        Step::Watch(self.version.clone(), pause)
    }

    /// Listing failed.
    pub(super) fn list_failed(&mut self, problem: &Problem, rng: &mut dyn Rng) -> Step {
        if matches!(problem, Problem::NotFound(_)) {
            self.not_found += 1;
            if !self.known || self.not_found >= ASKED_AGAIN {
                return Step::Stop;
            }
        } else {
            self.not_found = 0;
        }
        Step::List(self.backoff.after(Some(problem), rng))
    }

    /// The watch said something, which is now the version to go on from.
    pub(super) fn received(&mut self, version: &str) {
        if !version.is_empty() {
            version.clone_into(&mut self.version);
        }
        self.progress = true;
        self.backoff.reset();
    }

    /// The watch ended: by itself, as all do in time, or by a problem.
    pub(super) fn watch_ended(&mut self, problem: Option<&Problem>, rng: &mut dyn Rng) -> Step {
        let progress = std::mem::take(&mut self.progress);
        match problem {
            // The watch may have had nothing to say; a server that closes every one at
            // once still doesn't get them in a tight loop.
            None if progress => Step::Watch(self.version.clone(), Duration::ZERO),
            Some(Problem::Expired(_)) if self.backoff.failures() == 0 => {
                self.backoff.next(rng);
                Step::List(Duration::ZERO)
            }
            // The server won't go on from here, whatever is the matter with it. One that has too much
            // to do would get more by a list.
            Some(problem) if problem.is_response() && !problem.is_of_the_server() => {
                Step::List(self.backoff.after(Some(problem), rng))
            }
            problem => Step::Watch(self.version.clone(), self.backoff.after(problem, rng)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    fn rng() -> StdRng {
        StdRng::seed_from_u64(5)
    }

    fn expired() -> Problem {
        Problem::Expired("too old".to_owned())
    }

    fn lost() -> Problem {
        Problem::Unreachable("reset".to_owned())
    }

    fn refused(code: u16) -> Problem {
        Problem::Refused { code, message: "m".to_owned() }
    }

    fn busy(seconds: u64) -> Problem {
        Problem::Busy { code: 429, message: "m".to_owned(), after: Duration::from_secs(seconds) }
    }

    fn missing() -> Problem {
        Problem::NotFound("no such kind".to_owned())
    }

    #[test]
    fn watch_resumes_from_the_last_seen_version() {
        let (mut machine, mut rng) = (WatchMachine::new(), rng());
        assert_eq!(machine.listed("5".to_owned()), Step::Watch("5".to_owned(), Duration::ZERO));
        machine.received("7");
        machine.received("");
        assert_eq!(machine.watch_ended(None, &mut rng), Step::Watch("7".to_owned(), Duration::ZERO));
        let Step::Watch(version, pause) = machine.watch_ended(Some(&lost()), &mut rng) else { panic!() };
        assert_eq!(version, "7");
        assert!(pause > Duration::ZERO && pause <= FIRST_PAUSE);
    }

    #[test]
    fn expired_version_is_relisted_once_without_a_pause() {
        let (mut machine, mut rng) = (WatchMachine::new(), rng());
        machine.listed("5".to_owned());
        assert_eq!(machine.watch_ended(Some(&expired()), &mut rng), Step::List(Duration::ZERO));
        machine.listed("6".to_owned());
        let again = machine.watch_ended(Some(&expired()), &mut rng);
        assert!(matches!(again, Step::List(pause) if pause > Duration::ZERO), "{again:?}");
        machine.listed("7".to_owned());
        machine.received("8");
        assert_eq!(machine.watch_ended(Some(&expired()), &mut rng), Step::List(Duration::ZERO));
    }

    #[test]
    fn failing_or_silent_server_is_not_relisted() {
        let table = [
            (Problem::Denied("no".to_owned()), true),
            (missing(), true),
            (refused(400), true),
            (refused(429), false),
            (refused(500), false),
            (refused(503), false),
            (busy(1), false),
            (Problem::TimedOut(Duration::from_secs(15)), false),
            (lost(), false),
        ];
        for (problem, lists) in table {
            let (mut machine, mut rng) = (WatchMachine::new(), rng());
            machine.listed("5".to_owned());
            // However often.
            for _ in 0..20 {
                match machine.watch_ended(Some(&problem), &mut rng) {
                    Step::List(_) => assert!(lists, "{problem}"),
                    step => assert!(!lists && matches!(&step, Step::Watch(v, _) if v == "5"), "{step:?}"),
                }
            }
        }
    }

    #[test]
    fn retry_after_is_waited_for_with_jitter() {
        let s = Duration::from_secs;
        for (asked, least) in [(7, s(7)), (200, s(200)), (86_400, Duration::from_mins(5))] {
            let (mut machine, mut rng) = (WatchMachine::new(), rng());
            let Step::List(pause) = machine.list_failed(&busy(asked), &mut rng) else { panic!() };
            assert!(pause >= least && pause <= least * 5 / 4, "{pause:?} of {asked}");
            machine.listed("5".to_owned());
            let Step::Watch(_, pause) = machine.watch_ended(Some(&busy(asked)), &mut rng) else { panic!() };
            assert!(pause >= least && pause <= least * 5 / 4, "{pause:?} of {asked}");
        }
        // No less than without one.
        let (mut machine, mut rng) = (WatchMachine::new(), rng());
        let mut step = Step::List(Duration::ZERO);
        for _ in 0..12 {
            step = machine.list_failed(&busy(0), &mut rng);
        }
        assert!(matches!(step, Step::List(pause) if pause >= LONGEST_PAUSE / 2), "{step:?}");
    }

    #[test]
    fn known_kind_is_missing_only_after_retries() {
        let (mut machine, mut rng) = (WatchMachine::new(), rng());
        assert_eq!(machine.list_failed(&missing(), &mut rng), Step::Stop);
        machine.listed("5".to_owned());
        for _ in 1..ASKED_AGAIN {
            assert!(matches!(machine.list_failed(&missing(), &mut rng), Step::List(_)));
        }
        assert!(matches!(machine.list_failed(&lost(), &mut rng), Step::List(_)), "starts over");
        for _ in 1..ASKED_AGAIN {
            assert!(matches!(machine.list_failed(&missing(), &mut rng), Step::List(_)));
        }
        assert_eq!(machine.list_failed(&missing(), &mut rng), Step::Stop);
    }

    proptest! {
        /// Any failures in any order: two steps without a pause only come with progress between them, and
        /// no pause is longer than the longest.
        #[test]
        fn failures_never_make_a_tight_loop(events in proptest::collection::vec(0u8..8, 1..60)) {
            let (mut machine, mut rng) = (WatchMachine::new(), rng());
            let (mut free, mut step) = (0, Step::List(Duration::ZERO));
            for event in events {
                let next = match (&step, event) {
                    (Step::Stop, _) => break,
                    (Step::List(_), 0..2) => machine.listed("1".to_owned()),
                    (Step::List(_), 2..4) => machine.list_failed(&lost(), &mut rng),
                    (Step::List(_), _) => machine.list_failed(&missing(), &mut rng),
                    (Step::Watch(..), 0) => { machine.received("2"); free = 0; machine.watch_ended(None, &mut rng) }
                    (Step::Watch(..), 1) => machine.watch_ended(None, &mut rng),
                    (Step::Watch(..), 2) => machine.watch_ended(Some(&lost()), &mut rng),
                    (Step::Watch(..), 3) => machine.watch_ended(Some(&missing()), &mut rng),
                    (Step::Watch(..), 4) => machine.watch_ended(Some(&busy(1)), &mut rng),
                    (Step::Watch(..), 5) => machine.watch_ended(Some(&refused(500)), &mut rng),
                    (Step::Watch(..), _) => machine.watch_ended(Some(&expired()), &mut rng),
                };
                step = next;
                match &step {
                    Step::List(pause) | Step::Watch(_, pause) => {
                        prop_assert!(*pause <= LONGEST_PAUSE);
                        if pause.is_zero() { free += 1 } else { free = 0 }
                    }
                    Step::Stop => {}
                }
                prop_assert!(free <= 3, "{free} steps without a pause or a word");
            }
        }
    }
}
