//! Sliding windows of values.

use std::collections::VecDeque;
use std::time::Duration;

/// Values at points in time, for the last `keep`.
///
/// Either the samples themselves ([`samples`](Self::samples)), or the values in force, each of which lasts
/// until the next one ([`in_force`](Self::in_force)). A window of `w` excludes values exactly `w` old.
#[derive(Clone, Debug, Default)]
pub struct Window {
    values: VecDeque<(Duration, u32)>,
}

/// Most samples: half an hour, the longest window, at one tick per second.
const MOST: usize = 1801;

impl Window {
    /// Last value.
    pub fn last(&self) -> Option<u32> {
        self.values.back().map(|(_, value)| *value)
    }

    /// Replaces the last value.
    pub fn correct(&mut self, value: u32) {
        if let Some((_, last)) = self.values.back_mut() {
            *last = value;
        }
    }

    /// Adds a value, in force from now on. `keep` is the longest window.
    pub fn push(&mut self, now: Duration, value: u32, keep: Duration) {
        // The clock went back: later samples are dropped.
        while self.values.back().is_some_and(|(at, _)| *at > now) {
            self.values.pop_back();
        }
        self.values.push_back((now, value));
        // The sample before the window may still be in force.
        while self.values.len() > MOST
            || self.values.get(1).is_some_and(|(at, _)| now.saturating_sub(*at) >= keep)
        {
            self.values.pop_front();
        }
    }

    /// Samples of the last `window`.
    pub fn samples(&self, now: Duration, window: Duration) -> impl Iterator<Item = u32> {
        self.values.iter().filter(move |(at, _)| now.saturating_sub(*at) < window).map(|(_, value)| *value)
    }

    /// Values in force at some time in the last `window`.
    pub fn in_force(&self, now: Duration, window: Duration) -> impl Iterator<Item = u32> {
        let ends = self.values.iter().skip(1).map(|(at, _)| Some(*at)).chain([None]);
        self.values
            .iter()
            .zip(ends)
            .filter(move |(_, end)| end.is_none_or(|end| now.saturating_sub(end) < window))
            .map(|((_, value), _)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn a_window_ends_at_exactly_its_length() {
        let mut window = Window::default();
        for (at, value) in [(0, 4), (15, 8), (30, 6)] {
            window.push(S(at), value, S(60));
        }
        let samples = |now: u64| window.samples(S(now), S(60)).collect::<Vec<_>>();
        assert_eq!(samples(59), [4, 8, 6]);
        assert_eq!(samples(60), [8, 6]);
        assert_eq!(samples(90), [0; 0]);
        let in_force = |now: u64| window.in_force(S(now), S(60)).collect::<Vec<_>>();
        assert_eq!(in_force(74), [4, 8, 6]);
        assert_eq!(in_force(75), [8, 6], "4 held until 15");
        assert_eq!(in_force(1000), [6], "the last one holds on");
        assert_eq!(window.samples(S(30), S(0)).count(), 0);
    }

    /// kthena's tables (`sliding_window_test.go`), up to the point where theirs forget values in force.
    #[test]
    fn window_matches_kthenas_test_tables() {
        let window = |values: [u32; 4]| {
            let mut window = Window::default();
            for (at, value) in [1, 3, 5, 7].into_iter().zip(values) {
                window.push(S(at), value, S(10));
            }
            window
        };
        let (high, low) = (window([6, 3, 5, 2]), window([6, 3, 5, 7]));
        for (now, largest, smallest) in [
            (7, Some(6), Some(3)),
            (12, Some(5), Some(3)),
            (14, Some(5), Some(5)),
            (16, Some(2), Some(7)),
            (18, None, None),
        ] {
            assert_eq!(high.samples(S(now), S(10)).max(), largest, "{now}");
            assert_eq!(low.samples(S(now), S(10)).min(), smallest, "{now}");
        }
        let low = window([6, 3, 9, 4]);
        for (now, largest, smallest) in
            [(7, 6, 3), (12, 6, 3), (14, 5, 3), (16, 5, 4), (18, 2, 4), (26, 2, 4)]
        {
            assert_eq!(high.in_force(S(now), S(10)).max(), Some(largest), "{now}");
            assert_eq!(low.in_force(S(now), S(10)).min(), Some(smallest), "{now}");
        }
    }

    #[test]
    fn expired_samples_are_dropped() {
        let mut window = Window::default();
        for at in 0..10_000 {
            window.push(S(at), at as u32, S(60));
        }
        assert_eq!(window.in_force(S(9999), S(60)).count(), 61);
        assert!(window.values.len() <= 62, "{}", window.values.len());
        window.push(S(5), 1, S(60));
        assert_eq!(window.values, [(S(5), 1)], "a clock that went back");
        let mut long = Window::default();
        (0..5000).for_each(|at| long.push(Duration::from_millis(at), 1, S(1800)));
        assert_eq!(long.values.len(), MOST);
    }
}
