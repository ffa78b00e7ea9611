//! Batch slots of an endpoint: requests that it runs at a time whenever others wait.

use usher_plugin::MalformedRecord;

use crate::record::{RecordReader, RecordWriter};

/// Equal readings after which the number of slots is known.
const READINGS: u32 = 8;

/// Readings of the same smaller number in a row, while others wait, that say that there are fewer
/// slots than were thought: a reading was wrong, or the engine has another limit now.
const FEWER: u32 = 32;

/// Estimate of an endpoint's batch slots: the most requests that ran at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BatchSlots {
    most: f64,
    /// Readings of just so many while others waited.
    times: u32,
    /// The last reading that was smaller while others waited, and how often in a row.
    smaller: (f64, u32),
    read_at_ms: Option<u64>,
}

impl BatchSlots {
    /// Writes what is known.
    pub(super) fn write(&self, out: &mut RecordWriter) {
        out.f64(self.most);
        out.u64(self.times.into());
    }

    /// Reads what another process knows.
    pub(super) fn read(record: &mut RecordReader<'_>) -> Result<Self, MalformedRecord> {
        let most = record.f64(0.0..=1e9)?;
        let times = u32::try_from(record.u64()?).map_err(|_| MalformedRecord)?;
        Ok(Self { most, times, ..Self::default() })
    }

    /// Requests that can run at a time; infinite while that isn't known.
    pub(super) fn requests(&self) -> f64 {
        if self.times >= READINGS { self.most } else { f64::INFINITY }
    }

    /// Takes the place of what is known here, where that is nothing. Returns whether it does.
    pub(super) fn replace(self, ours: &mut Self) -> bool {
        let is_known = |slots: &Self| slots.times >= READINGS;
        let is_new = is_known(&self) && self.most >= 1.0 && !is_known(ours) && ours.most <= self.most;
        if is_new {
            *ours = self;
        }
        is_new
    }

    /// A reading said that so many requests run and so many wait. Returns the requests that can
    /// run at a time, infinite while that isn't known; `None`: as before.
    pub(super) fn note(&mut self, running: f64, waiting: f64, read_at_ms: Option<u64>) -> Option<f64> {
        if self.read_at_ms == read_at_ms || !running.is_finite() {
            return None;
        }
        self.read_at_ms = read_at_ms;
        if running > self.most {
            (self.most, self.times, self.smaller) = (running, 0, Default::default());
            return Some(f64::INFINITY);
        }
        if waiting > 0.0 && running == self.most {
            self.times = self.times.saturating_add(1);
            self.smaller = Default::default();
        } else if waiting > 0.0 {
            let (last, times) = self.smaller;
            self.smaller = (running, if last == running { times + 1 } else { 1 });
            if self.smaller.1 >= FEWER {
                *self = Self { most: running, times: FEWER, ..*self };
            }
        }
        (self.times >= READINGS).then_some(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_learned_while_requests_wait() {
        let mut slots = BatchSlots::default();
        let mut at = 0;
        let mut note = |running, waiting| {
            at += 1;
            slots.note(running, waiting, Some(at))
        };
        assert_eq!(note(8.0, 0.0), Some(f64::INFINITY), "more than ever");
        assert_eq!(note(8.0, 0.0), None, "nobody waits");
        for _ in 1..READINGS {
            assert_eq!(note(8.0, 2.0), None);
        }
        assert_eq!(note(8.0, 2.0), Some(8.0));
        assert_eq!(note(9.0, 2.0), Some(f64::INFINITY), "there were more");
        assert_eq!(note(1e6, 0.0), Some(f64::INFINITY), "a wrong one");
        for reading in 0..4 * FEWER {
            let running = if reading % FEWER == FEWER - 1 { 7.0 } else { 8.0 };
            assert_eq!(note(running, 5.0), None, "it isn't always as many");
        }
        assert_eq!((1..FEWER).find_map(|_| note(8.0, 5.0)), None);
        assert_eq!((note(8.0, 5.0), note(8.0, 0.0)), (Some(8.0), Some(8.0)));
        assert_eq!(slots.note(10.0, 0.0, Some(at)), None, "the same reading");
    }
}
