//! Requests that come after others: a turn once the turn before was answered, a join once
//! all of its branches were.

use std::time::Duration;

use crate::replay::workload::Arrival;

/// Counts for every request the requests that have to end before it.
#[derive(Debug, Default)]
pub(in crate::replay) struct Chain {
    /// Requests that have yet to end, by position.
    missing: Vec<u32>,
    /// Requests that wait for this one, by position.
    next: Vec<Vec<u32>>,
}

impl Chain {
    /// The chain of these arrivals.
    pub(in crate::replay) fn new(arrivals: &[Arrival]) -> Self {
        let mut next = vec![Vec::new(); arrivals.len()];
        for (position, arrival) in (0u32..).zip(arrivals) {
            for before in &arrival.after {
                if let Some(next) = next.get_mut(*before as usize) {
                    next.push(position);
                }
            }
        }
        let known = |before: &&u32| (**before as usize) < arrivals.len();
        let missing = arrivals.iter().map(|arrival| arrival.after.iter().filter(known).count() as u32);
        Self { missing: missing.collect(), next }
    }

    /// The request at this position has ended. Returns when those come that waited for no
    /// other, and their positions.
    pub(in crate::replay) fn ended(
        &mut self,
        position: usize,
        arrivals: &[Arrival],
        now: Duration,
    ) -> Vec<(Duration, usize)> {
        let waiting = self.next.get_mut(position).map(std::mem::take).unwrap_or_default();
        let mut due = Vec::new();
        for position in waiting.into_iter().map(|position| position as usize) {
            self.missing[position] -= 1;
            if self.missing[position] == 0 {
                due.push((now.saturating_add(arrivals[position].at), position));
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn arrival(pause: u32, after: &[u32]) -> Arrival {
        Arrival { at: pause * MS, after: after.into(), ..Arrival::default() }
    }

    #[test]
    fn join_waits_its_pause_after_the_last_branch() {
        let arrivals = [arrival(0, &[]), arrival(5, &[0]), arrival(7, &[0]), arrival(1, &[1, 2])];
        let mut chain = Chain::new(&arrivals);
        assert_eq!(chain.ended(0, &arrivals, 100 * MS), [(105 * MS, 1), (107 * MS, 2)]);
        assert_eq!(chain.ended(2, &arrivals, 200 * MS), []);
        assert_eq!(chain.ended(1, &arrivals, 300 * MS), [(301 * MS, 3)]);
        assert_eq!(chain.ended(3, &arrivals, 400 * MS), []);
    }
}
