//! The flows of a band. A flow is there while requests of it wait; longer only where it
//! is remembered what it got, and then in a bounded number.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use xxhash_rust::xxh3::{xxh3_64, xxh3_128_with_seed};

use super::line::Line;
use super::time::Nanos;

/// Flows that are remembered while nothing of theirs waits. The half that was idle longest
/// is forgotten beyond that: clients may name a new flow with every request.
pub(super) const MAX_IDLE: usize = 8192;

/// Takes the hash of a name as it is.
#[derive(Debug, Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
    fn write_u128(&mut self, hash: u128) {
        self.0 = hash as u64;
    }
}

/// A flow that may be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowRef {
    pub(super) index: u32,
    generation: u32,
}

/// Requests that share a name and a priority.
#[derive(Debug)]
pub(super) struct Flow {
    name: u128,
    /// Number of waiting requests.
    pub(super) waiting: u64,
    /// Requests that wait, where they are kept by flow.
    pub(super) line: Line,
    /// Position among the flows that take turns.
    pub(super) turn: u64,
    /// Service that it got so far, in units of the policy.
    pub(super) service: f64,
    /// Hash of its name that replicas have in common; 0 where nothing is remembered.
    pub(super) shared: u64,
    /// Time at which something of it was last seen.
    touched: Nanos,
}

/// Time for which flows are remembered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub(super) ttl: Nanos,
    pub(super) sweep: Nanos,
}

/// The flows of a band.
#[derive(Debug)]
pub(super) struct Flows {
    /// By the hashes of their names, which clients choose, each as long as headers may be.
    /// The seed is secret, so names can hardly be made to collide; two that do share a flow.
    by_name: HashMap<u128, u32, BuildHasherDefault<AsItIs>>,
    seed: u64,
    places: Vec<Place>,
    free: Vec<u32>,
    idle: usize,
    memory: Option<Memory>,
    next_sweep: Nanos,
}

#[derive(Debug)]
struct Place {
    generation: u32,
    flow: Option<Flow>,
}

impl Flows {
    /// No flows yet. With a memory they stay when nothing of theirs waits.
    pub(super) fn new(memory: Option<Memory>) -> Self {
        Self {
            by_name: HashMap::default(),
            seed: rand::random(),
            places: Vec::new(),
            free: Vec::new(),
            idle: 0,
            memory,
            next_sweep: 0,
        }
    }

    /// Flows that are there.
    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// One more request of a flow waits.
    pub(super) fn enter(&mut self, id: &str, now: Nanos) -> FlowRef {
        let name = self.name(id);
        let index = match self.by_name.get(&name) {
            Some(index) => *index,
            None => {
                let shared = if self.memory.is_some() { shared_name(id) } else { 0 };
                self.make(name, shared)
            }
        };
        let was_idle = match self.get_mut(index) {
            Some(flow) => {
                flow.waiting += 1;
                flow.touched = now;
                flow.waiting == 1
            }
            None => false,
        };
        if was_idle {
            self.idle = self.idle.saturating_sub(1);
        }
        let generation = self.places.get(index as usize).map_or(0, |place| place.generation);
        FlowRef { index, generation }
    }

    /// One request of it waits no more.
    pub(super) fn leave(&mut self, index: u32, now: Nanos) {
        let memory = self.memory;
        let Some(flow) = self.get_mut(index) else { return };
        flow.waiting = flow.waiting.saturating_sub(1);
        flow.touched = now;
        if flow.waiting > 0 {
            return;
        }
        let Some(memory) = memory else {
            self.forget(index);
            return;
        };
        // What it took for many is not kept for none.
        flow.line = Line::default();
        self.idle += 1;
        if self.idle > MAX_IDLE {
            self.forget_older_half();
        } else if now >= self.next_sweep {
            self.next_sweep = now.saturating_add(memory.sweep);
            if let Some(limit) = now.checked_sub(memory.ttl) {
                self.forget_untouched_since(limit);
            }
        }
    }

    /// The flow, if it is still there.
    pub(super) fn find(&mut self, flow: FlowRef, now: Nanos) -> Option<&mut Flow> {
        let place = self.places.get_mut(flow.index as usize)?;
        let flow = place.flow.as_mut().filter(|_| place.generation == flow.generation)?;
        flow.touched = now;
        Some(flow)
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Flow> {
        self.places.get_mut(index as usize)?.flow.as_mut()
    }

    /// All flows, to read.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Flow> {
        self.places.iter().filter_map(|place| place.flow.as_ref())
    }

    /// All flows.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Flow> {
        self.places.iter_mut().filter_map(|place| place.flow.as_mut())
    }

    fn name(&self, id: &str) -> u128 {
        xxh3_128_with_seed(id.as_bytes(), self.seed)
    }

    fn make(&mut self, name: u128, shared: u64) -> u32 {
        let flow =
            Flow { name, waiting: 0, line: Line::default(), turn: 0, service: 0.0, shared, touched: 0 };
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.places.push(Place { generation: 0, flow: None });
                (self.places.len() - 1) as u32
            }
        };
        if let Some(place) = self.places.get_mut(index as usize) {
            place.flow = Some(flow);
        }
        self.idle += 1;
        self.by_name.insert(name, index);
        index
    }

    fn forget(&mut self, index: u32) {
        let Some(place) = self.places.get_mut(index as usize) else { return };
        let Some(name) = place.flow.as_ref().map(|flow| flow.name) else { return };
        // Where it is: taken out, all of it would be read and written once more.
        place.flow = None;
        place.generation = place.generation.wrapping_add(1);
        self.by_name.remove(&name);
        self.free.push(index);
    }

    fn forget_older_half(&mut self) {
        let mut ages: Vec<Nanos> =
            self.iter_mut().filter(|flow| flow.waiting == 0).map(|flow| flow.touched).collect();
        let middle = ages.len() / 2;
        if middle > 0 {
            let (_, median, _) = ages.select_nth_unstable(middle);
            let median = *median;
            self.forget_untouched_since(median);
        }
    }

    /// Forgets the flows of which nothing waits and nothing was seen since.
    fn forget_untouched_since(&mut self, limit: Nanos) {
        let old: Vec<u32> = (0u32..)
            .zip(&self.places)
            .filter(|(_, place)| {
                place.flow.as_ref().is_some_and(|flow| flow.waiting == 0 && flow.touched <= limit)
            })
            .map(|(index, _)| index)
            .collect();
        self.idle = self.idle.saturating_sub(old.len());
        old.into_iter().for_each(|index| self.forget(index));
    }
}

/// Hash of a flow's name that is the same at all replicas. Whoever can make two names collide can as well send the
/// other's name.
pub(super) fn shared_name(id: &str) -> u64 {
    xxh3_64(id.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_without_history_is_removed_with_its_last_request() {
        let mut flows = Flows::new(None);
        for number in 0..50_000u32 {
            let flow = flows.enter(&number.to_string(), 0);
            assert_eq!(flows.len(), 1);
            flows.leave(flow.index, 0);
            assert!(flows.find(flow, 0).is_none());
        }
        assert_eq!((flows.len(), flows.places.len()), (0, 1));
    }

    #[test]
    fn long_flow_names_are_distinguished() {
        let mut flows = Flows::new(None);
        let long = |end: &str| "x".repeat(1_000_000) + end;
        let (first, other) = (flows.enter(&long("a"), 0), flows.enter(&long("b"), 0));
        assert_ne!(first, other);
        assert_eq!(flows.enter(&long("a"), 0), first);
        assert_eq!(flows.len(), 2);
    }

    #[test]
    fn remembered_flows_are_bounded_and_waiting_ones_stay() {
        let mut flows = Flows::new(Some(Memory { ttl: u64::MAX, sweep: u64::MAX }));
        let waiting = flows.enter("waits", 0);
        for number in 0..5 * MAX_IDLE as u64 {
            let flow = flows.enter(&number.to_string(), number);
            flows.leave(flow.index, number);
            assert!(flows.len() <= MAX_IDLE + 1, "{}", flows.len());
        }
        assert!(flows.len() > MAX_IDLE / 2);
        assert!(flows.find(waiting, 0).is_some());
        let last = 5 * MAX_IDLE as u64 - 1;
        assert!(flows.by_name.contains_key(&flows.name(&last.to_string())), "the latest is remembered");
    }

    #[test]
    fn idle_flows_expire_after_the_ttl() {
        let mut flows = Flows::new(Some(Memory { ttl: 100, sweep: 10 }));
        let (old, new) = (flows.enter("old", 0), flows.enter("new", 0));
        flows.leave(old.index, 5);
        flows.leave(new.index, 90);
        let last = flows.enter("last", 105);
        flows.leave(last.index, 105);
        assert!(flows.find(old, 105).is_none());
        assert!(flows.find(new, 105).is_some());
        assert_eq!(flows.len(), 2);
    }
}
