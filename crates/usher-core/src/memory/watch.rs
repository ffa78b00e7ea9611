//! Measurements of the process' memory.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::meter::{Meter, Sample};

/// Interval between two checks of the process.
const INTERVAL: Duration = Duration::from_millis(100);

/// The same while resident memory is near the budget. It then costs more not to know.
const NEAR_INTERVAL: Duration = Duration::from_millis(10);

/// Measures the process that a budget is for.
#[derive(Debug)]
pub(super) struct Watch {
    resident: Resident,
    start: Instant,
    process: u64,
    // Guards what earlier samples said. Taken by one thread at a time; the others go on.
    seen: Mutex<Seen>,
    base: AtomicU64,
    is_near: AtomicBool,
}

/// State from earlier samples.
#[derive(Debug)]
pub(super) struct Seen {
    meter: Meter,
    /// `true` once the log has the warning that the process alone takes nearly all memory.
    warned: bool,
}

impl Watch {
    /// Measures this process, which may have so many bytes.
    ///
    /// # Errors
    /// `io::Error` if the system has no `/proc`.
    pub(super) fn new(process: u64) -> io::Result<Self> {
        let resident = Resident::new()?;
        resident.read()?;
        Ok(Self {
            resident,
            start: Instant::now(),
            process,
            seen: Mutex::new(Seen { meter: Meter::new(process), warned: false }),
            base: AtomicU64::new(0),
            is_near: AtomicBool::new(false),
        })
    }

    /// Bytes that the process takes besides what is counted.
    pub(super) fn base(&self) -> u64 {
        self.base.load(Relaxed)
    }

    /// State from earlier samples, for one thread at a time; `None` where another one looks.
    pub(super) fn seen(&self) -> Option<MutexGuard<'_, Seen>> {
        self.seen.try_lock().ok()
    }

    /// Resident memory in bytes; `None` where that can't be seen.
    pub(super) fn resident(&self) -> Option<u64> {
        self.resident.read().ok()
    }

    /// Evaluates what is resident, counted and pending now. Says what may be counted, and after how many bytes
    /// more to look again.
    pub(super) fn evaluate(&self, seen: &mut Seen, sample: Sample) -> (u64, u64) {
        let reading = seen.meter.read(self.start.elapsed(), sample);
        let nearly_all = reading.base > self.process - self.process / 8;
        if nearly_all && !seen.warned {
            let (base, budget) = (reading.base, self.process);
            tracing::warn!(
                base,
                budget,
                "the process takes nearly all of its memory budget before any request; raise --memory-budget"
            );
        }
        seen.warned = nearly_all;
        self.base.store(reading.base, Relaxed);
        self.is_near.store(reading.is_near, Relaxed);
        // Near the budget it is looked at more often.
        (reading.limit, self.process / if reading.is_near { 256 } else { 64 })
    }

    /// Time until the next check.
    pub(super) fn pause(&self) -> Duration {
        if self.is_near.load(Relaxed) { NEAR_INTERVAL } else { INTERVAL }
    }
}

/// Reads how much memory of this process is resident.
#[derive(Debug)]
struct Resident {
    /// Kept open, which makes a reading twice as fast.
    #[cfg(target_os = "linux")]
    statm: File,
}

#[cfg(target_os = "linux")]
impl Resident {
    fn new() -> io::Result<Self> {
        Ok(Self { statm: File::open("/proc/self/statm")? })
    }

    /// In bytes.
    fn read(&self) -> io::Result<u64> {
        let mut text = [0; 128];
        let length = std::os::unix::fs::FileExt::read_at(&self.statm, &mut text, 0)?;
        let pages = resident_pages(&text[..length]).ok_or(io::ErrorKind::InvalidData)?;
        Ok(pages.saturating_mul(rustix::param::page_size() as u64))
    }
}

#[cfg(not(target_os = "linux"))]
impl Resident {
    fn new() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn read(&self) -> io::Result<u64> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The second of the numbers in a text like that of `/proc/self/statm`.
#[cfg(target_os = "linux")]
fn resident_pages(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn resident_pages_are_the_second_field_of_statm() {
        assert_eq!(resident_pages(b"12345 678 90 1 0 234 0\n"), Some(678));
        for nonsense in [&b""[..], b"1", b"1 x", b"1 -2", &[0xff, b' ', b'1']] {
            assert_eq!(resident_pages(nonsense), None);
        }
        let resident = Resident::new().unwrap().read().unwrap();
        assert!(((1 << 20)..(1 << 40)).contains(&resident), "{resident}");
    }
}
