//! Busy periods of a link: how long it moved something, and what arrived in that time.
//!
//! A link that isn't idle does the same work whether transfers follow one another or share it (work conservation, Kleinrock
//! 1965): the time of a single one says how fast the link is only if it is known which, that of a busy period in any case.
//! It begins when the first of its prompts should have been computed, and ends with an arrival after which none of those
//! under way should have been. What was expected of other transfers has no part in that: expected too long, it would make
//! the link look slow, and the next ones longer.

use std::time::Duration;

/// Arrivals after which a period is cut that doesn't end.
const LONG: u32 = 16;

/// Ratio, at least, of what arrived in a period to what may have been moved of others at its ends.
const CERTAIN: f64 = 8.0;

/// Fewest arrivals of an observation, in one period or several: a single one says more of its prompt than of the link.
/// Not sizes decide it, as what makes them enough would then weigh more.
const FEWEST: u32 = 2;

/// Time after which a transfer that hasn't arrived is taken to wait for something else: a multiple of that after which it
/// should have, and the shortest.
const PATIENCE: u32 = 10;
const PATIENCE_AT_LEAST: Duration = Duration::from_secs(10);

/// Transfers that haven't arrived, and the period in which they move.
#[derive(Debug, Default)]
pub(super) struct BusyPeriods {
    moving: Vec<Transfer>,
    /// Period in which a transfer has arrived.
    period: Option<Period>,
    /// The link is busy, and nothing is learned until the next arrival.
    is_lost: bool,
    /// Time of the last arrival.
    arrived: Duration,
    /// Sums over periods that aren't observed yet, and their arrivals.
    sum: Observed,
    arrivals: u32,
}

#[derive(Debug)]
struct Transfer {
    number: u64,
    sent: Duration,
    /// Time at which its prompt should be computed; `None`: not known, nor what moves beside it.
    begins: Option<Duration>,
    /// Time from which on it isn't waited for.
    expires: Duration,
    /// Seconds that it takes alone, as configured.
    alone: f64,
}

impl Transfer {
    /// Returns `true` if it may have begun.
    fn has_begun(&self, now: Duration) -> bool {
        self.begins.is_none_or(|begins| begins <= now)
    }
}

#[derive(Debug, Default)]
struct Period {
    /// Time at which its first transfer was sent, and seconds from there until it began.
    sent: Duration,
    began: f64,
    /// Seconds that transfers take alone that were under way at its begin, of which a part may have been moved before.
    before: f64,
    /// Sum of the seconds that each arrived transfer takes alone, and number of these.
    alone: f64,
    arrivals: u32,
}

/// Times of busy periods, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Observed {
    /// From sending its first transfer until that should have begun.
    pub(super) began: f64,
    /// Times of its transfers alone, as configured.
    pub(super) alone: f64,
    /// From sending its first transfer until its last arrival.
    pub(super) seconds: f64,
}

impl BusyPeriods {
    /// Adds a transfer of this number that is sent now and takes `alone` seconds, above 0. `begins`: time at which its
    /// prompt should be computed; `None`: nothing is learned beside it. `until`: time at which the link should be idle.
    pub(super) fn book(
        &mut self,
        number: u64,
        begins: Option<Duration>,
        alone: f64,
        until: Duration,
        now: Duration,
    ) {
        let ends = begins.unwrap_or(now).saturating_add(until.saturating_sub(now));
        let patience = ends.saturating_sub(now).saturating_mul(PATIENCE).max(PATIENCE_AT_LEAST);
        let expires = now.saturating_add(patience);
        self.moving.push(Transfer { number, sent: now, begins, expires, alone });
    }

    /// Adds a transfer whose arrival won't be seen: nothing is learned beside it.
    pub(super) fn book_unseen(&mut self) {
        self.period = None;
        self.moving.iter_mut().for_each(|transfer| transfer.begins = None);
    }

    /// A transfer arrives. Returns the times of busy periods that have ended, if they are enough.
    pub(super) fn arrive(&mut self, number: u64, now: Duration) -> Option<Observed> {
        self.expire(now);
        let place = self.place(number)?;
        let period = self.period.take().or_else(|| self.first());
        let transfer = self.moving.swap_remove(place);
        self.arrived = self.arrived.max(now);
        let rest = self.rest(now);
        let Some(mut period) = period.filter(|_| transfer.begins.is_some()) else {
            self.begin(rest, now);
            return None;
        };
        period.alone += transfer.alone;
        period.arrivals += 1;
        let is_certain = CERTAIN * (period.before + rest) <= period.alone;
        if rest > 0.0 && !(is_certain && period.arrivals >= LONG) {
            self.period = Some(period);
            return None;
        }
        self.begin(rest, now);
        if is_certain { self.add(&period, now) } else { None }
    }

    /// Removes a transfer that will not arrive. It may have been moved in part.
    pub(super) fn leave(&mut self, number: u64, now: Duration) {
        let Some(place) = self.place(number) else { return };
        let transfer = self.moving.swap_remove(place);
        if transfer.has_begun(now) {
            self.lose(now);
        }
    }

    /// Removes the transfers that should have arrived long ago.
    fn expire(&mut self, now: Duration) {
        let before = self.moving.len();
        self.moving.retain(|transfer| transfer.expires > now);
        if self.moving.len() < before {
            self.lose(now);
        }
    }

    /// Learns nothing from the period.
    fn lose(&mut self, now: Duration) {
        self.period = None;
        self.is_lost = self.rest(now) > 0.0;
        self.arrived = self.arrived.max(now);
    }

    /// Forgets what wasn't observed yet: another speed is configured.
    pub(super) fn forget(&mut self) {
        // Those under way count by the one before.
        self.book_unseen();
        (self.sum, self.arrivals) = (Observed::default(), 0);
    }

    fn place(&self, number: u64) -> Option<usize> {
        self.moving.iter().position(|transfer| transfer.number == number)
    }

    /// Seconds that the transfers take alone that may have begun.
    fn rest(&self, now: Duration) -> f64 {
        let begun = self.moving.iter().filter(|transfer| transfer.has_begun(now));
        begun.map(|transfer| transfer.alone).sum()
    }

    /// The period of those that have been sent, where the link was idle before.
    fn first(&self) -> Option<Period> {
        if self.is_lost {
            return None;
        }
        let first = self.moving.iter().min_by_key(|transfer| transfer.begins)?;
        let began = first.begins?.max(self.arrived).saturating_sub(first.sent).as_secs_f64();
        Some(Period { sent: first.sent, began, ..Period::default() })
    }

    /// Begins a period at an arrival if others are under way, which take so long alone.
    fn begin(&mut self, rest: f64, now: Duration) {
        self.is_lost = false;
        self.period = (rest > 0.0).then(|| Period { sent: now, before: rest, ..Period::default() });
    }

    /// Adds a period that has ended.
    fn add(&mut self, period: &Period, now: Duration) -> Option<Observed> {
        self.arrivals += period.arrivals;
        self.sum.began += period.began;
        self.sum.alone += period.alone;
        self.sum.seconds += now.saturating_sub(period.sent).as_secs_f64();
        if self.arrivals < FEWEST {
            return None;
        }
        self.arrivals = 0;
        Some(std::mem::take(&mut self.sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Transfers that take 400 ms alone, sent at 0, whose prompts should be computed at these times in ms.
    fn booked(begins: &[u64]) -> BusyPeriods {
        let mut periods = BusyPeriods::default();
        for (number, begins) in (0..).zip(begins) {
            periods.book(number, Some(ms(*begins)), 0.4, ms(1200), ms(0));
        }
        periods
    }

    fn book(periods: &mut BusyPeriods, number: u64, begins: Option<Duration>, alone: f64, now: u64) {
        periods.book(number, begins, alone, ms(now + 1000), ms(now));
    }

    fn observed(began: f64, alone: f64, seconds: f64) -> Option<Observed> {
        let round = |value: f64| (value * 1e6).round() / 1e6;
        Some(Observed { began: round(began), alone: round(alone), seconds: round(seconds) })
    }

    /// The last of these arrivals in ms, in order.
    fn arrive(periods: &mut BusyPeriods, arrivals: &[(u64, u64)]) -> Option<Observed> {
        let each = arrivals.iter().map(|(number, at)| periods.arrive(*number, ms(*at)));
        let last = each.last().flatten()?;
        observed(last.began, last.alone, last.seconds)
    }

    #[test]
    fn link_does_the_same_work_in_order_and_shared() {
        let expected = observed(0.1, 1.2, 1.3);
        for arrivals in [[(0, 500), (1, 900), (2, 1300)], [(2, 1300), (0, 1300), (1, 1300)]] {
            assert_eq!(arrive(&mut booked(&[100, 150, 200]), &arrivals), expected);
        }
    }

    #[test]
    fn idle_link_begins_another_period() {
        let mut periods = booked(&[100, 600]);
        assert_eq!(arrive(&mut periods, &[(0, 500)]), None, "one alone says little");
        assert_eq!(arrive(&mut periods, &[(1, 1000)]), observed(0.1 + 0.6, 0.8, 0.5 + 1.0), "both together");
        book(&mut periods, 2, Some(ms(1100)), 0.4, 900);
        book(&mut periods, 3, Some(ms(1400)), 1.0, 900);
        assert_eq!(arrive(&mut periods, &[(2, 1500), (3, 2500)]), observed(0.2, 1.4, 1.6));
    }

    #[test]
    fn nothing_is_learned_beside_a_transfer_that_leaves() {
        let mut periods = booked(&[100, 150, 5000]);
        periods.leave(2, ms(200));
        assert_eq!(arrive(&mut periods, &[(0, 500), (1, 900)]), observed(0.1, 0.8, 0.9), "it had not begun");
        let mut periods = booked(&[100, 150, 200]);
        periods.leave(0, ms(300));
        assert_eq!(arrive(&mut periods, &[(1, 900), (2, 1300)]), None);
        (3..5).for_each(|number| book(&mut periods, number, Some(ms(2100)), 0.4, 2000));
        assert_eq!(arrive(&mut periods, &[(3, 2500), (4, 2900)]), observed(0.1, 0.8, 0.9));
    }

    #[test]
    fn nothing_is_learned_beside_transfers_that_are_not_seen() {
        let mut periods = booked(&[100, 150]);
        periods.book_unseen();
        assert_eq!(arrive(&mut periods, &[(0, 500), (1, 900)]), None);
        book(&mut periods, 2, None, 0.4, 1000);
        book(&mut periods, 3, Some(ms(1100)), 0.4, 1000);
        assert_eq!(arrive(&mut periods, &[(2, 1500), (3, 1900)]), None);
        (4..6).for_each(|number| book(&mut periods, number, Some(ms(2100)), 0.4, 2000));
        assert_eq!(arrive(&mut periods, &[(4, 2500), (5, 2900)]), observed(0.1, 0.8, 0.9));
    }

    #[test]
    fn transfer_that_never_arrives_leaves_the_link_idle() {
        let mut periods = booked(&[100]);
        let mut seen = Vec::new();
        for number in 1..1000 {
            let sent = ms(1000 * number);
            periods.book(number, Some(sent + ms(100)), 0.4, sent + ms(400), sent);
            seen.extend(periods.arrive(number, sent + ms(500)));
        }
        let expected = observed(0.2, 0.8, 1.0);
        let is_expected = |seen: &&Observed| observed(seen.began, seen.alone, seen.seconds) == expected;
        assert!(seen.len() > 400 && seen.iter().all(|seen| is_expected(&seen)), "{seen:?}");
    }

    #[test]
    fn link_that_is_never_idle_is_learned_from() {
        let mut periods = booked(&[100]);
        let mut seen = Vec::new();
        for number in 1..100 {
            book(&mut periods, number, Some(ms(400 * number)), 0.4, 400 * number - 100);
            seen.extend(periods.arrive(number - 1, ms(400 * number + 100)));
        }
        let factor = |observed: &Observed| (observed.seconds - observed.began) / observed.alone;
        assert!(seen.len() == 99 / LONG as usize, "{seen:?}");
        assert!(seen.iter().all(|observed| (factor(observed) - 1.0).abs() < 1e-6), "{seen:?}");
    }
}
