//! Service that flows get here and at other replicas, as replicas publish it. Sorted apart from the queue, which is
//! locked only to take it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::time::Nanos;
use crate::replicas::FlowService;

/// Flows of a priority that are published to other replicas, at most: those that got most.
const MOST_FLOWS: usize = 256;

/// Flows that got most of each priority. Those of a priority are in a row, before and after.
pub fn busiest(mut flows: Vec<FlowService>) -> Vec<FlowService> {
    let mut busiest = Vec::new();
    for band in flows.chunk_by_mut(|one, other| one.priority == other.priority) {
        if band.len() > MOST_FLOWS {
            band.select_nth_unstable_by_key(MOST_FLOWS, |flow| Reverse(flow.tokens));
        }
        busiest.extend(band.iter().take(MOST_FLOWS));
    }
    busiest
}

/// Service of a flow at another replica.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    /// Hash of its name that replicas have in common.
    pub(super) flow: u64,
    /// Tokens that it had got, as far as they weren't forgotten then.
    pub(super) tokens: u32,
    /// Nanoseconds since.
    pub(super) age: Nanos,
}

/// Service of flows at other replicas, by priority.
#[derive(Debug, Default)]
pub struct ServedElsewhere(BTreeMap<i32, Vec<Served>>);

impl ServedElsewhere {
    /// Service that each replica published, and its age.
    pub fn new(others: &[(Nanos, &[FlowService])]) -> Self {
        let mut bands: BTreeMap<i32, Vec<Served>> = BTreeMap::new();
        for (age, flows) in others {
            for FlowService { priority, flow, tokens } in *flows {
                let served = Served { flow: *flow, tokens: *tokens, age: *age };
                bands.entry(*priority).or_default().push(served);
            }
        }
        Self(bands)
    }

    /// Service of flows of a priority.
    pub(super) fn of(&self, priority: i32) -> &[Served] {
        self.0.get(&priority).map(Vec::as_slice).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_that_got_most_of_each_priority_are_published() {
        let band = |priority, flows| {
            (1..=flows).map(move |tokens| FlowService { priority, flow: u64::from(tokens) + 7, tokens })
        };
        let published = busiest(band(1, 300).chain(band(0, 2)).chain(band(-1, 257)).collect());
        let least = |priority| {
            let of_band = published.iter().filter(|flow| flow.priority == priority);
            (of_band.clone().count(), of_band.map(|flow| (flow.tokens, flow.flow)).min())
        };
        let expected = [(256, Some((45, 52))), (2, Some((1, 8))), (256, Some((2, 9)))];
        assert_eq!([1, 0, -1].map(least), expected);
        assert!(published.is_sorted_by(|one, next| one.priority >= next.priority));
        assert_eq!(busiest(Vec::new()), []);
    }
}
