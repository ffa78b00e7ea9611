//! Requests of which some is missing: how fast their bodies come, and which of them are aborted.

use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use tokio::task::Id;

use super::aborted::AbortedStreams;
use super::stream_state::STREAM;

/// Looks at a body before it may be aborted to make room: one that has only begun is not slow.
const MIN_CHECKS: u32 = 3;

/// A request's body of which some is missing. Its stream keeps this until the rest is there.
#[derive(Debug)]
pub struct Upload {
    received: AtomicU64,
    verdict: AtomicU8,
    stream: Waker,
    /// The task that this wakes.
    task: Option<Id>,
}

/// Reason to abort an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbortReason {
    /// No data for too long.
    Idle,
    /// Slower than others while memory is needed.
    Slow,
}

const IDLE: u8 = 1;
const SLOW: u8 = 2;

impl Upload {
    /// Sets the number of received bytes.
    pub fn received(&self, bytes: u64) {
        self.received.store(bytes, Relaxed);
    }

    /// Reason of an abort, if there was one. An abort wakes the stream.
    #[inline]
    pub fn abort_reason(&self) -> Option<AbortReason> {
        match self.verdict.load(Relaxed) {
            IDLE => Some(AbortReason::Idle),
            SLOW => Some(AbortReason::Slow),
            _ => None,
        }
    }

    fn abort(&self, verdict: u8, streams: &AbortedStreams) {
        self.verdict.store(verdict, Relaxed);
        streams.add(self.task);
        self.stream.wake_by_ref();
    }
}

/// All bodies of which some is missing.
#[derive(Debug)]
pub(super) struct Uploads {
    // Taken when a body begins that doesn't come at once, and when all are looked at.
    open: Mutex<Open>,
    /// The lowest priority of those in `slow`; above all where there is none.
    lowest: AtomicI64,
    // Those that may be aborted to make room, the first to go last: as the last check found them, and
    // none joins them before the next. Taken by who checks, and when memory is short and one may go.
    slow: Mutex<Vec<Slow>>,
    pub(super) aborted: AbortedStreams,
}

/// Above all priorities.
const NONE: i64 = i64::MAX;

impl Default for Uploads {
    fn default() -> Self {
        Self {
            open: Mutex::default(),
            lowest: AtomicI64::new(NONE),
            slow: Mutex::default(),
            aborted: AbortedStreams::default(),
        }
    }
}

#[derive(Debug, Default)]
struct Open {
    bodies: Vec<TrackedUpload>,
    /// From so many on, those that are over are taken out before another comes.
    tidy_at: usize,
}

/// Number of bodies up to which ended ones are not looked for.
const FEW: usize = 16;

impl Open {
    fn push(&mut self, body: TrackedUpload) {
        if self.bodies.len() >= self.tidy_at {
            self.bodies.retain(|body| !body.is_over());
            self.tidy_at = FEW.max(2 * self.bodies.len());
        }
        self.bodies.push(body);
    }
}

#[derive(Debug)]
struct TrackedUpload {
    upload: Arc<Upload>,
    /// The request's priority; `None` where not a byte of it has come, which may take as long as it
    /// likes and goes before any that has.
    priority: Option<i32>,
    checks: u32,
    /// Bytes at the last check, and of those the ones that came lately.
    received: u64,
    rate: u64,
    progressed: Option<Instant>,
}

impl TrackedUpload {
    fn is_over(&self) -> bool {
        // Its stream has dropped it.
        Arc::strong_count(&self.upload) == 1
    }

    fn may_be_aborted(&self) -> bool {
        self.checks >= MIN_CHECKS && (self.received > 0 || self.priority.is_none())
    }
}

/// A body that may be aborted to make room.
#[derive(Debug)]
struct Slow {
    /// Weak, as the other one says when its stream has dropped it.
    upload: Weak<Upload>,
    priority: i32,
    received: u64,
}

impl Slow {
    fn of(body: &TrackedUpload) -> Self {
        let TrackedUpload { upload, priority, received, .. } = body;
        Self { upload: Arc::downgrade(upload), priority: priority.unwrap_or(i32::MIN), received: *received }
    }

    /// Gives it up, if that is still to be done. Returns how many bytes come back.
    fn abort(&self, streams: &AbortedStreams) -> Option<u64> {
        // One is of the list of all.
        let is_over = self.upload.strong_count() < 2;
        let upload = self.upload.upgrade().filter(|upload| !is_over && upload.abort_reason().is_none())?;
        upload.abort(SLOW, streams);
        // Its stream goes, too.
        Some(self.received + STREAM)
    }
}

impl Uploads {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slow(&self) -> MutexGuard<'_, Vec<Slow>> {
        self.slow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_lowest(&self, slow: &[Slow]) {
        self.lowest.store(slow.last().map_or(NONE, |slow| slow.priority.into()), Relaxed);
    }

    /// A stream waits for a body of which so much is there. Without a priority nothing of its request has
    /// come.
    pub(super) fn begin(&self, received: u64, priority: Option<i32>, stream: &Waker) -> Arc<Upload> {
        let upload = Arc::new(Upload {
            received: AtomicU64::new(received),
            verdict: AtomicU8::new(0),
            stream: stream.clone(),
            task: tokio::task::try_id(),
        });
        self.open().push(TrackedUpload {
            upload: Arc::clone(&upload),
            priority,
            checks: 0,
            received: 0,
            rate: 0,
            progressed: None,
        });
        upload
    }

    /// Checks all bodies, and gives up those of which nothing came for `timeout`.
    pub(super) fn check(&self, now: Instant, timeout: Option<Duration>) {
        let mut open = self.open();
        open.bodies.retain_mut(|body| {
            if body.is_over() || body.upload.abort_reason().is_some() {
                return false;
            }
            let received = body.upload.received.load(Relaxed);
            body.checks = body.checks.saturating_add(1);
            body.rate = body.rate / 2 + received.saturating_sub(body.received);
            let last = *body.progressed.get_or_insert(now);
            if received != body.received {
                (body.received, body.progressed) = (received, Some(now));
            } else if body.priority.is_some()
                && timeout.is_some_and(|timeout| now.saturating_duration_since(last) >= timeout)
            {
                body.upload.abort(IDLE, &self.aborted);
                return false;
            }
            true
        });
        let may_go = open.bodies.iter().filter(|body| body.may_be_aborted());
        let mut slow: Vec<_> =
            may_go.map(|body| ((body.priority, body.rate, body.progressed), Slow::of(body))).collect();
        // Bodies that begin meanwhile don't wait for the rest.
        drop(open);
        slow.sort_by_key(|(order, _)| *order);
        let slow: Vec<Slow> = slow.into_iter().rev().map(|(_, slow)| slow).collect();
        let mut known = self.slow();
        self.note_lowest(&slow);
        *known = slow;
    }

    /// Gives up bodies of at most this priority that hold so many bytes together: those of the lowest
    /// first, and of these the slowest. Returns how many they hold with their streams: those are
    /// given back a moment later. Costs a load where none may go, and otherwise those that go.
    pub(super) fn abort_slow(&self, bytes: u64, highest: i32) -> u64 {
        if i64::from(highest) < self.lowest.load(Relaxed) {
            return 0;
        }
        let mut slow = self.slow();
        let mut freed = 0;
        while freed < bytes
            && let Some(next) = slow.pop_if(|slow| slow.priority <= highest)
        {
            freed += next.abort(&self.aborted).unwrap_or_default();
        }
        self.note_lowest(&slow);
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Budget, Kind, Reservation};

    const TIMEOUT: Option<Duration> = Some(Duration::from_secs(30));

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn body_without_progress_is_aborted() {
        let budget = Budget::default();
        let start = Instant::now();
        let stalls = budget.begin_upload(100, 0, Waker::noop());
        let trickles = budget.begin_upload(100, 0, Waker::noop());
        let ends = budget.begin_upload(100, 0, Waker::noop());
        for second in 0..30 {
            trickles.received(100 + second);
            budget.check_uploads(after(start, second), TIMEOUT);
            assert_eq!(stalls.abort_reason(), None, "{second}");
        }
        drop(ends);
        budget.check_uploads(after(start, 30), TIMEOUT);
        assert_eq!((stalls.abort_reason(), trickles.abort_reason()), (Some(AbortReason::Idle), None));
        assert_eq!(budget.uploads.open().bodies.len(), 1);
        budget.check_uploads(after(start, 1000), None);
        assert_eq!(trickles.abort_reason(), None, "without a timeout none is");
    }

    #[test]
    fn silent_streams_are_shed_first_and_never_time_out() {
        let budget = Arc::new(Budget::new(800, u64::MAX));
        let start = Instant::now();
        let mut held = Reservation::new(&budget, Kind::Bodies);
        held.set(800);
        let body = budget.begin_upload(800, -1, Waker::noop());
        let silent = budget.begin_silent(Waker::noop());
        (0..100).for_each(|second| {
            body.received(800 + second);
            budget.check_uploads(after(start, second), TIMEOUT);
        });
        assert_eq!(silent.abort_reason(), None);
        let mut new = Reservation::new(&budget, Kind::Bodies);
        assert!(new.grow_to(40, || Some(i32::MIN)).is_ok());
        assert_eq!((silent.abort_reason(), body.abort_reason()), (Some(AbortReason::Slow), None));
    }

    #[test]
    fn silent_streams_are_shed_for_new_streams() {
        let budget = Arc::new(Budget::new(160 * Budget::STREAM, 0));
        let start = Instant::now();
        let mut silent = Vec::new();
        while budget.open_stream() {
            silent.push(budget.begin_silent(Waker::noop()));
        }
        budget.close_stream();
        assert_eq!(silent.len(), 165);
        let aborted = || silent.iter().filter(|one| one.abort_reason().is_some()).count();
        for second in 0..4 {
            budget.check_uploads(after(start, second), TIMEOUT);
            budget.abort_silent();
            assert_eq!(aborted(), if second < 2 { 0 } else { 15 }, "{second}");
        }
        // They end, and the others stay.
        (0..15).for_each(|_| budget.close_stream());
        budget.check_uploads(after(start, 5), TIMEOUT);
        budget.abort_silent();
        assert_eq!((aborted(), budget.open_stream()), (15, true));
    }

    #[test]
    fn finished_uploads_are_removed() {
        let budget = Budget::default();
        let _open = budget.begin_upload(0, 0, Waker::noop());
        (0..10_000).for_each(|_| drop(budget.begin_upload(0, 0, Waker::noop())));
        assert!(budget.uploads.open().bodies.capacity() < 100);
        // One that ends for each that begins, beside many that stay.
        let stay: Vec<_> = (0..1000).map(|_| budget.begin_upload(0, 0, Waker::noop())).collect();
        (0..10_000).for_each(|_| drop(budget.begin_upload(0, 0, Waker::noop())));
        let open = budget.uploads.open();
        assert!(open.bodies.len() <= open.tidy_at && open.tidy_at <= 2 * (stay.len() + 1) + FEW);
    }

    #[test]
    fn slowest_bodies_are_shed_first() {
        let budget = Arc::new(Budget::new(800_000, u64::MAX));
        let start = Instant::now();
        let begin = || {
            let mut held = Reservation::new(&budget, Kind::Bodies);
            held.grow_to(100_000, || None).unwrap();
            (budget.begin_upload(100_000, 0, Waker::noop()), held)
        };
        let uploads: Vec<_> = (0..8).map(|_| begin()).collect();
        for second in 0..4 {
            // The third comes fastest, and the first two not at all.
            for (index, (upload, _)) in uploads.iter().enumerate().skip(2) {
                upload.received(100_000 + second * (10 - index as u64));
            }
            budget.check_uploads(after(start, second), TIMEOUT);
        }
        let aborted =
            || uploads.iter().map(|(upload, _)| upload.abort_reason().is_some()).collect::<Vec<_>>();
        let _young = budget.begin_upload(100_000, 0, Waker::noop());
        let mut new = Reservation::new(&budget, Kind::Bodies);
        assert!(new.grow_to(40_000, || None).is_ok(), "those that leave make room");
        let slow = [true, false, false, false, false, false, false, false];
        assert_eq!(aborted(), slow);
        assert!(new.grow_to(120_000, || None).is_err(), "nothing was given back yet");
        assert_eq!(aborted()[..3], [true, true, false]);
    }

    #[test]
    fn refusal_skips_upload_scan_without_candidates() {
        let budget = Arc::new(Budget::new(800, u64::MAX));
        let start = Instant::now();
        let mut held = Reservation::new(&budget, Kind::Bodies);
        held.set(800);
        let slow = budget.begin_upload(800, 1, Waker::noop());
        let young = budget.begin_upload(800, -1, Waker::noop());
        let is_refused = |priority: i32| {
            let mut new = Reservation::new(&budget, Kind::Bodies);
            new.grow_to(400, || Some(priority)).is_err()
        };
        {
            // Nobody has looked so far.
            let _locked = (budget.uploads.open(), budget.uploads.slow());
            assert!(is_refused(5));
        }
        drop(young);
        (0..4).for_each(|second| budget.check_uploads(after(start, second), TIMEOUT));
        {
            let _locked = (budget.uploads.open(), budget.uploads.slow());
            assert!(is_refused(0), "the only one has a higher priority");
        }
        {
            // Bodies begin meanwhile.
            let _locked = budget.uploads.open();
            assert!(is_refused(1));
        }
        assert_eq!(slow.abort_reason(), Some(AbortReason::Slow));
        budget.forget_promised();
        let _locked = (budget.uploads.open(), budget.uploads.slow());
        assert!(is_refused(5), "there is no other");
    }

    #[test]
    fn slow_bodies_are_not_shed_for_lower_priorities() {
        let budget = Arc::new(Budget::new(800, u64::MAX));
        let start = Instant::now();
        let priorities = [3, 1, 2, -1, 0, 1, 0, 0];
        let uploads: Vec<_> = priorities
            .iter()
            .map(|priority| {
                let mut held = Reservation::new(&budget, Kind::Bodies);
                held.grow_to(100, || None).unwrap();
                (budget.begin_upload(100, *priority, Waker::noop()), held)
            })
            .collect();
        for second in 0..4 {
            // The first comes slowest, and the last fastest.
            for (index, (upload, _)) in uploads.iter().enumerate() {
                upload.received(100 + second * index as u64);
            }
            budget.check_uploads(after(start, second), TIMEOUT);
        }
        // The priority of who needs room; the bodies that have left then.
        let table: [(Option<i32>, &[usize]); 5] = [
            (Some(-2), &[]),
            (Some(1), &[3]),
            (None, &[3, 4]),
            (Some(2), &[3, 4, 6]),
            (Some(0), &[3, 4, 6, 7]),
        ];
        for (priority, gone) in table {
            let mut new = Reservation::new(&budget, Kind::Bodies);
            let _ = new.grow_to(40, || priority);
            // As if those that were aborted had left.
            budget.forget_promised();
            let aborted = |index: &usize| uploads[*index].0.abort_reason().is_some();
            assert_eq!((0..uploads.len()).filter(aborted).collect::<Vec<_>>(), gone, "{priority:?}");
        }
        let mut new = Reservation::new(&budget, Kind::Bodies);
        assert!(new.grow_to(40, || Some(0)).is_err(), "those of higher priorities stay");
        assert!(uploads[..3].iter().all(|(upload, _)| upload.abort_reason().is_none()));
    }
}
