//! Looks at the process' memory as time passes and as what is counted grows.

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::meter::{Meter, Reading, Sample};
use super::{Budget, Kind};

/// How often the process is looked at.
const INTERVAL: Duration = Duration::from_millis(100);

/// The same while resident memory is near the budget. It then costs more not to know.
const NEAR_INTERVAL: Duration = Duration::from_millis(10);

/// This part of what a stream counts is taken by one that does nothing: 2 KiB.
const IDLE_SHARE: u64 = 4;

/// Measures the process that a [`Budget`] is for.
#[derive(Debug)]
pub(super) struct Watch {
    resident: Resident,
    start: Instant,
    process: u64,
    // Guards what earlier samples said. Taken by one thread at a time; the others go on.
    seen: Mutex<Seen>,
    base: AtomicU64,
    left_over: AtomicU64,
    is_near: AtomicBool,
}

#[derive(Debug)]
struct Seen {
    meter: Meter,
    /// It was said that the process alone takes nearly all.
    warned: bool,
}

impl Watch {
    /// Measures this process, which may have so many bytes.
    ///
    /// # Errors
    /// When the system has no `/proc`.
    pub(super) fn new(process: u64) -> io::Result<Self> {
        let resident = Resident::new()?;
        resident.read()?;
        Ok(Self {
            resident,
            start: Instant::now(),
            process,
            seen: Mutex::new(Seen { meter: Meter::new(process), warned: false }),
            base: AtomicU64::new(0),
            left_over: AtomicU64::new(0),
            is_near: AtomicBool::new(false),
        })
    }

    /// What the process takes besides what is counted, in bytes.
    pub(super) fn base(&self) -> u64 {
        self.base.load(Relaxed)
    }

    /// Looks now, and says what may be counted and after how many bytes more to look again;
    /// `None` where somebody else looks, or nothing can be seen.
    pub(super) fn look(&self, budget: &Budget) -> Option<(u64, u64)> {
        let mut seen = self.seen.try_lock().ok()?;
        let reading = self.read(&mut seen.meter, budget)?;
        self.left_over.store(reading.left_over, Relaxed);
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
        Some((reading.limit, self.process / if reading.is_near { 256 } else { 64 }))
    }

    fn read(&self, meter: &mut Meter, budget: &Budget) -> Option<Reading> {
        let counted = || {
            let kinds = [Kind::Bodies, Kind::PrefixIndex, Kind::Records, Kind::Unread];
            let idle = budget.used(Kind::Streams) / IDLE_SHARE + budget.taken_by_connections();
            kinds.iter().map(|kind| budget.used(*kind)).fold(idle, u64::saturating_add)
        };
        // What comes or goes meanwhile is not to make the base look smaller than it is.
        let before = counted();
        let resident = self.resident.read().ok()?;
        let counted = before.min(counted());
        let streams = budget.used(Kind::Streams);
        let connections = budget.used(Kind::Connections).saturating_sub(budget.taken_by_connections());
        let pending = connections + budget.used(Kind::SmallPorts) + (streams - streams / IDLE_SHARE);
        Some(meter.read(self.start.elapsed(), Sample { resident, counted, pending }))
    }
}

/// Looks at the process again and again, if the budget is [measured](Budget::measure), and has the
/// allocator give back what nobody uses. For a task of its own beside the threads that serve
/// requests: a look takes microseconds, giving back a GiB takes milliseconds.
pub async fn keep_measuring(budget: Arc<Budget>) {
    let Some(watch) = budget.watch() else { return };
    loop {
        let pause = if watch.is_near.load(Relaxed) { NEAR_INTERVAL } else { INTERVAL };
        tokio::time::sleep(pause).await;
        budget.look();
        if watch.left_over.load(Relaxed) > watch.process / 32 {
            release();
        }
    }
}

/// A block that mimalloc takes from the memory of all threads, and returns there when it is freed
/// (those of 512 KiB and less come from and go to pages of a thread).
const SHARED_BLOCK: usize = 1 << 20;

/// Has the allocator give back to the system what has been free for a second (its `purge_delay`).
/// It looks for that whenever memory returns to what all threads share, and never otherwise: a
/// process without requests would keep what the last storm left. Nothing is written to the block,
/// so that it takes no memory itself.
fn release() {
    drop(black_box(Vec::<u8>::with_capacity(black_box(SHARED_BLOCK))));
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
    fn the_second_number_is_what_is_resident() {
        assert_eq!(resident_pages(b"12345 678 90 1 0 234 0\n"), Some(678));
        for nonsense in [&b""[..], b"1", b"1 x", b"1 -2", &[0xff, b' ', b'1']] {
            assert_eq!(resident_pages(nonsense), None);
        }
        let resident = Resident::new().unwrap().read().unwrap();
        assert!(((1 << 20)..(1 << 40)).contains(&resident), "{resident}");
    }

    #[test]
    fn the_limit_follows_the_process() {
        let all = Resident::new().unwrap().read().unwrap();
        let budget = Budget::of_process(64 * all, None);
        let before = budget.limit().unwrap();
        assert_eq!(budget.base(), None);
        assert!(budget.measure());
        let (limit, base) = (budget.limit().unwrap(), budget.base().unwrap());
        assert!(limit > before && base < 32 * all, "{limit} instead of {before}, base {base}");
        // It is looked at again as what is counted grows, not only when time has passed.
        let budget = Arc::new(Budget::of_process(64 * all, None));
        assert!(budget.measure());
        budget.set_limit(1);
        let mut held = super::super::Reservation::new(&budget, Kind::Bodies);
        assert!(held.grow_to(all / 2, || None).is_err(), "it is looked at after more than that");
        assert!(held.grow_to(2 * all, || None).is_ok());
        // Nothing says what a process may have: there is nothing to measure.
        assert!(!Budget::unlimited(None).measure());
    }
}
