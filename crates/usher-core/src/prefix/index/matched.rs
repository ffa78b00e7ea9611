//! Counts of the blocks that endpoints held when they got prompts.

use std::ops::{Add, AddAssign};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::lru::{OTHERS, OWN};

/// Leading blocks of prompts that their endpoints held, by how this process knew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Matched {
    /// Blocks of prompts that it had sent there.
    pub own: u64,
    /// Blocks that others published since its start.
    pub others: u64,
    /// Blocks that were read at the start, or published by others that are gone.
    pub restored: u64,
}

impl Matched {
    /// Counts a block with these sources.
    pub(super) fn count(&mut self, sources: u16) {
        let of_source = match sources {
            _ if sources & OWN != 0 => &mut self.own,
            _ if sources & OTHERS != 0 => &mut self.others,
            _ => &mut self.restored,
        };
        *of_source += 1;
    }
}

impl Add for Matched {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            own: self.own + other.own,
            others: self.others + other.others,
            restored: self.restored + other.restored,
        }
    }
}

impl AddAssign for Matched {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// The same, counted by several threads.
#[derive(Debug, Default)]
pub(super) struct Counts {
    own: AtomicU64,
    others: AtomicU64,
    restored: AtomicU64,
}

impl Counts {
    pub(super) fn add(&self, matched: Matched) {
        let Matched { own, others, restored } = matched;
        for (counter, more) in [(&self.own, own), (&self.others, others), (&self.restored, restored)] {
            if more > 0 {
                counter.fetch_add(more, Relaxed);
            }
        }
    }

    /// Counts since the last time.
    pub(super) fn take(&self) -> Matched {
        Matched {
            own: self.own.swap(0, Relaxed),
            others: self.others.swap(0, Relaxed),
            restored: self.restored.swap(0, Relaxed),
        }
    }
}
