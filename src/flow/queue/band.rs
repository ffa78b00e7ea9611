//! The queue of one priority, and all of them in their order.

use std::collections::BTreeSet;

use super::count::Count;
use super::fairness::Turns;
use super::flows::{FlowRef, Flows};
use super::line::Waiter;
use super::rank::Rank;
use super::service::Served;
use super::time::{NEVER, Nanos};
use crate::schedule::flow_control::{BandPosition, BandRules, FlowControlRules};

/// Time for which a band that no rule lists stays without requests, as in llm-d-router.
pub(super) const MAX_IDLE: Nanos = 600 * 1_000_000_000;

/// Bands that no rule lists, at most. Priorities are set by who runs the pool, so a few
/// are many; this bounds what a mistake there costs.
pub(super) const MAX_UNLISTED: usize = 128;

/// The queue of one priority.
#[derive(Debug)]
pub(super) struct Band {
    pub(super) priority: i32,
    pub(super) rules: BandRules,
    is_listed: bool,
    /// `true` if requests of this priority are known to be possible.
    is_known: bool,
    /// Number and bytes of the requests that wait.
    pub(super) waiting: Count,
    flows: Flows,
    turns: Turns,
    /// Time at which it was last in use.
    used: Nanos,
}

impl Band {
    fn new(priority: i32, rules: BandRules, is_listed: bool, now: Nanos) -> Self {
        let turns = Turns::new(&rules.fairness);
        let flows = Flows::new(turns.memory());
        Self {
            priority,
            rules,
            is_listed,
            is_known: false,
            waiting: Count::default(),
            flows,
            turns,
            used: now,
        }
    }

    /// Returns `true` if one more request of so many bytes may wait.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.waiting.has_room(bytes, self.rules.max_requests, self.rules.max_bytes)
    }

    /// The request at `slot` waits.
    pub(super) fn push(
        &mut self,
        flow: &str,
        rank: Rank,
        slot: u32,
        since: Nanos,
        bytes: u64,
        now: Nanos,
    ) -> FlowRef {
        let flow = self.flows.enter(flow, now);
        self.waiting += Count::one(bytes);
        self.used = now;
        self.turns.push(&mut self.flows, rank, Waiter { slot, flow: flow.index, since });
        flow
    }

    /// A request waits no more.
    pub(super) fn remove(&mut self, flow: FlowRef, rank: Rank, bytes: u64, now: Nanos) {
        self.turns.remove(&mut self.flows, flow.index, rank);
        self.left(flow.index, bytes, now);
    }

    /// The place of the request that goes next. It still counts as waiting until it has
    /// [left](Self::left).
    pub(super) fn pop(&mut self) -> Option<u32> {
        self.turns.pop(&mut self.flows).map(|waiter| waiter.slot)
    }

    /// A request that was taken with [`pop`](Self::pop) is gone.
    pub(super) fn left(&mut self, flow: u32, bytes: u64, now: Nanos) {
        self.waiting -= Count::one(bytes);
        self.used = now;
        self.flows.leave(flow, now);
    }

    /// A flow got something.
    pub(super) fn served(&mut self, flow: FlowRef, cost: f64, now: Nanos) {
        self.turns.served(&mut self.flows, flow, cost, now);
    }

    /// Returns `true` if its policy remembers what flows got.
    pub(super) fn remembers(&self) -> bool {
        self.turns.memory().is_some()
    }

    /// Flows that got something here, and their tokens.
    pub(super) fn service(&self, now: Nanos) -> Vec<(u64, u32)> {
        self.turns.service(&self.flows, now)
    }

    /// Takes service of flows at other replicas.
    pub(super) fn report_service(&mut self, others: &[Served], now: Nanos) {
        self.turns.report_service(&mut self.flows, others, now);
    }

    /// Flows that are kept.
    pub(super) fn flows(&self) -> usize {
        self.flows.len()
    }

    fn idle_until(&self) -> Option<Nanos> {
        (self.is_unused() && !self.is_known).then(|| self.used.saturating_add(MAX_IDLE))
    }

    /// Returns `true` if it can be removed: no rule lists it, and no request waits.
    fn is_unused(&self) -> bool {
        !self.is_listed && self.waiting.requests == 0
    }
}

/// All bands, the highest priority first.
#[derive(Debug, Default)]
pub(super) struct Bands {
    list: Vec<Band>,
}

impl Bands {
    /// The bands that the rules list.
    pub(super) fn new(listed: &[(i32, BandRules)]) -> Self {
        let mut bands = Self::default();
        for (priority, rules) in listed {
            if let Err(position) = bands.search(*priority) {
                bands.list.insert(position, Band::new(*priority, rules.clone(), true, 0));
            }
        }
        bands
    }

    /// Gives every band its limits by these rules, and makes those that they list. A band that they no
    /// longer list goes once it was empty for long.
    pub(super) fn reconfigure(&mut self, rules: &FlowControlRules, now: Nanos) {
        for band in &mut self.list {
            let BandRules { max_requests, max_bytes, .. } = *rules.band(band.priority);
            (band.rules.max_requests, band.rules.max_bytes) = (max_requests, max_bytes);
            let is_listed = rules.bands.iter().any(|(priority, _)| *priority == band.priority);
            if band.is_listed && !is_listed {
                band.used = now;
            }
            band.is_listed = is_listed;
        }
        for (priority, rules) in &rules.bands {
            if let Err(position) = self.search(*priority) {
                self.list.insert(position, Band::new(*priority, rules.clone(), true, now));
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Band> {
        self.list.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Band> {
        self.list.iter_mut()
    }

    /// The band at a place in the order.
    pub(super) fn at(&mut self, rank: usize) -> Option<&mut Band> {
        self.list.get_mut(rank)
    }

    /// The band of a priority.
    pub(super) fn get(&mut self, priority: i32) -> Option<&mut Band> {
        let position = self.search(priority).ok()?;
        self.list.get_mut(position)
    }

    /// The band of a priority, made where it is missing; `None` when there are too many
    /// and all are in use.
    pub(super) fn get_or_make(&mut self, priority: i32, rules: &BandRules, now: Nanos) -> Option<&mut Band> {
        if self.search(priority).is_err() {
            if self.list.iter().filter(|band| !band.is_listed).count() >= MAX_UNLISTED {
                let unused = self.list.iter().filter(|band| band.is_unused());
                let unused = unused.min_by_key(|band| (band.is_known, band.used))?.priority;
                self.list.retain(|band| band.priority != unused);
            }
            let position = self.search(priority).unwrap_or_else(|position| position);
            self.list.insert(position, Band::new(priority, rules.clone(), false, now));
        }
        self.get(priority)
    }

    /// Requests of these priorities may come: their bands are there before the first, and
    /// stay. Those of others may go once they were empty for long. Of too many priorities
    /// the highest get a band.
    pub(super) fn know(&mut self, priorities: &BTreeSet<i32>, rules: impl Fn(i32) -> BandRules, now: Nanos) {
        for band in &mut self.list {
            let is_known = priorities.contains(&band.priority);
            if band.is_known && !is_known {
                band.used = now;
            }
            band.is_known = is_known;
        }
        let mut unlisted = self.list.iter().filter(|band| !band.is_listed).count();
        for &priority in priorities.iter().rev() {
            if unlisted >= MAX_UNLISTED {
                break;
            }
            if let Err(position) = self.search(priority) {
                let mut band = Band::new(priority, rules(priority), false, now);
                band.is_known = true;
                self.list.insert(position, band);
                unlisted += 1;
            }
        }
    }

    /// Position of a band.
    pub(super) fn position(&self, rank: usize) -> Option<BandPosition> {
        let (first, last) = (self.list.first()?, self.list.last()?);
        let priority = self.list.get(rank)?.priority;
        let (highest, lowest) = (first.priority, last.priority);
        Some(BandPosition { rank, bands: self.list.len(), priority, lowest, highest })
    }

    /// Drops the unlisted bands that were empty for long.
    pub(super) fn sweep(&mut self, now: Nanos) {
        self.list.retain(|band| band.idle_until().is_none_or(|until| until > now));
    }

    /// Time of the next sweep.
    pub(super) fn next_sweep(&self) -> Nanos {
        self.list.iter().filter_map(Band::idle_until).min().unwrap_or(NEVER)
    }

    fn search(&self, priority: i32) -> Result<usize, usize> {
        self.list.binary_search_by(|band| priority.cmp(&band.priority))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::queue::Arrival;

    fn priorities(bands: &Bands) -> Vec<i32> {
        bands.iter().map(|band| band.priority).collect()
    }

    #[test]
    fn unlisted_bands_are_created_on_demand_and_swept() {
        let rules = BandRules::default();
        let mut bands = Bands::new(&[(0, rules.clone()), (7, rules.clone()), (0, rules.clone())]);
        assert_eq!(priorities(&bands), [7, 0]);
        bands.get_or_make(-3, &rules, 5).unwrap();
        bands.get_or_make(3, &rules, 6).unwrap();
        assert_eq!(priorities(&bands), [7, 3, 0, -3]);
        assert_eq!(bands.next_sweep(), 5 + MAX_IDLE);
        bands.sweep(5 + MAX_IDLE);
        assert_eq!(priorities(&bands), [7, 3, 0], "listed bands stay");
        let position = bands.position(1).unwrap();
        assert_eq!(position, BandPosition { rank: 1, bands: 3, priority: 3, lowest: 0, highest: 7 });
    }

    #[test]
    fn bands_of_objectives_exist_while_their_priority_does() {
        let mut bands = Bands::new(&[(0, BandRules::default())]);
        let rules = |priority: i32| BandRules {
            max_requests: if priority < 0 { 1 } else { 2 },
            ..BandRules::default()
        };
        bands.know(&[7, 0, -1].into(), rules, 5);
        assert_eq!(priorities(&bands), [7, 0, -1]);
        assert_eq!(bands.get(-1).unwrap().rules.max_requests, 1);
        assert_eq!(bands.get(0).unwrap().rules.max_requests, BandRules::default().max_requests, "as listed");
        bands.sweep(NEVER - 1);
        assert_eq!((priorities(&bands), bands.next_sweep()), (vec![7, 0, -1], NEVER));
        // One is known no longer: it stays for those that still come, and then goes.
        bands.know(&[7].into(), rules, 9);
        assert_eq!(bands.next_sweep(), 9 + MAX_IDLE);
        bands.sweep(9 + MAX_IDLE);
        assert_eq!(priorities(&bands), [7, 0]);
        // Of too many the highest have one, and a request makes its own when it comes.
        bands.know(&(1..=200).collect(), rules, 9);
        assert_eq!((bands.len(), bands.list[0].priority), (MAX_UNLISTED + 1, 200));
        assert!(bands.get_or_make(-5, &BandRules::default(), 10).is_some());
        assert_eq!(bands.len(), MAX_UNLISTED + 1);
    }

    #[test]
    fn reload_changes_bands_without_losing_requests() {
        let rules = |max_requests| BandRules { max_requests, ..BandRules::default() };
        let mut bands = Bands::new(&[(0, rules(10)), (7, rules(5))]);
        let arrival = Arrival {
            flow: "flow",
            priority: 7,
            bytes: 1,
            beside: 0,
            received: 0,
            since: 0,
            ttl: None,
            due: None,
        };
        let rank = Rank::of(rules(1).ordering, &arrival, 0);
        let flow = bands.get(7).unwrap().push("flow", rank, 3, 0, 1, 1);
        let listed = vec![(0, rules(2)), (4, rules(3))];
        let new = FlowControlRules { bands: listed, default_band: rules(1), ..FlowControlRules::default() };
        bands.reconfigure(&new, 9);
        assert_eq!(priorities(&bands), [7, 4, 0]);
        let limits: Vec<_> = bands.iter().map(|band| band.rules.max_requests).collect();
        assert_eq!(limits, [1, 3, 2]);
        let band = bands.get(7).unwrap();
        assert!(!band.has_room(1), "one waits, and that is the new limit");
        assert_eq!((band.waiting, band.pop()), (Count::one(1), Some(3)));
        band.left(flow.index, 1, 10);
        bands.sweep(10 + MAX_IDLE);
        assert_eq!(priorities(&bands), [4, 0], "the rules list it no longer");
    }

    #[test]
    fn unlisted_bands_are_bounded_and_the_longest_unused_one_goes() {
        let rules = BandRules::default();
        let mut bands = Bands::new(&[(0, rules.clone())]);
        for priority in 1..=MAX_UNLISTED as i32 + 10 {
            bands.get_or_make(priority, &rules, priority as Nanos).unwrap();
            assert!(bands.len() <= MAX_UNLISTED + 1);
        }
        assert!(bands.get(0).is_some() && bands.get(10).is_none() && bands.get(11).is_some());
        for band in &mut bands.list {
            band.waiting += Count::one(1);
        }
        assert!(bands.get_or_make(-1, &rules, 0).is_none(), "all are in use");
    }
}
