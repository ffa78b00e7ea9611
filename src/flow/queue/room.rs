//! Share of the pool's free room, where requests wait at other replicas, too.
//!
//! Every replica sees the same room. In a window of about 20 ms, as often as replicas tell each other their queues, each
//! takes no more than its share (windows differ in length, so that none is always the first): room goes to priorities from the highest down, and within one by how many requests wait where.
//! A part of a request is a chance of one. Without requests at others, and for what is free beyond what waits, there is
//! no limit. Room that another leaves for 100 ms is taken: it may be dead, or see less room.

use usher_core::random::mix;

use super::time::Nanos;
use crate::replicas::QueueState;

/// Time for which a share holds on average: half of it at least, and half more at most.
pub(super) const WINDOW: Nanos = 20_000_000;

/// Time for which room is left to a replica that takes none.
pub(super) const PATIENCE: Nanos = 5 * WINDOW;

/// Queue of another replica.
#[derive(Debug)]
struct Other {
    origin: u128,
    state: QueueState,
    /// Time since which there is room that it doesn't take.
    since: Nanos,
    /// It took none for too long, and counts nothing until it does.
    is_stuck: bool,
}

/// Requests of a band that wait here, and the pool's room for them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Band {
    pub(super) priority: i32,
    pub(super) waiting: f64,
    /// Requests that fit up to its ceiling.
    pub(super) room: f64,
}

/// Queues of other replicas, and what they leave.
#[derive(Debug, Default)]
pub(super) struct Shares {
    others: Vec<Other>,
    /// Requests that this replica has let go.
    dispatched: u64,
    /// End of the window.
    until: Nanos,
    /// Requests that may go until then.
    quota: f64,
    /// A request waits though the pool has room.
    is_spent: bool,
    seed: u64,
}

impl Shares {
    /// Shares of which the chance follows from a seed.
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Takes the queues of other replicas in place of those that were known.
    pub(super) fn report(&mut self, now: Nanos, others: &[(u128, QueueState)]) {
        let before = std::mem::take(&mut self.others);
        let other = |(origin, state): &(u128, QueueState)| {
            let is_same =
                |other: &&Other| other.origin == *origin && other.state.dispatched == state.dispatched;
            let (since, is_stuck) =
                before.iter().find(is_same).map_or((now, false), |other| (other.since, other.is_stuck));
            Other { origin: *origin, state: state.clone(), since, is_stuck }
        };
        self.others = others.iter().map(other).collect();
    }

    /// Begins a window, if the last is over. `own` are the bands with waiting requests, the highest first.
    pub(super) fn begin(&mut self, now: Nanos, own: &[Band]) {
        let Some(lowest) = own.last() else { return };
        // Without a look for long it isn't known whether there was room.
        let is_late = now >= self.until.saturating_add(PATIENCE);
        for other in &mut self.others {
            let competes =
                other.state.waiting.first().is_some_and(|(highest, _)| *highest >= lowest.priority);
            if is_late || lowest.room < 1.0 || !competes {
                other.since = now;
            }
            other.is_stuck |= now.saturating_sub(other.since) >= PATIENCE;
        }
        let draw = |number| mix(self.seed ^ mix(now) ^ number) as f64 / u64::MAX as f64;
        let (length, chance) = (0.5 + draw(1), draw(2));
        self.until = now.saturating_add((length * WINDOW as f64) as Nanos);
        let share = self.share(own);
        self.quota = share.floor() + f64::from(u8::from(chance < share.fract()));
    }

    /// Requests of these bands that are this replica's share of the room.
    fn share(&self, own: &[Band]) -> f64 {
        let others = |of: &dyn Fn(i32) -> bool| -> f64 {
            let counted = self.others.iter().filter(|other| !other.is_stuck);
            let bands = counted.flat_map(|other| &other.state.waiting);
            bands.filter(|(priority, _)| of(*priority)).map(|(_, requests)| f64::from(*requests)).sum()
        };
        let (mut share, mut given, mut above) = (0.0, 0.0, None);
        for band in own {
            let is_between =
                |priority: i32| priority > band.priority && above.is_none_or(|above| priority < above);
            given += others(&is_between);
            let same = others(&|priority| priority == band.priority);
            let part = (band.room - given).clamp(0.0, band.waiting + same);
            share += part * band.waiting / (band.waiting + same);
            given += part;
            above = Some(band.priority);
        }
        // For requests that come within the window.
        share + own.last().map_or(0.0, |lowest| (lowest.room - given).max(0.0))
    }

    /// Takes one request of the share; `false`: none is left.
    pub(super) fn take(&mut self) -> bool {
        if self.others.is_empty() {
            return true;
        }
        self.is_spent = self.quota < 1.0;
        self.quota -= 1.0;
        !self.is_spent
    }

    /// Forgets that a request waits for its share: none may wait any more.
    pub(super) fn rest(&mut self) {
        self.is_spent = false;
    }

    /// A request was let go.
    pub(super) fn count(&mut self) {
        self.dispatched += 1;
    }

    /// Requests that were let go.
    pub(super) fn dispatched(&self) -> u64 {
        self.dispatched
    }

    /// Returns `true` if a window is to begin: others have requests waiting, and the last is over.
    pub(super) fn is_due(&self, now: Nanos) -> bool {
        !self.others.is_empty() && now >= self.until
    }

    /// End of the window, if requests wait for it.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.is_spent.then_some(self.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn other(origin: u128, waiting: &[(i32, u32)], dispatched: u64) -> (u128, QueueState) {
        (origin, QueueState { waiting: waiting.to_vec(), dispatched })
    }

    fn bands(bands: &[(i32, f64, f64)]) -> Vec<Band> {
        bands.iter().map(|&(priority, waiting, room)| Band { priority, waiting, room }).collect()
    }

    #[test]
    fn room_is_shared_by_priority_and_then_by_what_waits() {
        // Queues of others, ours with the room of each band, and our share.
        type Row = (&'static [(i32, u32)], &'static [(i32, f64, f64)], f64);
        let table: [Row; 12] = [
            (&[(0, 10)], &[(0, 10.0, 8.0)], 4.0),
            (&[(0, 30)], &[(0, 10.0, 8.0)], 2.0),
            (&[(0, 10)], &[(0, 10.0, 1.0)], 0.5),
            (&[(0, 10)], &[(0, 10.0, 0.0)], 0.0),
            (&[(5, 3)], &[(0, 10.0, 8.0)], 5.0),
            (&[(5, 9)], &[(0, 10.0, 8.0)], 0.0),
            (&[(-5, 9)], &[(0, 10.0, 8.0)], 8.0),
            (&[(0, 2)], &[(0, 3.0, 8.0)], 6.0),
            (&[(5, 4), (0, 4)], &[(5, 4.0, 10.0), (0, 4.0, 10.0)], 5.0),
            (&[(3, 4)], &[(5, 2.0, 10.0), (0, 9.0, 10.0)], 6.0),
            (&[(5, 4)], &[(5, 4.0, 6.0), (0, 4.0, 2.0)], 3.0),
            (&[(0, 10)], &[(0, 10.0, f64::INFINITY)], f64::INFINITY),
        ];
        for (others, own, share) in table {
            let mut shares = Shares::new(1);
            shares.report(0, &[other(1, others, 0)]);
            assert_eq!(shares.share(&bands(own)), share, "{others:?} {own:?}");
        }
    }

    #[test]
    fn replica_that_leaves_room_counts_nothing_until_it_takes_some() {
        let mut shares = Shares::new(1);
        let own = bands(&[(0, 10.0, 10.0)]);
        let mut now = 5;
        let mut quota = |shares: &mut Shares, pause: Nanos, room: f64| {
            now += pause;
            shares.begin(now, &[Band { room, ..own[0] }]);
            shares.quota
        };
        shares.report(5, &[other(1, &[(7, 1000)], 3)]);
        for _ in 0..20 {
            assert_eq!(quota(&mut shares, WINDOW, 0.0), 0.0, "nobody can take what isn't there");
        }
        for _ in 0..4 {
            assert_eq!(quota(&mut shares, WINDOW, 10.0), 0.0);
        }
        assert_eq!(quota(&mut shares, WINDOW, 10.0), 10.0);
        assert_eq!(quota(&mut shares, 1000 * WINDOW, 10.0), 10.0, "it is still stuck");
        shares.report(5, &[other(1, &[(7, 1001)], 3)]);
        assert_eq!(quota(&mut shares, WINDOW, 10.0), 10.0, "requests that come take nothing");
        shares.report(5 + 1100 * WINDOW, &[other(1, &[(7, 1000)], 4)]);
        assert_eq!(quota(&mut shares, WINDOW, 10.0), 0.0);
        assert_eq!(quota(&mut shares, 1000 * WINDOW, 10.0), 0.0, "it wasn't looked at meanwhile");
    }

    #[test]
    fn parts_of_a_request_are_taken_as_often_as_they_are_large() {
        let mut shares = Shares::new(9);
        shares.report(0, &[other(1, &[(0, 30)], 0)]);
        let mut taken = 0;
        for window in 1..=10_000 {
            shares.report(window * WINDOW, &[other(1, &[(0, 30)], window)]);
            shares.begin(window * WINDOW, &bands(&[(0, 10.0, 1.0)]));
            taken += u32::from(shares.take());
            assert!(!shares.take());
            let next = shares.next().unwrap() - window * WINDOW;
            assert!((WINDOW / 2..=WINDOW * 3 / 2).contains(&next), "{next}");
        }
        assert!((2300..2700).contains(&taken), "{taken}");
        shares.report(0, &[]);
        assert!(shares.take(), "without others there is no limit");
    }
}
