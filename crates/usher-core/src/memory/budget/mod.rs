//! Counted memory, of which there is a limit.

mod measuring;
mod shedding;
mod streams;
mod tokenizers;
mod uploads;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use tokio::sync::Semaphore;

use super::refusals::Refusals;
use super::stream_state::STREAM;
use super::unread::Unread;
use super::uploads::Uploads;
use super::watch::Watch;
use crate::metrics::SeriesRoom;

pub use measuring::keep_measuring;
pub use tokenizers::NoRoom;
pub use uploads::watch_uploads;

/// Kinds of memory that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bodies of requests, from their first byte until their last is on its way, and what finding their tokens takes.
    Bodies,
    /// The indexes of who holds which prefix, and the tokens of prefixes.
    PrefixIndex,
    /// Records of decisions, kept to explain them.
    Records,
    /// Streams that are open: [`STREAM`](Budget::STREAM) each.
    Streams,
    /// Connections: their buffers, and what arrives on them between two turns of their streams.
    Connections,
    /// Data that has arrived on connections and that their streams don't read.
    Unread,
    /// Connections and requests of the [small](super::small) ports.
    SmallPorts,
    /// Vocabularies of tokenizers, and their files while these are read.
    Tokenizers,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Bodies,
        Self::PrefixIndex,
        Self::Records,
        Self::Streams,
        Self::Connections,
        Self::Unread,
        Self::SmallPorts,
        Self::Tokenizers,
    ];
}

/// Requests that wait, and can be refused to make room.
pub trait Sheddable: Send + Sync {
    /// Refuses requests that wait and have at most this priority, those of the lowest first,
    /// until what they hold comes to so many bytes or none is left. Returns how many bytes those
    /// had: they are given back a moment later, when the requests' streams end.
    fn shed(&self, bytes: u64, highest: i32) -> u64;
}

/// Error of a full budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory budget is used up")]
pub struct BudgetFull;

/// On cache lines of its own, two of them, as processors fetch them in pairs: every request
/// writes the one for bodies.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Count(AtomicU64);

/// Memory that the process may use, and that it does use. Counting takes one write to a shared
/// number, and no lock.
pub struct Budget {
    /// Bytes that the process as a whole may take; `None` where only the limit is given.
    process: Option<u64>,
    /// Limit of all kinds together, in bytes.
    limit: AtomicU64,
    /// From so many bytes on that all kinds take together the process is looked at again.
    look_at: AtomicU64,
    watch: OnceLock<Watch>,
    /// Bytes of `limit` that the indexes of prefixes were given; `None`: a third.
    prefix_index: Option<u64>,
    /// Weights of their shares, added up.
    pub(super) index_weights: AtomicU64,
    used: [Count; Kind::ALL.len()],
    sheds: OnceLock<Weak<dyn Sheddable>>,
    /// Bytes that were shed and are not given back yet; [`UNKNOWN`](shedding::UNKNOWN) and more while
    /// some are being shed.
    promised: AtomicU64,
    // Taken to shed, by one thread at a time; the others go on.
    shedding: Mutex<()>,
    /// `true` if a reservation failed, or only fitted after shedding, since the last check.
    was_full: AtomicBool,
    refused: AtomicU64,
    shed: AtomicU64,
    // Guards the unread data of each open connection. Taken when one opens or closes, and where
    // connections or unread data take too much.
    pub(super) connections: Mutex<Vec<Arc<Unread>>>,
    pub(super) evicted: AtomicU64,
    /// Connections among these that were closed for unread data or unsent replies.
    pub(super) evicted_full: AtomicU64,
    // Taken to choose connections that leave, by one thread at a time; the others go on.
    pub(super) retiring: Mutex<()>,
    /// Times that this was asked for.
    pub(super) retiring_turn: AtomicU64,
    /// Connections since the start, those of small ports among them.
    pub(super) opened: Arc<AtomicU64>,
    /// Open connections except those of small ports.
    pub(super) open_connections: AtomicU64,
    pub(super) small_calls_ended: AtomicU64,
    pub(super) series: SeriesRoom,
    pub(super) uploads: Uploads,
    refusals: Refusals,
    lingering: Arc<Semaphore>,
    /// Open files that the process may have, where that is known.
    pub(super) files: OnceLock<u64>,
}

/// Streams at most that are read although they have ended on our side. Each takes some KiB that
/// aren't counted.
const MAX_LINGERING: usize = 1024;

/// Part of the process' budget that series may take whose labels clients choose.
const SERIES_PART: u64 = 8;

/// At least so much is left for what isn't counted, where the budget is large enough: the
/// program.
const UNCOUNTED: u64 = 48 << 20;

impl Budget {
    /// The smallest budget that leaves room for anything.
    pub const LEAST: u64 = 16 << 20;
    /// Bytes that the indexes of prefixes may take by default where there is no limit: half a GiB.
    pub const PREFIX_INDEX: u64 = 512 << 20;

    /// Bytes that an open stream counts.
    pub const STREAM: u64 = STREAM;

    /// A budget for a process of so many bytes, of which some are [`counted`](Self::counted).
    /// `prefix_index` is what indexes of prefixes may take of those: by default a third, and
    /// no more than [half](Self::most_for_prefixes).
    pub fn of_process(bytes: u64, prefix_index: Option<u64>) -> Self {
        let (process, series) = (Some(bytes), SeriesRoom::new(bytes / SERIES_PART));
        Self { process, prefix_index, series, ..Self::new(Self::counted(bytes), 0) }
    }

    /// Limit of all kinds together in a process of so many bytes, where nothing is
    /// [measured](Self::measure). A quarter of it, or 48
    /// MiB where that is more, but never more than three quarters, is left for what isn't
    /// counted.
    pub fn counted(bytes: u64) -> u64 {
        bytes - (bytes / 4).max(UNCOUNTED).min(bytes - bytes / 4)
    }

    /// Bytes that indexes of prefixes may take at most in a process of `bytes`, so that bodies
    /// have room too: half of what is counted.
    pub fn most_for_prefixes(bytes: u64) -> u64 {
        Self::counted(bytes) / 2
    }

    /// Counts and never refuses. `prefix_index` as with [`of_process`](Self::of_process); by
    /// default half a GiB.
    pub fn unlimited(prefix_index: Option<u64>) -> Self {
        Self::new(u64::MAX, prefix_index.unwrap_or(Self::PREFIX_INDEX))
    }

    /// A budget with these numbers: what all kinds together may take, and what indexes of
    /// prefixes may take of that.
    pub fn new(limit: u64, prefix_index: u64) -> Self {
        Self {
            process: None,
            limit: AtomicU64::new(limit),
            look_at: AtomicU64::new(u64::MAX),
            watch: OnceLock::new(),
            prefix_index: Some(prefix_index),
            index_weights: AtomicU64::new(0),
            used: Default::default(),
            sheds: OnceLock::new(),
            promised: AtomicU64::new(0),
            shedding: Mutex::default(),
            was_full: AtomicBool::new(false),
            refused: AtomicU64::new(0),
            shed: AtomicU64::new(0),
            connections: Mutex::default(),
            evicted: AtomicU64::new(0),
            evicted_full: AtomicU64::new(0),
            retiring: Mutex::default(),
            retiring_turn: AtomicU64::new(0),
            opened: Arc::default(),
            open_connections: AtomicU64::new(0),
            small_calls_ended: AtomicU64::new(0),
            series: SeriesRoom::default(),
            uploads: Uploads::default(),
            refusals: Refusals::default(),
            lingering: Arc::new(Semaphore::new(MAX_LINGERING)),
            files: OnceLock::new(),
        }
    }

    /// Limit of all kinds together, in bytes; `None`: there is none.
    pub fn limit(&self) -> Option<u64> {
        Some(self.limit.load(Relaxed)).filter(|limit| *limit != u64::MAX)
    }

    #[cfg(test)]
    pub(super) fn forget_promised(&self) {
        self.promised.store(0, Relaxed);
    }

    #[cfg(test)]
    pub(super) fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Relaxed);
    }

    /// Bytes that the process as a whole may take, where that was given.
    pub fn process(&self) -> Option<u64> {
        self.process
    }

    /// Bytes that indexes of prefixes may take, of the limit of all kinds together: of what
    /// [tokenizers](Kind::Tokenizers) leave.
    pub fn prefix_index(&self) -> u64 {
        let Some(process) = self.process else { return self.prefix_index.unwrap_or(0) };
        let rest = Self::counted(process).saturating_sub(self.used(Kind::Tokenizers));
        self.prefix_index.unwrap_or(rest / 3).min(rest / 2)
    }

    /// Bytes that a kind takes now.
    pub fn used(&self, kind: Kind) -> u64 {
        self.used[kind as usize].0.load(Relaxed)
    }

    /// Returns `true` if seven eighths of the budget are used: time to give up what matters least.
    pub fn is_tight(&self) -> bool {
        self.total() > tight(self.limit.load(Relaxed))
    }

    /// Returns `true` if something found no room since the last call, or only what others made.
    pub(super) fn was_full(&self) -> bool {
        self.was_full.swap(false, Relaxed)
    }

    /// Returns `true` if a part of a body should be copied that is going to be kept. It lies
    /// in a frame beside parts of other bodies, and keeps all of the frame when those are
    /// gone. That is well until half of the budget is used.
    pub fn copies(&self) -> bool {
        self.total() > self.limit.load(Relaxed) / 2
    }

    /// Returns `true` if indexes of prefixes may grow.
    pub fn has_room_for_prefixes(&self) -> bool {
        let rest = self.limit.load(Relaxed).saturating_sub(self.used(Kind::Tokenizers));
        let most = self.prefix_index().min(rest / 2);
        self.used(Kind::PrefixIndex) < most && !self.is_tight()
    }

    /// Sets the shedder of waiting requests. The first one counts.
    pub fn shed_with(&self, sheds: Weak<dyn Sheddable>) {
        // A second one would be of a second server on the same budget, which nobody starts.
        let _ = self.sheds.set(sheds);
    }

    /// A request was refused for want of memory.
    pub fn count_refused(&self) {
        let count = self.refused.fetch_add(1, Relaxed) + 1;
        // A line for each power of two: a flood must not flood the log.
        if count.is_power_of_two() {
            let (used, limit) = (self.total(), self.limit.load(Relaxed));
            tracing::warn!(
                count,
                used,
                limit,
                "requests rejected: the memory budget is used up; raise --memory-budget or add replicas"
            );
        }
    }

    /// Requests that were refused for want of memory.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Bytes of requests that waited and were shed.
    pub fn shed(&self) -> u64 {
        self.shed.load(Relaxed)
    }

    /// Admits a request of this priority which holds nothing yet but its stream. Where it is
    /// tight those that wait with lower priorities make room for it.
    ///
    /// # Errors
    /// `BudgetFull` if the budget has no room.
    pub fn admit(&self, priority: impl FnOnce() -> Option<i32>) -> Result<(), BudgetFull> {
        self.shed_if_tight(self.total(), priority)
    }

    fn total(&self) -> u64 {
        self.used.iter().map(|used| used.0.load(Relaxed)).fold(0, u64::saturating_add)
    }

    /// Sum of all kinds, of which one has just grown.
    fn grown(&self) -> u64 {
        let total = self.total();
        if total > self.look_at.load(Relaxed) {
            self.check();
        }
        total
    }

    pub(super) fn grow(
        &self,
        kind: Kind,
        bytes: u64,
        priority: impl FnOnce() -> Option<i32>,
    ) -> Result<(), BudgetFull> {
        self.grow_or(kind, bytes, priority, || false)
    }

    /// The same beyond the limit: by its [`overcommit`], and by streams that were refused.
    pub(super) fn grow_over_limit(
        &self,
        kind: Kind,
        bytes: u64,
        priority: impl FnOnce() -> Option<i32>,
    ) -> Result<(), BudgetFull> {
        self.grow_or(kind, bytes, priority, || {
            let limit = self.limit.load(Relaxed);
            self.total() <= limit.saturating_add(overcommit(limit)).saturating_add(self.refusals.bytes())
        })
    }

    /// Grows where there is room, or where `may` says so all the same.
    fn grow_or(
        &self,
        kind: Kind,
        bytes: u64,
        priority: impl FnOnce() -> Option<i32>,
        may: impl FnOnce() -> bool,
    ) -> Result<(), BudgetFull> {
        let used = &self.used[kind as usize].0;
        used.fetch_add(bytes, Relaxed);
        let admitted = self.shed_if_tight(self.grown(), priority);
        if admitted.is_err() && !may() {
            used.fetch_sub(bytes, Relaxed);
            return admitted;
        }
        Ok(())
    }

    /// Grows by what can be done without, unless it is tight then.
    pub(super) fn grow_optional(&self, kind: Kind, bytes: u64) -> Result<(), BudgetFull> {
        let most = || tight(self.limit.load(Relaxed));
        // Not counted first: others would be refused for what is never taken.
        if self.total().saturating_add(bytes) > most() {
            return Err(BudgetFull);
        }
        let used = &self.used[kind as usize].0;
        used.fetch_add(bytes, Relaxed);
        if self.grown() > most() {
            used.fetch_sub(bytes, Relaxed);
            return Err(BudgetFull);
        }
        Ok(())
    }

    /// Counts what is there already.
    pub(super) fn add(&self, kind: Kind, bytes: u64) {
        self.used[kind as usize].0.fetch_add(bytes, Relaxed);
    }

    pub(super) fn give_back(&self, kind: Kind, bytes: u64) {
        self.used[kind as usize].0.fetch_sub(bytes, Relaxed);
        if self.promised.load(Relaxed) > 0 {
            // Whosever it was: too little shed is found out with the next chunk.
            let less = |promised: u64| Some(promised.saturating_sub(bytes));
            let _ = self.promised.fetch_update(Relaxed, Relaxed, less);
        }
    }
}

/// From here on requests that wait are shed, and nothing grows that need not.
fn tight(limit: u64) -> u64 {
    limit - limit / 8
}

/// Bytes that may be used beyond the limit for a moment: by streams whose priority isn't known yet, by
/// messages of requests that are on their way, and instead of what others are about to give back.
fn overcommit(limit: u64) -> u64 {
    limit / 16
}

impl Default for Budget {
    fn default() -> Self {
        Self::unlimited(None)
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = Kind::ALL.map(|kind| (kind, self.used(kind)));
        f.debug_struct("Budget").field("limit", &self.limit()).field("used", &used).finish()
    }
}
