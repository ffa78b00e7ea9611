//! Memory for series whose labels clients choose.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Memory of a line of a page, with its series and what it is rendered from, in bytes. Measured with 1,000 models of 400
/// lines: 23 KiB of series each, 51 of the page, 40 to render it.
const LINE: usize = 288;

/// Memory that all tables of a process share for their series. Clones are the same one.
#[derive(Clone, Debug)]
pub struct SeriesRoom(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Lines at most.
    most: usize,
    used: AtomicUsize,
}

impl SeriesRoom {
    /// Room of so many bytes.
    pub fn new(bytes: u64) -> Self {
        let most = usize::try_from(bytes).unwrap_or(usize::MAX) / LINE;
        Self(Arc::new(Shared { most, used: AtomicUsize::new(0) }))
    }

    /// Lines that series may have.
    pub fn lines(&self) -> usize {
        self.0.most
    }

    /// Takes so many lines for series that are made later than those of their table, whether there is room or not.
    pub fn hold(&self, lines: usize) -> HeldLines {
        self.take(lines);
        HeldLines { room: self.clone(), lines }
    }

    /// Lines that series have.
    pub fn used(&self) -> usize {
        self.0.used.load(Relaxed)
    }

    /// Returns `true` if so many more fit in when so many have left.
    pub(super) fn fits(&self, lines: usize, leaving: usize) -> bool {
        self.used().saturating_add(lines) <= self.0.most.saturating_add(leaving)
    }

    /// Returns `true` if half of it is used.
    pub(super) fn is_half_used(&self) -> bool {
        self.used() >= self.0.most / 2
    }

    pub(super) fn take(&self, lines: usize) {
        self.0.used.fetch_add(lines, Relaxed);
    }

    pub(super) fn give_back(&self, lines: usize) {
        self.0.used.fetch_sub(lines, Relaxed);
    }
}

/// Lines in a room, until it is dropped.
#[derive(Debug)]
pub struct HeldLines {
    room: SeriesRoom,
    lines: usize,
}

impl Drop for HeldLines {
    fn drop(&mut self) {
        self.room.give_back(self.lines);
    }
}

impl Default for SeriesRoom {
    /// Room without a bound.
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}
