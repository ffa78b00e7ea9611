//! Limits on changes of a group's size: stabilization windows, limits per period and panic, as in kthena's
//! AutoscalingPolicy.

use std::time::Duration;

use super::plan::Reason;
use super::window::Window;

/// Limit on changes in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Pods per period.
    pub instances: u32,
    /// Percent of the size per period, rounded down to pods.
    pub percent: u32,
    /// The period.
    pub period: Duration,
    /// `true` if the smaller of the two limits applies, rather than the larger.
    pub takes_smaller: bool,
    /// Stabilization window.
    pub stabilization: Duration,
}

/// Detection of a group that is far too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panic {
    /// Threshold in percent of the current size.
    pub threshold_percent: u32,
    /// Allowed growth per period during panic, in percent.
    pub percent: u32,
    /// The period.
    pub period: Duration,
    /// Duration of panic after it was last needed; 0 disables panic.
    pub hold: Duration,
}

/// Limits on changes of a group's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behavior {
    /// Scale-up.
    pub up: Pace,
    /// Scale-down.
    pub down: Pace,
    /// Panic scale-up.
    pub panic: Panic,
    /// Drain timeout of pods to be removed.
    pub drain: Duration,
}

/// Defaults of omitted fields: those of kthena's webhook.
impl Default for Behavior {
    fn default() -> Self {
        let pace = |instances, stabilization| Pace {
            instances,
            percent: 100,
            period: Duration::from_secs(60),
            takes_smaller: false,
            stabilization: Duration::from_secs(stabilization),
        };
        let panic =
            Panic { threshold_percent: 200, percent: 0, period: Duration::ZERO, hold: Duration::ZERO };
        Self { up: pace(4, 0), down: pace(0, 300), panic, drain: Duration::from_secs(300) }
    }
}

/// Past sizes of a group, as far as they matter.
#[derive(Clone, Debug, Default)]
pub struct PastSizes {
    recommended: Window,
    totals: Window,
    panicked: Option<Duration>,
}

impl PastSizes {
    /// Past of a group known only now: `total` pods count as the recommendation, so that no window is
    /// shortened. The Kubernetes HPA does the same.
    pub fn resumed(total: u32, now: Duration) -> Self {
        let mut past = Self::default();
        past.recommended.push(now, total, Duration::ZERO);
        past
    }

    /// Corrects the last allowed size, if bounds changed it to `total`.
    pub fn correct(&mut self, total: u32) {
        self.totals.correct(total);
    }
}

/// Allowed size of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitedSize {
    /// Size in pods.
    pub total: u32,
    /// Reasons for a difference from the recommended size, in the order of application.
    pub reasons: Vec<Reason>,
    /// `true` during panic.
    pub panics: bool,
}

impl Behavior {
    /// Longest window of a behavior.
    fn memory(&self) -> Duration {
        [self.up.period, self.up.stabilization, self.down.period, self.down.stabilization, self.panic.period]
            .into_iter()
            .max()
            .unwrap_or_default()
    }

    /// Allowed size of a group of `current` pods when `recommended` are asked for.
    pub fn limit(&self, past: &mut PastSizes, current: u32, recommended: u32, now: Duration) -> LimitedSize {
        let keep = self.memory();
        past.recommended.push(now, recommended, keep);
        // The current size was in force until now, whoever set it.
        if past.totals.last() != Some(current) {
            past.totals.push(now, current, keep);
        }
        let panics = self.panics(past, current, recommended, now);
        let (total, reasons) = if panics {
            self.panicked(past, current, recommended, now)
        } else if recommended > current {
            self.grown(past, current, recommended, now)
        } else {
            self.shrunk(past, current, recommended, now)
        };
        past.totals.push(now, total, keep);
        LimitedSize { total, reasons, panics }
    }

    /// Records the current size as the recommendation while metrics are unknown, so that windows begin
    /// afterwards.
    pub fn record_current(&self, past: &mut PastSizes, current: u32, now: Duration) {
        past.recommended.push(now, current, self.memory());
    }

    fn panics(&self, past: &mut PastSizes, current: u32, recommended: u32, now: Duration) -> bool {
        let Panic { threshold_percent, hold, .. } = self.panic;
        // An empty group starts, and doesn't panic.
        let is_far =
            current > 0 && u64::from(recommended) * 100 >= u64::from(current) * u64::from(threshold_percent);
        if is_far && !hold.is_zero() {
            past.panicked = Some(now);
        }
        self.still_panics(past, now)
    }

    /// Returns `true` if a panic continues, whatever is recommended now.
    pub fn still_panics(&self, past: &PastSizes, now: Duration) -> bool {
        past.panicked.is_some_and(|at| now.saturating_sub(at) < self.panic.hold)
    }

    fn panicked(
        &self,
        past: &PastSizes,
        current: u32,
        recommended: u32,
        now: Duration,
    ) -> (u32, Vec<Reason>) {
        let start = past.totals.in_force(now, self.panic.period).fold(current, u32::min);
        let most = start.saturating_add(part(start, self.panic.percent)).max(current);
        if recommended > most {
            (most, vec![Reason::PanicLimit])
        } else if recommended < current {
            (current, vec![Reason::Panic])
        } else {
            (recommended, Vec::new())
        }
    }

    fn grown(&self, past: &PastSizes, current: u32, recommended: u32, now: Duration) -> (u32, Vec<Reason>) {
        let Pace { instances, percent, period, takes_smaller, stabilization } = self.up;
        let asked = past.recommended.samples(now, stabilization).fold(recommended, u32::min).max(current);
        let start = past.totals.in_force(now, period).fold(current, u32::min);
        let by = choose(instances, part(start, percent), takes_smaller);
        let most = start.saturating_add(by).max(current);
        let mut reasons = Vec::new();
        if asked < recommended {
            reasons.push(Reason::UpWindow);
        }
        if asked > most {
            reasons.push(Reason::UpLimit);
        }
        (asked.min(most), reasons)
    }

    fn shrunk(&self, past: &PastSizes, current: u32, recommended: u32, now: Duration) -> (u32, Vec<Reason>) {
        let Pace { instances, percent, period, takes_smaller, stabilization } = self.down;
        let asked = past.recommended.samples(now, stabilization).fold(recommended, u32::max).min(current);
        let start = past.totals.in_force(now, period).fold(current, u32::max);
        let by = choose(instances, part(start, percent), takes_smaller);
        let least = start.saturating_sub(by).min(current);
        let mut reasons = Vec::new();
        if asked > recommended {
            reasons.push(Reason::DownWindow);
        }
        if asked < least {
            reasons.push(Reason::DownLimit);
        }
        (asked.max(least), reasons)
    }
}

/// Percentage of a size, rounded down to pods.
fn part(size: u32, percent: u32) -> u32 {
    u32::try_from(u64::from(size) * u64::from(percent) / 100).unwrap_or(u32::MAX)
}

fn choose(instances: u32, part: u32, takes_smaller: bool) -> u32 {
    if takes_smaller { instances.min(part) } else { instances.max(part) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    fn pace(instances: u32, percent: u32, takes_smaller: bool) -> Pace {
        Pace { instances, percent, period: S(60), takes_smaller, stabilization: S(0) }
    }

    fn only(up: Pace, down: Pace) -> Behavior {
        Behavior { up, down, ..Behavior::default() }
    }

    #[test]
    fn limits_by_pods_and_by_percent() {
        let table = [
            // size, asked for, pods, percent, smaller, what comes out
            (10, 40, 4, 100, false, 20),
            (10, 40, 4, 100, true, 14),
            (3, 40, 4, 100, false, 7),
            (3, 40, 4, 50, true, 4),
            (10, 12, 4, 100, false, 12),
            (10, 40, 0, 0, false, 10),
            (10, 2, 1, 100, false, 2),
            (10, 2, 1, 100, true, 9),
            (10, 2, 4, 25, false, 6),
            (10, 2, 1, 25, false, 8),
            (5, 1, 9, 10, true, 5),
            (0, 9, 4, 100, false, 4),
        ];
        for (size, asked, instances, percent, smaller, expected) in table {
            let pace = pace(instances, percent, smaller);
            let limited = only(pace, pace).limit(&mut PastSizes::default(), size, asked, S(0));
            assert_eq!(limited.total, expected, "{size} {asked} {instances} {percent} {smaller}");
            assert_eq!(limited.reasons.is_empty(), expected == asked);
        }
    }

    /// kthena's table (`revision_test.go`), except for selections that it doesn't know, bounds, which are
    /// elsewhere, and panic at zero pods, which doesn't exist.
    #[test]
    fn matches_kthenas_test_table() {
        let table = [
            // growing, shrinking, size, asked for, asked for before, size before, what comes out
            (pace(2, 100, false), pace(2, 20, false), 7, 7, None, None, 7),
            (pace(2, 100, false), pace(1, 40, false), 10, 5, None, None, 6),
            (pace(2, 100, false), pace(1, 40, true), 10, 5, None, None, 9),
            (pace(2, 100, false), pace(2, 20, false), 10, 5, Some(9), None, 9),
            (pace(2, 100, false), pace(3, 25, false), 10, 3, None, Some(12), 9),
            (pace(3, 100, false), pace(2, 20, false), 5, 20, None, None, 10),
            (pace(3, 100, true), pace(2, 20, false), 5, 20, None, None, 8),
            (pace(3, 100, false), pace(2, 20, false), 5, 20, Some(12), None, 10),
            (pace(2, 50, false), pace(2, 20, false), 10, 50, None, Some(6), 10),
            (Behavior::default().up, Behavior::default().down, 10, 5, None, None, 5),
        ];
        let past = |asked: Option<u32>, size: Option<u32>| {
            let mut past = PastSizes::default();
            asked.into_iter().for_each(|asked| past.recommended.push(S(0), asked, S(300)));
            size.into_iter().for_each(|size| past.totals.push(S(0), size, S(300)));
            past
        };
        for (up, down, size, asked, before, was, expected) in table {
            let mut behavior = only(up, down);
            (behavior.up.stabilization, behavior.down.stabilization) = (S(300), S(300));
            let limited = behavior.limit(&mut past(before, was), size, asked, S(15));
            assert_eq!(limited.total, expected, "{up:?} {down:?} {size} {asked} {before:?} {was:?}");
        }
        for (percent, size, asked, was, expected) in [
            (1000, 5, 15, None, 15),
            (100, 5, 15, None, 10),
            (100, 10, 30, Some(6), 12),
            (1000, 10, 3, None, 10),
        ] {
            let panic = Panic { threshold_percent: 200, percent, period: S(60), hold: S(60) };
            let behavior = Behavior { panic, ..only(pace(2, 100, false), pace(2, 20, false)) };
            let mut past = PastSizes { panicked: Some(S(0)), ..past(None, was) };
            let limited = behavior.limit(&mut past, size, asked, S(15));
            assert_eq!((limited.total, limited.panics), (expected, true), "{percent} {size} {asked} {was:?}");
        }
    }

    #[test]
    fn limits_hold_for_a_period() {
        let behavior = only(pace(4, 0, false), pace(2, 0, false));
        let mut past = PastSizes::default();
        let mut totals = Vec::new();
        let mut size = 4;
        for tick in 0..10 {
            size = behavior.limit(&mut past, size, 20, S(tick * 15)).total;
            totals.push(size);
        }
        // Four at a time, 60 s after the smaller size was last in force.
        assert_eq!(totals, [8, 8, 8, 8, 12, 12, 12, 12, 16, 16]);
        let mut totals = Vec::new();
        for tick in 10..20 {
            size = behavior.limit(&mut past, size, 1, S(tick * 15)).total;
            totals.push(size);
        }
        assert_eq!(totals, [14, 14, 14, 14, 12, 12, 12, 12, 10, 10]);
    }

    #[test]
    fn stabilization_windows_keep_past_recommendations() {
        let mut behavior = only(pace(100, 0, false), pace(100, 0, false));
        behavior.down.stabilization = S(60);
        behavior.up.stabilization = S(30);
        let mut past = PastSizes::default();
        let mut size = 10;
        let mut totals = Vec::new();
        for (tick, asked) in [10, 4, 6, 4, 4, 4, 4, 8, 8, 8].into_iter().enumerate() {
            size = behavior.limit(&mut past, size, asked, S(tick as u64 * 15)).total;
            totals.push(size);
        }
        assert_eq!(totals, [10, 10, 10, 10, 6, 6, 4, 4, 8, 8]);
    }

    #[test]
    fn resumed_history_keeps_the_size_for_a_window() {
        let mut behavior = Behavior::default();
        behavior.up.stabilization = S(30);
        let mut past = PastSizes::resumed(10, S(1000));
        for (at, asked, total) in [(1000, 4, 10), (1150, 6, 10), (1299, 4, 10), (1300, 4, 6), (1450, 4, 4)] {
            let limited = behavior.limit(&mut past, if at > 1300 { 6 } else { 10 }, asked, S(at));
            assert_eq!(limited.total, total, "{at}");
        }
        // The same for growing, where that has a window.
        let mut past = PastSizes::resumed(10, S(0));
        for (at, total) in [(0, 10), (29, 10), (30, 14)] {
            assert_eq!(behavior.limit(&mut past, 10, 14, S(at)).total, total, "{at}");
        }
        // Nothing is known of a group that begins.
        assert_eq!(behavior.limit(&mut PastSizes::default(), 10, 4, S(0)).total, 4);
    }

    #[test]
    fn panic_scales_up_faster_and_holds_scale_down() {
        let panic = Panic { threshold_percent: 200, percent: 900, period: S(60), hold: S(60) };
        let behavior = Behavior { panic, ..only(pace(1, 0, false), pace(100, 100, false)) };
        let mut past = PastSizes::default();
        let limited = behavior.limit(&mut past, 2, 30, S(0));
        assert_eq!((limited.total, limited.panics), (20, true));
        assert_eq!(limited.reasons, [Reason::PanicLimit]);
        let limited = behavior.limit(&mut past, 20, 3, S(15));
        assert_eq!((limited.total, limited.panics, limited.reasons), (20, true, vec![Reason::Panic]));
        assert!(behavior.limit(&mut past, 20, 3, S(59)).panics);
        assert!(!behavior.limit(&mut past, 20, 3, S(60)).panics, "60 s after it was needed");
        // From nothing there is nothing to panic about.
        assert!(!behavior.limit(&mut PastSizes::default(), 0, 30, S(0)).panics);
        let never = Behavior { panic: Panic { hold: S(0), ..panic }, ..behavior };
        assert!(!never.limit(&mut PastSizes::default(), 2, 30, S(0)).panics);
    }

    #[test]
    fn defaults_equal_an_absent_block() {
        let behavior = Behavior::default();
        let mut past = PastSizes::default();
        assert_eq!(behavior.limit(&mut past, 10, 100, S(0)).total, 20);
        assert_eq!(behavior.limit(&mut PastSizes::default(), 1, 100, S(0)).total, 5);
        let mut past = PastSizes::default();
        behavior.limit(&mut past, 10, 10, S(0));
        assert_eq!(behavior.limit(&mut past, 10, 1, S(15)).reasons, [Reason::DownWindow]);
        assert_eq!(behavior.limit(&mut past, 10, 1, S(300)).total, 1);
    }
}
