//! Uncounted part of the process' memory, and what that leaves for what is counted.
//!
//! The program itself, endpoints, connections and what the allocator loses between its blocks
//! can't be counted where they are used. So the process as a whole is measured: what it takes
//! besides what is counted is its base, and the rest of the budget is the limit for what is
//! counted. The base is the least of the last seconds: a storm leaves memory behind that the
//! allocator gives back a moment later, and it is not to cost room for ever after.

use std::time::Duration;

/// Time for which a reading of the base counts.
const SLOT: Duration = Duration::from_secs(1);
const SLOTS: u64 = 10;

/// The process at a time; all in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Resident memory.
    pub resident: u64,
    /// Counted memory that is there for certain.
    pub counted: u64,
    /// Counted memory that may come without asking, though some of it may be there already.
    pub pending: u64,
}

/// Turns samples into the limit for what is counted.
#[derive(Debug)]
pub struct Meter {
    process: u64,
    /// The least base of each second, and which second that was.
    least: [(u64, u64); SLOTS as usize],
}

/// Result of a sample; all in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Limit of all counted memory, pending memory included, in bytes.
    pub limit: u64,
    /// Memory that the process takes besides what is counted.
    pub base: u64,
    /// `true` if resident memory is near the budget.
    pub is_near: bool,
}

impl Meter {
    /// For a process that may have so many bytes.
    pub fn new(process: u64) -> Self {
        Self { process, least: [(0, u64::MAX); SLOTS as usize] }
    }

    /// A reading from what is seen so long after the start.
    pub fn read(&mut self, at: Duration, sample: Sample) -> Reading {
        let Sample { resident, counted, pending } = sample;
        let second = at.as_secs() / SLOT.as_secs();
        let now = resident.saturating_sub(counted);
        let slot = &mut self.least[(second % SLOTS) as usize];
        *slot = if slot.0 == second { (second, slot.1.min(now)) } else { (second, now) };
        let oldest = second.saturating_sub(SLOTS - 1);
        let recent = self.least.iter().filter(|(second, _)| *second >= oldest);
        let base = recent.map(|(_, least)| *least).min().unwrap_or(now);

        let most = self.process - reserve(self.process);
        let by_base = most.saturating_sub(base);
        // Also where the base is wrong the process stays below its budget: it may grow by what
        // is really left, less what comes without asking. A body may take twice what is counted of
        // it, so the last of that is taken by halves.
        let left = most.saturating_sub(resident + pending);
        let by_guard = (counted + pending).saturating_add(left - (left / 2).min(self.process / 32));
        let limit = within(by_base).max(self.process / 64).min(within(by_guard));
        let is_near = resident + pending > most - self.process / 8;
        Reading { limit, base, is_near }
    }
}

/// Bytes for what comes between two samples, of a process that may have so many: a sixteenth. A smaller process
/// has an eighth, up to 12 MiB: what comes depends on how fast the machine is.
fn reserve(process: u64) -> u64 {
    (process / 16).max((process / 8).min(12 << 20))
}

/// The limit that leaves room for what may be used beyond it.
fn within(room: u64) -> u64 {
    room / 17 * 16
}

#[cfg(test)]
#[path = "meter_tests.rs"]
mod tests;
