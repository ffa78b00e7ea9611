//! Bound of the stream in bytes.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

/// Id of an entry of a Redis stream: milliseconds and a number, `1700000000000-0`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    /// Milliseconds of the store's clock.
    pub ms: u64,
    /// Number within the millisecond.
    pub seq: u64,
}

/// Text that is no [`EntryId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an id of a stream's entry")]
pub struct NoEntryId;

impl FromStr for EntryId {
    type Err = NoEntryId;

    fn from_str(text: &str) -> Result<Self, NoEntryId> {
        let (ms, seq) = text.split_once('-').ok_or(NoEntryId)?;
        let number = |text: &str| text.parse().map_err(|_| NoEntryId);
        Ok(Self { ms: number(ms)?, seq: number(seq)? })
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

/// Sizes of a stream's entries, and up to where it has to be trimmed so that no more than so many bytes stay.
///
/// Every reader sees every entry, so all come to the same, and the store counts nothing. Entries are summed up in
/// segments: a trim drops whole ones, and leaves 15 of 16 bytes of a bound of at least 4 MiB. Entries before the oldest one
/// that is known have no size, and go with the first trim.
#[derive(Debug)]
pub struct StreamBound {
    limit: u64,
    /// The oldest first.
    segments: VecDeque<Segment>,
    bytes: u64,
}

/// Entries in a row.
#[derive(Clone, Copy, Debug)]
struct Segment {
    first: EntryId,
    last: EntryId,
    bytes: u64,
}

/// Segments in a full stream.
const SEGMENTS: u64 = 256;
/// Segments of free room that a trim leaves, and below which it trims: what is on its way has room meanwhile.
const TRIM_TO: u64 = 8;
const TRIM_FROM: u64 = 4;

impl StreamBound {
    /// 64 MiB: 7 million blocks in full batches, what 200 endpoints of the usual size hold; half as many in batches of ten.
    pub const DEFAULT: u64 = 64 << 20;

    /// Bytes that every entry takes beside its payload: its id and field, and the lists of Redis.
    pub const ENTRY: u64 = 64;

    /// A bound of so many bytes, of a stream of which nothing is known.
    pub fn new(limit: u64) -> Self {
        Self { limit, segments: VecDeque::new(), bytes: 0 }
    }

    /// Counts an entry. One behind the last is new, and one before the first comes from reading backwards; others are
    /// known already.
    pub fn entry(&mut self, id: EntryId, payload: usize) {
        let bytes = payload as u64 + Self::ENTRY;
        let most = self.limit / SEGMENTS;
        let new = Segment { first: id, last: id, bytes };
        let (newest, oldest) = (self.segments.back().copied(), self.segments.front().copied());
        if newest.is_none_or(|newest| newest.last < id) {
            match self.segments.back_mut().filter(|last| last.bytes + bytes <= most) {
                Some(last) => (last.last, last.bytes) = (id, last.bytes + bytes),
                None => self.segments.push_back(new),
            }
        } else if oldest.is_some_and(|oldest| id < oldest.first) {
            match self.segments.front_mut().filter(|first| first.bytes + bytes <= most) {
                Some(first) => (first.first, first.bytes) = (id, first.bytes + bytes),
                None => self.segments.push_front(new),
            }
        } else {
            return;
        }
        self.bytes += bytes;
    }

    /// Oldest entry that has to stay, when older ones have to go: the argument of `XTRIM MINID`. Counts them as gone;
    /// if the trim fails, the next one drops them, too.
    pub fn trim(&mut self) -> Option<EntryId> {
        let part = |segments: u64| self.limit / SEGMENTS * (SEGMENTS - segments);
        let (from, to) = (part(TRIM_FROM), part(TRIM_TO));
        if self.bytes <= from {
            return None;
        }
        while self.bytes > to
            && self.segments.len() > 1
            && let Some(first) = self.segments.pop_front()
        {
            self.bytes -= first.bytes;
        }
        self.segments.front().map(|first| first.first)
    }

    /// Takes the oldest entry that there is; `None`: there is none. What was before it is gone.
    pub fn begins_at(&mut self, oldest: Option<EntryId>) {
        let is_gone = |segment: &Segment| oldest.is_none_or(|oldest| segment.last < oldest);
        while let Some(first) = self.segments.front().copied().filter(is_gone) {
            self.segments.pop_front();
            self.bytes -= first.bytes;
        }
    }

    /// Forgets what is known: the stream is another one.
    pub fn clear(&mut self) {
        *self = Self::new(self.limit);
    }

    /// Returns `true` if known entries fill the bound: reading backwards can stop.
    pub fn is_full(&self) -> bool {
        self.bytes >= self.limit / SEGMENTS * (SEGMENTS - TRIM_TO)
    }

    /// Bytes of the entries that are known.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
#[path = "bound_tests.rs"]
mod tests;
