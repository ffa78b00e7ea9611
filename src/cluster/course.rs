//! What to do next to follow a collection: list what there is, then watch from there.
//! No I/O and no clock, so that every order of failures can be tried in a test.

use std::time::Duration;

use rand::Rng;

use super::{Backoff, Problem};

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Before it is believed that a kind of objects is gone that was there: a server that
/// starts may not know of it yet.
const ASKED_AGAIN: u32 = 3;

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// List all objects, after a pause.
    List(Duration),
    /// Watch from a version on, after a pause.
    Watch(String, Duration),
    /// There are no objects of this kind here.
    Stop,
}

/// Where following a collection stands.
#[derive(Debug)]
pub(super) struct Course {
    /// The last version that was seen; empty before the first list.
    version: String,
    /// The collection was listed at least once.
    known: bool,
    /// This watch has said something.
    progress: bool,
    not_found: u32,
    backoff: Backoff,
}

impl Course {
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
        Step::List(self.backoff.next(rng))
    }

    /// The watch said something, which is now the version to go on from.
    pub(super) fn told(&mut self, version: &str) {
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
            // The server won't go on from here; what it says now is worth a new start.
            Some(problem) if problem.is_answer() => Step::List(self.backoff.next(rng)),
            _ => Step::Watch(self.version.clone(), self.backoff.next(rng)),
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

    fn missing() -> Problem {
        Problem::NotFound("no such kind".to_owned())
    }

    #[test]
    fn a_watch_goes_on_from_the_last_version_that_was_seen() {
        let (mut course, mut rng) = (Course::new(), rng());
        assert_eq!(course.listed("5".to_owned()), Step::Watch("5".to_owned(), Duration::ZERO));
        course.told("7");
        course.told("");
        assert_eq!(course.watch_ended(None, &mut rng), Step::Watch("7".to_owned(), Duration::ZERO));
        let Step::Watch(version, pause) = course.watch_ended(Some(&lost()), &mut rng) else { panic!() };
        assert_eq!(version, "7");
        assert!(pause > Duration::ZERO && pause <= FIRST_PAUSE);
    }

    #[test]
    fn a_version_that_is_too_old_is_listed_again_at_once_but_not_in_a_loop() {
        let (mut course, mut rng) = (Course::new(), rng());
        course.listed("5".to_owned());
        assert_eq!(course.watch_ended(Some(&expired()), &mut rng), Step::List(Duration::ZERO));
        course.listed("6".to_owned());
        let again = course.watch_ended(Some(&expired()), &mut rng);
        assert!(matches!(again, Step::List(pause) if pause > Duration::ZERO), "{again:?}");
        course.listed("7".to_owned());
        course.told("8");
        assert_eq!(course.watch_ended(Some(&expired()), &mut rng), Step::List(Duration::ZERO));
    }

    #[test]
    fn an_answer_that_refuses_makes_a_new_list_and_silence_does_not() {
        let denied = Problem::Denied("no".to_owned());
        let busy = Problem::Refused { code: 503, message: "starting".to_owned() };
        let late = Problem::TimedOut(Duration::from_secs(15));
        for (problem, lists) in [(denied, true), (busy, true), (late, false), (lost(), false)] {
            let (mut course, mut rng) = (Course::new(), rng());
            course.listed("5".to_owned());
            let step = course.watch_ended(Some(&problem), &mut rng);
            assert_eq!(matches!(step, Step::List(_)), lists, "{problem}: {step:?}");
        }
    }

    #[test]
    fn a_kind_that_never_was_is_missing_at_once_and_one_that_was_after_asking_again() {
        let (mut course, mut rng) = (Course::new(), rng());
        assert_eq!(course.list_failed(&missing(), &mut rng), Step::Stop);
        course.listed("5".to_owned());
        for _ in 1..ASKED_AGAIN {
            assert!(matches!(course.list_failed(&missing(), &mut rng), Step::List(_)));
        }
        assert!(matches!(course.list_failed(&lost(), &mut rng), Step::List(_)), "starts over");
        for _ in 1..ASKED_AGAIN {
            assert!(matches!(course.list_failed(&missing(), &mut rng), Step::List(_)));
        }
        assert_eq!(course.list_failed(&missing(), &mut rng), Step::Stop);
    }

    proptest! {
        /// Whatever fails, in whatever order: two steps without a pause only come with
        /// progress between them, and no pause is longer than the longest.
        #[test]
        fn no_order_of_failures_makes_a_tight_loop(events in proptest::collection::vec(0u8..6, 1..60)) {
            let (mut course, mut rng) = (Course::new(), rng());
            let (mut free, mut step) = (0, Step::List(Duration::ZERO));
            for event in events {
                let next = match (&step, event) {
                    (Step::Stop, _) => break,
                    (Step::List(_), 0..2) => course.listed("1".to_owned()),
                    (Step::List(_), 2..4) => course.list_failed(&lost(), &mut rng),
                    (Step::List(_), _) => course.list_failed(&missing(), &mut rng),
                    (Step::Watch(..), 0) => { course.told("2"); free = 0; course.watch_ended(None, &mut rng) }
                    (Step::Watch(..), 1) => course.watch_ended(None, &mut rng),
                    (Step::Watch(..), 2) => course.watch_ended(Some(&lost()), &mut rng),
                    (Step::Watch(..), 3) => course.watch_ended(Some(&missing()), &mut rng),
                    (Step::Watch(..), _) => course.watch_ended(Some(&expired()), &mut rng),
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
