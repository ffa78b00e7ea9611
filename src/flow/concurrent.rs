//! Lets threads decide at the same time although each decision has to count what the ones before it
//! booked: optimistic concurrency control (Kung and Robinson 1981, "On Optimistic Methods for
//! Concurrency Control").
//!
//! A decision notes how many bookings are complete, chooses, and then begins its own, unless one
//! that it may not have counted went to an endpoint that it has chosen: then it chooses again.
//! A booking makes its endpoint worse for others and no other one better, so those that went
//! elsewhere would not have changed the choice. Nor would, but for less than any estimate is off
//! by, those of small requests at an endpoint that has many times as many.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use crate::schedule::Decision;

/// Times that a request is decided again before it is booked all the same.
const MOST_AGAIN: u32 = 8;

/// Endpoints of the last bookings that are remembered.
const RECENT: usize = 64;

/// Bytes of a body up to which a request is small: its prompt takes no endpoint long.
pub(super) const SMALL_BODY: usize = 16 << 10;

/// Requests that an endpoint has for each small one that a decision need not count.
const EACH: i64 = 8;

/// Slot numbers of the endpoints that a decision books, and their requests in flight.
type Places = SmallVec<[(u32, i64); 3]>;

/// A booking at one endpoint.
#[derive(Clone, Copy, Debug, Default)]
struct Booking {
    number: u64,
    slot: u32,
    is_small: bool,
}

/// The order of bookings. Every one writes here, so that it shares no cache line with what decisions
/// only read.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Bookings {
    /// All bookings with smaller numbers are complete.
    complete: AtomicU64,
    inner: Mutex<Inner>,
    /// Serialises retried decisions, so that they don't conflict again.
    again: Mutex<()>,
}

#[derive(Debug)]
struct Inner {
    /// Number of the next booking.
    next: u64,
    /// The last bookings, as a ring.
    recent: [Booking; RECENT],
    /// Entries ever written to the ring.
    written: usize,
    /// Numbers of the bookings that aren't complete.
    open: SmallVec<[u64; 8]>,
}

impl Default for Inner {
    fn default() -> Self {
        Self { next: 0, recent: [Booking::default(); RECENT], written: 0, open: SmallVec::new() }
    }
}

impl Inner {
    /// Returns `true` if bookings from the number `since` on would have changed the choice of these
    /// endpoints, or may have. `counts_small`: every booking changes it, small ones too.
    fn conflicts(&self, since: u64, places: &[(u32, i64)], counts_small: bool) -> bool {
        if since == self.next {
            return false;
        }
        let known = self.written.min(RECENT);
        // The ring may have forgotten one.
        if known == RECENT && self.recent[self.written % RECENT].number >= since {
            return true;
        }
        // Their numbers rise, so that the latest are all that has to be looked at.
        let latest = || (1..=known).map(|back| &self.recent[(self.written - back) % RECENT]);
        let uncounted = |slot| {
            let since = latest().take_while(move |booking| booking.number >= since);
            since.filter(move |booking| booking.slot == slot)
        };
        places.iter().any(|&(slot, in_flight)| {
            let most = in_flight / EACH;
            let mut small = 0;
            uncounted(slot).any(|booking| {
                small += 1;
                counts_small || !booking.is_small || small > most
            })
        })
    }

    fn begin(&mut self, places: &[(u32, i64)], is_small: bool) -> u64 {
        let number = self.next;
        self.next += 1;
        for &(slot, _) in places {
            self.recent[self.written % RECENT] = Booking { number, slot, is_small };
            self.written += 1;
        }
        self.open.push(number);
        number
    }

    /// Returns the number below which all bookings are complete.
    fn end(&mut self, number: u64) -> u64 {
        self.open.retain(|open| *open != number);
        self.open.iter().copied().min().unwrap_or(self.next)
    }
}

/// A booking that is under way; complete when it is dropped.
#[derive(Debug)]
pub(super) struct Begun<'a> {
    bookings: &'a Bookings,
    number: u64,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let mut inner = self.bookings.inner();
        let complete = inner.end(self.number);
        // Whoever reads it counts all that was booked before.
        self.bookings.complete.store(complete, Release);
    }
}

impl Bookings {
    /// Decides and begins the booking: `decide` runs again while another thread books an endpoint
    /// that it chose. `is_small`: the booking is one that others need not count where there are many;
    /// `counts_small`: the decision counts them all the same. The two are apart, as the decision before
    /// or after this one may be by another policy.
    ///
    /// # Errors
    /// Errors of `decide`.
    pub(super) fn decide<T, E>(
        &self,
        (is_small, counts_small): (bool, bool),
        decision: impl Fn(&T) -> &Decision,
        mut decide: impl FnMut() -> Result<T, E>,
    ) -> Result<(T, Begun<'_>), E> {
        let mut again = None;
        let mut times = 0;
        loop {
            let since = self.complete.load(Acquire);
            let decided = decide()?;
            let places = booked(decision(&decided));
            let mut inner = self.inner();
            if times == MOST_AGAIN || !inner.conflicts(since, &places, counts_small) {
                let number = inner.begin(&places, is_small);
                drop(inner);
                return Ok((decided, Begun { bookings: self, number }));
            }
            drop(inner);
            times += 1;
            if again.is_none() {
                again = Some(self.again.lock().unwrap_or_else(PoisonError::into_inner));
            }
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The endpoints that get work: the first pick of every profile.
fn booked(decision: &Decision) -> Places {
    let first = decision.runs().iter().filter_map(|run| decision.endpoints_of(run).next());
    first.map(|endpoint| (endpoint.slot().number(), endpoint.load().in_flight())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uncounted_bookings_of_the_same_endpoint_conflict() {
        let mut inner = Inner::default();
        let first = inner.begin(&[(7, 0)], false);
        assert!(inner.conflicts(0, &[(3, 0), (7, 0)], false));
        assert!(!inner.conflicts(0, &[(3, 0)], false));
        let second = inner.begin(&[(8, 0), (9, 0)], false);
        assert_eq!(inner.end(second), first, "the first is still open");
        assert!(inner.conflicts(first, &[(9, 0)], false), "complete, and not counted by who asked before");
        assert_eq!(inner.end(first), 2);
        assert!(!inner.conflicts(2, &[(7, 0), (8, 0), (9, 0)], false));
    }

    #[test]
    fn small_bookings_conflict_where_few_requests_are() {
        let mut inner = Inner::default();
        inner.begin(&[(7, 0)], true);
        assert!(inner.conflicts(0, &[(7, EACH - 1)], false));
        assert!(!inner.conflicts(0, &[(7, EACH)], false));
        assert!(inner.conflicts(0, &[(7, EACH)], true), "a policy with a limit counts those of one without");
        inner.begin(&[(7, 0)], true);
        assert!(inner.conflicts(0, &[(7, 2 * EACH - 1)], false), "two of them");
        assert!(!inner.conflicts(0, &[(7, 2 * EACH)], false));
        inner.begin(&[(7, 0)], false);
        assert!(inner.conflicts(0, &[(7, 1000 * EACH)], false), "one may be long");
    }

    #[test]
    fn forgotten_bookings_conflict_with_everything() {
        let mut inner = Inner::default();
        for slot in 0..RECENT as u32 {
            let number = inner.begin(&[(slot, 0)], true);
            inner.end(number);
        }
        assert!(inner.conflicts(0, &[(1000, 0)], false), "what came before the oldest is not known");
        assert!(!inner.conflicts(1, &[(1000, 0)], false));
        let last = RECENT as u64;
        assert!(!inner.conflicts(last, &[(RECENT as u32 - 1, 0)], false));
    }
}
