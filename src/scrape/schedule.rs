//! Schedule of the next scrape of an endpoint.

use std::time::Duration;

use tokio::time::Instant;

/// The share of the interval between consecutive groups, the golden ratio: any
/// number of them then spreads evenly, whichever endpoints come and go
/// (a Kronecker sequence; Knuth, The Art of Computer Programming 3, §6.4).
const STEP: f64 = 0.618_033_988_749_894_9;

/// Endpoints with consecutive slots that are scraped together. Waking the thread costs
/// several times what reading a page costs once it is awake; for a group this is some
/// hundred microseconds of a thread that answers no requests.
const GROUP: u32 = 8;

/// Phases are multiples of this, so that groups share wake-ups, too, once there are
/// many: a finer spread would make nobody's data fresher.
const GRAIN: Duration = Duration::from_millis(5);

/// The ticks of one endpoint: every interval, at a phase of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    /// The first tick that could have been.
    first: Instant,
    interval: Duration,
}

/// Time from the origin to the first tick of the endpoint with this slot; below the
/// interval.
pub(crate) fn phase(interval: Duration, slot: u32) -> Duration {
    let phase = interval.mul_f64((f64::from(slot / GROUP) * STEP).fract());
    GRAIN * u32::try_from(phase.as_millis() / GRAIN.as_millis()).unwrap_or(u32::MAX)
}

impl Schedule {
    /// The ticks of the endpoint with this slot. All endpoints of a source
    /// share origin and interval.
    pub(super) fn new(origin: Instant, interval: Duration, slot: u32) -> Self {
        Self { first: origin + phase(interval, slot), interval }
    }

    /// The first tick after `now`. Ticks that were missed are skipped.
    pub(super) fn after(&self, now: Instant) -> Instant {
        let Some(since) = now.checked_duration_since(self.first) else { return self.first };
        let past = since.as_nanos() % self.interval.as_nanos().max(1);
        let left = self.interval.as_nanos().max(1) - past;
        now + Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX))
    }
}

/// Pause of an endpoint after `failures` failed scrapes in a row, at least 1: the interval,
/// doubled with each failure up to `longest` (or the interval if that is longer). `jitter`
/// in 0..=1 takes off up to a quarter, so that endpoints that failed together don't return
/// together.
pub(super) fn backoff(interval: Duration, longest: Duration, failures: u32, jitter: f64) -> Duration {
    let doubled = interval.saturating_mul(1 << failures.clamp(1, 16));
    doubled.min(longest.max(interval)).mul_f64(1.0 - 0.25 * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn ticks_keep_their_phase_and_skip_missed_ones() {
        let origin = Instant::now();
        let schedule = Schedule::new(origin, 50 * MS, GROUP);
        let first = schedule.after(origin);
        let phase = first - origin;
        assert_eq!(phase, 30 * MS, "0.618 of the interval");
        assert_eq!(schedule.after(first), first + 50 * MS, "a tick is not its own next");
        assert_eq!(schedule.after(first + 49 * MS), first + 50 * MS);
        assert_eq!(schedule.after(first + 1234 * MS), first + 1250 * MS);
        assert_eq!(
            Schedule::new(origin, 50 * MS, 2 * GROUP - 1).after(origin),
            first,
            "one phase for a group"
        );
    }

    /// Time from the origin to the tick of each of the first slots.
    fn phases(interval: Duration, count: u32) -> Vec<Duration> {
        let origin = Instant::now();
        let mut phases: Vec<_> =
            (0..count).map(|slot| Schedule::new(origin, interval, slot).first - origin).collect();
        phases.sort_unstable();
        phases
    }

    #[test]
    fn phases_of_any_number_of_groups_fill_the_interval() {
        for count in [2_u32, 10, 100] {
            let mut phases = phases(1000 * MS, count * GROUP);
            phases.dedup();
            assert_eq!(phases.len(), count as usize);
            let widest = phases.windows(2).map(|w| w[1] - w[0]).max().unwrap();
            // Even spacing is a part of 1/count; the sequence's gaps stay within three of it.
            assert!((widest - GRAIN) * count < 3000 * MS, "{count}: {widest:?}");
        }
    }

    #[test]
    fn a_short_interval_has_a_few_places_with_equal_shares() {
        let phases = phases(50 * MS, 1000);
        for place in 0..10 {
            let share = phases.iter().filter(|phase| **phase == place * GRAIN).count();
            assert!((80..=120).contains(&share), "{place}: {share}");
        }
    }

    #[test]
    fn scrape_backoff_of_a_failing_endpoint_is_bounded() {
        let wait = |failures, jitter| backoff(50 * MS, 1000 * MS, failures, jitter);
        let waits: Vec<_> = [1, 2, 3, 4, 5, 6, u32::MAX].map(|n| wait(n, 0.0).as_millis()).to_vec();
        assert_eq!(waits, [100, 200, 400, 800, 1000, 1000, 1000]);
        assert_eq!(wait(1, 1.0), 75 * MS);
        assert_eq!(backoff(5000 * MS, 1000 * MS, 3, 0.0), 5000 * MS, "a slow source doesn't hurry");
    }
}
