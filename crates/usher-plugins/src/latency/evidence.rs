//! Evidence behind an estimate: the weight of its observations, of which older ones count less.
//!
//! Estimators forget by observations: without any, an estimate stays as it was. Of those of several replicas that one counts
//! which was observed more lately, as an endpoint may have become another while a replica sent it nothing.
//! Times are of this process's clock, negative before it began, and read from records as ages: the clocks of two machines are
//! never compared.

use std::ops::Deref;

use usher_plugin::{Import, MalformedRecord};

use crate::record::{RecordReader, RecordWriter};

/// Time in milliseconds in which the weight of an observation halves.
const HALF_LIFE_MS: f64 = 15.0 * 60e3;

/// Largest weight: estimators remember about as many observations.
const ENOUGH: f64 = 50.0;

/// Least ratio of weights at which an estimate takes the place of another: five minutes newer where both had enough. Replicas
/// of a pool have observed nearly the same, and would exchange their estimates for ever.
const BETTER: f64 = 1.25;

/// Observations behind an estimate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Evidence {
    /// Observations, as they counted at the last one.
    weight: f64,
    /// Time of the last one.
    at_ms: i64,
}

impl Evidence {
    /// Adds an observation.
    pub(super) fn observe(&mut self, now_ms: u64) {
        self.count(now_ms);
        *self = self.capped();
    }

    /// Adds an observation to those of which none are enough.
    pub(super) fn count(&mut self, now_ms: u64) {
        self.weight = self.weight_at(now_ms) + 1.0;
        self.at_ms = self.at_ms.max(signed(now_ms));
    }

    fn capped(self) -> Self {
        Self { weight: self.weight.min(ENOUGH), ..self }
    }

    /// Its weight as a power of two, rounded down.
    pub(super) fn magnitude(self, now_ms: u64) -> i32 {
        // Casts from floats saturate.
        self.weight_at(now_ms).log2().floor() as i32
    }

    /// Time of the last observation; `None`: there was none.
    pub(super) fn at_ms(self) -> Option<i64> {
        (self.weight > 0.0).then_some(self.at_ms)
    }

    /// Returns `true` if it is to take the place of ours.
    pub(super) fn is_better(self, ours: Self, now_ms: u64) -> bool {
        self.weight_at(now_ms) > BETTER * ours.weight_at(now_ms)
    }

    /// Its weight now.
    fn weight_at(self, now_ms: u64) -> f64 {
        let age_ms = signed(now_ms).saturating_sub(self.at_ms);
        if age_ms <= 0 || self.weight == 0.0 {
            return self.weight;
        }
        // However old, it is better than none.
        (self.weight * (-(age_ms as f64) / HALF_LIFE_MS).exp2()).max(f64::MIN_POSITIVE)
    }

    pub(super) fn write(self, out: &mut RecordWriter) {
        out.f64(self.weight);
        out.i64(self.at_ms);
    }

    pub(super) fn read(record: &mut RecordReader<'_>, cx: &Import<'_>) -> Result<Self, MalformedRecord> {
        Ok(Self { weight: record.f64(0.0..=1e18)?, at_ms: cx.past(record.i64()?) })
    }
}

fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

/// An estimate, and the evidence behind it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known<T> {
    pub(super) estimate: T,
    pub(super) evidence: Evidence,
}

impl<T> Known<T> {
    /// An estimate without evidence.
    pub(super) fn new(estimate: T) -> Self {
        Self { estimate, evidence: Evidence::default() }
    }

    /// The estimate, to which an observation of now is to be added.
    pub(super) fn observed(&mut self, now_ms: u64) -> &mut T {
        self.evidence.observe(now_ms);
        &mut self.estimate
    }

    /// Takes the place of ours if its evidence is better. Returns whether it does.
    pub(super) fn replace(self, ours: &mut Self, now_ms: u64) -> bool {
        let is_better = self.evidence.is_better(ours.evidence, now_ms);
        if is_better {
            *ours = self;
        }
        is_better
    }

    /// Writes the evidence, then the estimate.
    pub(super) fn write(&self, out: &mut RecordWriter, estimate: impl FnOnce(&T, &mut RecordWriter)) {
        self.evidence.write(out);
        estimate(&self.estimate, out);
    }

    /// Reads them.
    pub(super) fn read<'a>(
        record: &mut RecordReader<'a>,
        cx: &Import<'_>,
        estimate: impl FnOnce(&mut RecordReader<'a>) -> Result<T, MalformedRecord>,
    ) -> Result<Self, MalformedRecord> {
        Ok(Self { evidence: Evidence::read(record, cx)?.capped(), estimate: estimate(record)? })
    }
}

impl<T> Deref for Known<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.estimate
    }
}

#[cfg(test)]
mod tests {
    use usher_core::endpoints::Snapshot;

    use super::*;

    const MINUTE: u64 = 60_000;

    fn observed(times: impl IntoIterator<Item = u64>) -> Evidence {
        let mut evidence = Evidence::default();
        times.into_iter().for_each(|ms| evidence.observe(ms));
        evidence
    }

    #[test]
    fn more_observations_are_better_until_there_are_enough() {
        let of = |samples: u64| observed((0..samples).map(|_| 0));
        assert!(of(1).is_better(Evidence::default(), 0) && of(3).is_better(of(2), 0));
        for (theirs, ours) in [(0, 0), (2, 3), (3, 3), (50, 41), (1000, 50)] {
            assert!(!of(theirs).is_better(of(ours), 0), "{theirs} {ours}");
        }
    }

    #[test]
    fn newer_observations_are_better() {
        let (hours_ago, now) = (observed(0..1000), 180 * MINUTE);
        assert!(observed([now]).is_better(hours_ago, now), "a single one");
        assert!(!hours_ago.is_better(observed([now]), now));
        // One response doesn't make those before it new.
        let mut woken = hours_ago;
        woken.observe(now);
        assert!(observed(now - 20..now).is_better(woken, now));
        let (older, newer) = (observed(0..100), observed(4 * MINUTE..4 * MINUTE + 100));
        assert!(!newer.is_better(older, 5 * MINUTE), "about as new");
        let never = Evidence::default();
        assert!(hours_ago.is_better(never, u64::MAX) && !never.is_better(hours_ago, u64::MAX));
    }

    #[test]
    fn evidence_of_another_process_keeps_its_age() {
        let snapshot = Snapshot::new(1, Vec::new());
        let theirs = observed(90 * MINUTE..90 * MINUTE + 60);
        let mut out = RecordWriter::default();
        theirs.write(&mut out);
        let read = |now_ms, written_ms| {
            let cx = Import::new(&snapshot, now_ms, written_ms, 0);
            Evidence::read(&mut RecordReader(&out.0), &cx).unwrap()
        };
        // The reader has just started.
        let an_hour_ago = read(1, 150 * MINUTE);
        assert!(an_hour_ago.at_ms < 0 && an_hour_ago.weight_at(1) < 50.0 / 15.0);
        assert!(read(1, 91 * MINUTE).is_better(an_hour_ago, 1));
        // It isn't of the future, whatever it says.
        assert!(!read(1, 10 * MINUTE).is_better(observed([1; 50]), 1));
        assert!(read(1, 10 * MINUTE).weight_at(2 + 15 * MINUTE) < 26.0);
    }

    #[test]
    fn exchanged_estimates_settle() {
        let (mut ours, mut theirs) = (Known::new(1), Known::new(2));
        for ms in 0..100 {
            ours.observed(ms);
            theirs.observed(7 * ms);
        }
        let taken = (0..100).filter(|turn| {
            let now_ms = 10_000 * turn;
            [theirs.replace(&mut ours, now_ms), ours.replace(&mut theirs, now_ms)].contains(&true)
        });
        assert_eq!(taken.count(), 0);
    }
}
