//! State that replicas hand on to each other, and to those that start.

use usher_core::endpoints::Snapshot;

/// Learned state that a replica hands on through the state store, for [`Persistent::learned`](super::Persistent::learned).
///
/// Records are read one by one, as some of many may be lost. Nothing in them should
/// name a client, and [`import`](Self::import) has to expect any bytes. Neither method is called by a request; locks that
/// requests take have to be short.
pub trait Learned: Send + Sync {
    /// Format of the records, with the parameters that give them their meaning. Records of another format are left out.
    fn format(&self) -> String;

    /// Passes records to `record`, the most useful first, until it returns `false`: there is no more room. Longer ones than
    /// [`MAX_RECORD`] are left out. Records should be the same as long as nothing new was learned.
    fn export(&self, snapshot: &Snapshot, record: &mut dyn FnMut(&[u8]) -> bool);

    /// Takes from a record what is newer or better known than here; from those of the start, the newest come first. Returns
    /// the number of things taken.
    ///
    /// # Errors
    /// `MalformedRecord` if the bytes are no record; then nothing is taken.
    fn import(&self, record: &[u8], cx: &Import<'_>) -> Result<u64, MalformedRecord>;
}

/// Bytes of a record at most.
pub const MAX_RECORD: usize = 32 << 10;

/// Error in bytes that are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the record is malformed")]
pub struct MalformedRecord;

/// Place and time of an import.
#[derive(Clone, Copy, Debug)]
pub struct Import<'a> {
    /// Endpoints now.
    pub snapshot: &'a Snapshot,
    /// Now, on the clock that stamps the readings of a load.
    pub now_ms: u64,
    /// Time on this clock less that on the writer's.
    ahead_ms: i64,
}

impl<'a> Import<'a> {
    /// An import at `now_ms` of records that were written `age_ms` ago, when the writer's clock was at `written_ms`.
    pub fn new(snapshot: &'a Snapshot, now_ms: u64, written_ms: u64, age_ms: u64) -> Self {
        let signed = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
        let ahead_ms = signed(now_ms).saturating_sub(signed(age_ms)).saturating_sub(signed(written_ms));
        Self { snapshot, now_ms, ahead_ms }
    }

    /// A past time of the writer's clock on this process's, which is negative before this process began.
    pub fn past(&self, writer_ms: i64) -> i64 {
        writer_ms.saturating_add(self.ahead_ms).min(i64::try_from(self.now_ms).unwrap_or(i64::MAX))
    }

    /// A time of the writer's clock on this process's. 0 if that was before this process began.
    pub fn here(&self, writer_ms: u64) -> u64 {
        writer_ms.saturating_add_signed(self.ahead_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_of_the_clock_of_the_reader() {
        let snapshot = Snapshot::new(1, Vec::new());
        let here = |now, written, age, ms| Import::new(&snapshot, now, written, age).here(ms);
        assert_eq!(here(500, 90_000, 0, 91_000), 1500);
        assert_eq!(here(500, 90_000, 1200, 91_000), 300, "some time has passed between");
        assert_eq!(here(500, 90_000, 1600, 91_000), 0);
        assert_eq!(here(90_000, 500, 0, 1500), 91_000);
        assert_eq!(here(5, u64::MAX, u64::MAX, u64::MAX), i64::MAX as u64, "whatever it says");
    }

    #[test]
    fn past_times_are_before_now() {
        let snapshot = Snapshot::new(1, Vec::new());
        let past = |now, written, age, ms| Import::new(&snapshot, now, written, age).past(ms);
        assert_eq!(past(500, 90_000, 1200, 89_000), -1700);
        assert_eq!(past(90_000, 500, 0, -1000), 88_500);
        assert_eq!(past(500, 90_000, 0, 91_000), 500);
        assert_eq!(past(500, u64::MAX, u64::MAX, i64::MIN), i64::MIN);
        assert_eq!(past(u64::MAX, 0, 0, i64::MAX), i64::MAX);
    }
}
