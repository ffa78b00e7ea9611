//! Queue of the transfers on a link: each begins when the one before it should have ended.

use std::collections::VecDeque;
use std::time::Duration;

/// Transfers that were booked and should not have ended.
#[derive(Debug, Default)]
pub(super) struct LinkQueue {
    transfers: VecDeque<Queued>,
    next: u64,
    /// Begin of the first transfer, and end of the last.
    since: Duration,
    until: Duration,
}

#[derive(Debug)]
struct Queued {
    number: u64,
    takes: Duration,
    /// Its arrival will be seen.
    is_seen: bool,
}

impl LinkQueue {
    /// End of the last transfer; past if the link is idle.
    pub(super) fn until(&self) -> Duration {
        self.until
    }

    /// Adds a transfer that takes so long alone. Returns its number.
    pub(super) fn add(&mut self, takes: Duration, is_seen: bool, now: Duration) -> u64 {
        self.advance(now);
        if self.transfers.is_empty() {
            (self.since, self.until) = (now, now);
        }
        let number = self.next;
        self.next += 1;
        self.until = self.until.saturating_add(takes);
        self.transfers.push_back(Queued { number, takes, is_seen });
        number
    }

    /// Removes the rest of a transfer that has arrived or never will.
    pub(super) fn remove(&mut self, number: u64, now: Duration) {
        self.advance(now);
        let Some(place) = self.transfers.iter().position(|queued| queued.number == number) else { return };
        let Some(Queued { takes, .. }) = self.transfers.remove(place) else { return };
        let mut rest = takes;
        if place == 0 {
            rest = takes.saturating_sub(now.saturating_sub(self.since));
            self.since = now;
        }
        self.until = self.until.saturating_sub(rest);
    }

    /// Returns `true` if a transfer is on the link whose arrival won't be seen.
    pub(super) fn has_unseen(&mut self, now: Duration) -> bool {
        self.advance(now);
        self.transfers.iter().any(|queued| !queued.is_seen)
    }

    /// Removes the transfers that should have ended.
    fn advance(&mut self, now: Duration) {
        while let Some(first) = self.transfers.front() {
            let end = self.since.saturating_add(first.takes);
            if end > now {
                return;
            }
            self.since = end;
            self.transfers.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn queue(takes: &[u64]) -> LinkQueue {
        let mut queue = LinkQueue::default();
        takes.iter().for_each(|takes| _ = queue.add(ms(*takes), true, ms(0)));
        queue
    }

    #[test]
    fn removed_transfer_leaves_its_rest_to_those_behind_it() {
        let mut queue = queue(&[1000, 1000, 1000]);
        queue.remove(0, ms(400));
        assert_eq!(queue.until(), ms(2400), "the second begins at once");
        queue.remove(1, ms(1200));
        assert_eq!(queue.until(), ms(2200));
        queue.remove(1, ms(1200));
        assert_eq!(queue.until(), ms(2200), "removed already");
        queue.remove(2, ms(3000));
        assert_eq!(queue.until(), ms(2200), "ended already");
        assert_eq!((queue.add(ms(10), true, ms(5000)), queue.until()), (3, ms(5010)));
    }

    #[test]
    fn transfer_in_the_middle_is_removed_in_full() {
        let mut queue = queue(&[1000, 500, 1000]);
        queue.remove(1, ms(400));
        assert_eq!(queue.until(), ms(2000));
        queue.remove(2, ms(1100));
        assert_eq!(queue.until(), ms(1100), "it was the first by then");
    }

    #[test]
    fn unseen_transfer_counts_until_it_should_have_ended() {
        let mut queue = queue(&[100]);
        queue.add(ms(100), false, ms(0));
        assert_eq!([150, 200].map(|now| queue.has_unseen(ms(now))), [true, false]);
    }
}
