//! Estimates of one endpoint alone: how its times differ from its group's, its batch slots, and how long requests hold them.

use usher_plugin::{Import, MalformedRecord};

use super::batch_slots::BatchSlots;
use super::evidence::Known;
use super::factor::Factor;
use crate::record::{RecordReader, RecordWriter};

/// Weight of the previous mean in the exponential moving average of the time for which requests hold a slot.
const KEEP_HOLD: f64 = 0.95;
/// Longest time that the average takes in, as a multiple of the mean: a client may read nothing for an hour.
const CLIP_HOLD: f64 = 4.0;

/// Estimates of one endpoint.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnTimes {
    /// Times that a first token, and a step, takes as long as at the others of its group.
    pub(super) first: Known<Factor>,
    pub(super) step: Known<Factor>,
    pub(super) slots: BatchSlots,
    /// Mean seconds for which a request holds a slot; 0: not known.
    pub(super) hold: Known<f64>,
}

impl OwnTimes {
    /// A request held a slot for so many seconds.
    pub(super) fn held(&mut self, seconds: f64, now_ms: u64) {
        let mean = self.hold.observed(now_ms);
        let clipped = seconds.min(*mean * CLIP_HOLD);
        *mean = if *mean > 0.0 { *mean * KEEP_HOLD + clipped * (1.0 - KEEP_HOLD) } else { seconds };
    }

    pub(super) fn write(&self, out: &mut RecordWriter) {
        self.first.write(out, Factor::write);
        self.step.write(out, Factor::write);
        self.slots.write(out);
        self.hold.write(out, |hold, out| out.f64(*hold));
    }

    /// Reads estimates of another process.
    pub(super) fn read(record: &mut RecordReader<'_>, cx: &Import<'_>) -> Result<Self, MalformedRecord> {
        Ok(Self {
            first: Known::read(record, cx, Factor::read)?,
            step: Known::read(record, cx, Factor::read)?,
            slots: BatchSlots::read(record)?,
            hold: Known::read(record, cx, |record| record.f64(0.0..=1e6))?,
        })
    }

    /// Takes over what another process knows better. Returns `true` if that is something.
    pub(super) fn merge(&mut self, theirs: Self, now_ms: u64) -> bool {
        let is_better = [
            theirs.first.replace(&mut self.first, now_ms),
            theirs.step.replace(&mut self.step, now_ms),
            theirs.slots.replace(&mut self.slots),
            theirs.hold.replace(&mut self.hold, now_ms),
        ];
        is_better.contains(&true)
    }
}
