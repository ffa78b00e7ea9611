//! Estimates of one endpoint alone: how its times differ from its group's, its batch slots, and how long requests hold them.

use std::cmp::Ordering;

use usher_plugin::{Import, MalformedRecord};

use super::batch_slots::BatchSlots;
use super::evidence::Known;
use super::factor::Factor;
use crate::record::{RecordReader, RecordWriter};

/// Weight of the previous mean in the exponential moving average of the time for which requests hold a slot.
const KEEP_HOLD: f64 = 0.95;
/// Longest time that the average takes in, as a multiple of the mean: a client may read nothing for an hour.
const CLIP_HOLD: f64 = 4.0;

/// Distance of times at which two replicas have seen the same restart at most, in milliseconds: one may scrape late.
const SAME_RESTART_MS: u64 = 30_000;

/// Estimates of one endpoint.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnTimes {
    /// When a replica last saw that the engine is another process than before, from which on it is observed; on this
    /// process's clock, negative before that began.
    restarted_ms: Option<i64>,
    /// Times that a first token, and a step, takes as long as at the others of its group.
    pub(super) first: Known<Factor>,
    pub(super) step: Known<Factor>,
    pub(super) slots: BatchSlots,
    /// Mean seconds for which a request holds a slot; 0: not known.
    pub(super) hold: Known<f64>,
}

impl OwnTimes {
    /// Nothing yet of an engine that was seen to be another process now.
    pub(super) fn restarted(now_ms: u64) -> Self {
        Self { restarted_ms: i64::try_from(now_ms).ok(), ..Self::default() }
    }

    /// Compares the processes of the engine: [`Less`](Ordering::Less) if these estimates are of an earlier one. A process that is
    /// seen without a start time has no name but this.
    pub(super) fn compare_process(&self, other: &Self) -> Ordering {
        let restarts = self.restarted_ms.zip(other.restarted_ms);
        match restarts.is_some_and(|(one, other)| one.abs_diff(other) <= SAME_RESTART_MS) {
            true => Ordering::Equal,
            false => self.restarted_ms.cmp(&other.restarted_ms),
        }
    }

    /// Nothing yet of the same process.
    pub(super) fn emptied(&self) -> Self {
        Self { restarted_ms: self.restarted_ms, ..Self::default() }
    }

    /// Takes the time at which another replica saw the same process first, if that is earlier.
    pub(super) fn restarted_by(&mut self, theirs: &Self) {
        self.restarted_ms = [self.restarted_ms, theirs.restarted_ms].into_iter().flatten().min();
    }

    /// A request held a slot for so many seconds.
    pub(super) fn held(&mut self, seconds: f64, now_ms: u64) {
        let mean = self.hold.observed(now_ms);
        let clipped = seconds.min(*mean * CLIP_HOLD);
        *mean = if *mean > 0.0 { *mean * KEEP_HOLD + clipped * (1.0 - KEEP_HOLD) } else { seconds };
    }

    pub(super) fn write(&self, out: &mut RecordWriter) {
        out.u8(self.restarted_ms.is_some().into());
        out.i64(self.restarted_ms.unwrap_or_default());
        self.first.write(out, Factor::write);
        self.step.write(out, Factor::write);
        self.slots.write(out);
        self.hold.write(out, |hold, out| out.f64(*hold));
    }

    /// Reads estimates of another process.
    pub(super) fn read(record: &mut RecordReader<'_>, cx: &Import<'_>) -> Result<Self, MalformedRecord> {
        let restarted_ms = match (record.u8()?, record.i64()?) {
            (0, _) => None,
            (1, ms) => Some(cx.past(ms)),
            _ => return Err(MalformedRecord),
        };
        Ok(Self {
            restarted_ms,
            first: Known::read(record, cx, Factor::read)?,
            step: Known::read(record, cx, Factor::read)?,
            slots: BatchSlots::read(record)?,
            hold: Known::read(record, cx, |record| record.f64(0.0..=1e6))?,
        })
    }

    /// Takes over what another replica knows better of the same process of the engine. Returns `true` if that is something.
    pub(super) fn merge(&mut self, theirs: &Self, now_ms: u64) -> bool {
        let is_better = [
            theirs.first.replace(&mut self.first, now_ms),
            theirs.step.replace(&mut self.step, now_ms),
            theirs.slots.replace(&mut self.slots),
            theirs.hold.replace(&mut self.hold, now_ms),
        ];
        is_better.contains(&true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_process_was_there_when_it_was_seen_first() {
        for (ours, theirs, first) in [
            (Some(9), Some(5), Some(5)),
            (Some(5), Some(9), Some(5)),
            (None, Some(5), Some(5)),
            (None, None, None),
        ] {
            let of = |restarted_ms| OwnTimes { restarted_ms, ..OwnTimes::default() };
            let mut own = of(ours);
            own.restarted_by(&of(theirs));
            assert_eq!(own.restarted_ms, first);
        }
    }

    #[test]
    fn processes_are_told_apart_by_when_they_were_seen_first() {
        let of = |restarted_ms| OwnTimes { restarted_ms, ..OwnTimes::default() };
        let compare = |one, other| of(one).compare_process(&of(other));
        let second = 1000;
        for (one, other) in [(None, None), (Some(0), Some(30 * second)), (Some(-second), Some(second))] {
            assert_eq!((compare(one, other), compare(other, one)), (Ordering::Equal, Ordering::Equal));
        }
        for (earlier, later) in
            [(None, Some(i64::MIN)), (Some(0), Some(31 * second)), (Some(i64::MIN), Some(i64::MAX))]
        {
            assert_eq!(
                (compare(earlier, later), compare(later, earlier)),
                (Ordering::Less, Ordering::Greater)
            );
        }
    }
}
