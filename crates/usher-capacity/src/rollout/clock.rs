//! Clock of a step without progress.

use std::time::Duration;

/// Clock of a step. It restarts whenever more pods are up than ever in this step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    /// Pods of the step, by role; empty between steps.
    target: Vec<u32>,
    /// Most pods that were up.
    best: Vec<u32>,
    /// Time of that.
    since: Duration,
    /// Time since then in which nodes were being added.
    excused: Duration,
    /// Total of that time in the whole step.
    excused_in_all: Duration,
    seen: Duration,
}

impl Clock {
    /// Time without progress of a step. Time in which the cluster adds nodes is excluded, up to
    /// `most_excused` per step.
    pub(crate) fn observe(
        &mut self,
        target: &[u32],
        up: &[u32],
        is_provisioning: bool,
        most_excused: Duration,
        now: Duration,
    ) -> Duration {
        let is_new = self.target.len() != target.len() || target.iter().zip(&self.target).any(|(t, s)| t > s);
        if is_new {
            *self =
                Self { target: target.to_vec(), best: up.to_vec(), since: now, seen: now, ..Self::default() };
            return Duration::ZERO;
        }
        let passed = now.saturating_sub(self.seen);
        self.seen = now;
        if is_provisioning {
            let excused = passed.min(most_excused.saturating_sub(self.excused_in_all));
            self.excused += excused;
            self.excused_in_all += excused;
        }
        let mut has_grown = false;
        for (best, up) in self.best.iter_mut().zip(up) {
            has_grown |= up > best;
            *best = (*best).max(*up);
        }
        if has_grown {
            (self.since, self.excused) = (now, Duration::ZERO);
        }
        now.saturating_sub(self.since).saturating_sub(self.excused)
    }

    /// Ends the step.
    pub(crate) fn clear(&mut self) {
        self.target.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn only_a_new_maximum_resets_the_clock() {
        let mut clock = Clock::default();
        let mut look = |up: u32, at: u64| clock.observe(&[4], &[up], false, s(0), s(at)).as_secs();
        assert_eq!([look(1, 100), look(1, 160), look(2, 170), look(1, 200)], [0, 60, 0, 30]);
        // A pod that crashes again and again is no growth.
        assert_eq!([look(2, 210), look(1, 220), look(2, 230), look(3, 240)], [40, 50, 60, 0]);
        // The next step begins; a smaller one is the same.
        assert_eq!(clock.observe(&[8], &[4], false, s(0), s(300)), s(0));
        assert_eq!(clock.observe(&[7], &[4], false, s(0), s(310)), s(10));
        assert_eq!(clock.observe(&[8], &[4], false, s(0), s(320)), s(20));
        clock.clear();
        assert_eq!(clock.observe(&[8], &[4], false, s(0), s(330)), s(0));
    }

    #[test]
    fn clock_stops_while_nodes_are_added_with_a_limit() {
        let mut clock = Clock::default();
        let mut look =
            |up: u32, adds: bool, at: u64| clock.observe(&[4], &[up], adds, s(100), s(at)).as_secs();
        assert_eq!([look(0, true, 0), look(0, true, 60), look(0, false, 90)], [0, 0, 30]);
        // 40 s are left, also after growth.
        assert_eq!([look(1, false, 100), look(1, true, 130), look(1, true, 160)], [0, 0, 20]);
    }
}
