//! The queue against a reference that keeps lists and looks through all of them.

use proptest::prelude::*;

use super::*;
use crate::schedule::flow_control::{
    BandPosition, Ceiling, Domain, Fairness, HoldbackParams, Ordering, StaticUsageLimitParams,
};

const FLOWS: [&str; 3] = ["a", "b", "c"];
const PRIORITIES: [i32; 3] = [5, 0, -1];

#[derive(Clone, Debug)]
enum Event {
    Enqueue {
        flow: usize,
        band: usize,
        bytes: u64,
        ttl: Option<u64>,
        due: Option<u64>,
    },
    /// The n-th of those that are known ends, whether it waits or not.
    End(usize),
    /// The n-th of those that were let go shows.
    Book(usize),
    Pass(u64),
    Endpoints(usize),
    Room(u64),
    /// Sheds this many bytes, of requests of at most this priority.
    Shed(u64, i32),
    Drain,
    Close,
}

#[derive(Clone, Debug)]
struct Request {
    id: usize,
    flow: usize,
    band: usize,
    bytes: u64,
    since: Nanos,
    ttl: Option<Nanos>,
    due: Option<Nanos>,
}

/// Rules, and lists.
struct Naive {
    rules: FlowControlRules,
    room: u64,
    endpoints: usize,
    regime_since: Nanos,
    settled_at: Nanos,
    came_at: Nanos,
    waiting: Vec<Request>,
    granted: Vec<Request>,
    shown: Vec<Request>,
    /// Flows of each band by whose turn comes first.
    turns: [Vec<usize>; 3],
    draining: bool,
    /// Requests that came since the drain began.
    newcomers: Vec<usize>,
    closed: bool,
}

#[derive(Debug, Default, PartialEq)]
struct Results {
    dispatched: Vec<usize>,
    rejected: Vec<(usize, Outcome)>,
}

/// Every fifth request has large headers, those without a body among them.
fn beside(bytes: u64) -> u64 {
    if bytes.is_multiple_of(5) { 7 } else { 0 }
}

fn held(request: &Request) -> u64 {
    request.bytes + beside(request.bytes)
}

impl Naive {
    fn enqueue(&mut self, request: Request) -> Result<(), Outcome> {
        let sum = |requests: &mut dyn Iterator<Item = &Request>| {
            requests.fold((0, 0), |(count, bytes), request| (count + 1, bytes + request.bytes))
        };
        let (all, all_bytes) = sum(&mut self.waiting.iter());
        let (band, band_bytes) = sum(&mut self.waiting.iter().filter(|other| other.band == request.band));
        let rules = self.rules.band(PRIORITIES[request.band]);
        let fits = all < self.rules.max_requests.unwrap_or(u64::MAX)
            && all_bytes + request.bytes <= self.rules.max_bytes.unwrap_or(u64::MAX)
            && band < rules.max_requests
            && band_bytes + request.bytes <= rules.max_bytes;
        match (fits, self.endpoints) {
            (false, 0) => Err(Outcome::RejectedNoEndpoints),
            (false, _) => Err(Outcome::RejectedCapacity),
            _ => {
                if !self.turns[request.band].contains(&request.flow) {
                    self.turns[request.band].push(request.flow);
                }
                self.waiting.push(request);
                Ok(())
            }
        }
    }

    fn gone(&mut self, index: usize) -> Request {
        let request = self.waiting.remove(index);
        let more = self.waiting.iter().any(|other| (other.band, other.flow) == (request.band, request.flow));
        if !more {
            self.turns[request.band].retain(|flow| *flow != request.flow);
        }
        request
    }

    fn end_of(&self, request: &Request) -> Option<Nanos> {
        let longest = if self.endpoints == 0 { self.rules.no_endpoint_ttl.map(nanos) } else { request.ttl };
        Some(request.since.max(self.regime_since) + longest?)
    }

    fn advance(&mut self, now: Nanos, results: &mut Results) {
        let outcome = if self.endpoints == 0 { Outcome::EvictedNoEndpoints } else { Outcome::EvictedTtl };
        while let Some(index) =
            self.waiting.iter().position(|request| self.end_of(request).is_some_and(|end| end <= now))
        {
            let request = self.gone(index);
            results.rejected.push((request.id, outcome));
        }
    }

    /// Bytes that are freed.
    fn shed(&mut self, bytes: u64, highest: i32, results: &mut Results) -> u64 {
        let mut freed = 0;
        while freed < bytes {
            let victim = self
                .waiting
                .iter()
                .enumerate()
                .filter(|(_, request)| held(request) > 0 && PRIORITIES[request.band] <= highest);
            // Bands are numbered from the highest down.
            let victim = victim.max_by_key(|(_, request)| (request.band, request.since, request.id));
            let Some((index, _)) = victim else { break };
            let request = self.gone(index);
            freed += held(&request);
            results.rejected.push((request.id, Outcome::EvictedQueuePressure));
        }
        freed
    }

    /// Time at which something is due next though nothing happens; `None`: never.
    fn next(&self, now: Nanos) -> Option<Nanos> {
        let settled = (self.endpoints > 0 && self.settled_at > now && !self.waiting.is_empty())
            .then_some(self.settled_at);
        self.waiting.iter().filter_map(|request| self.end_of(request)).chain(settled).min()
    }

    fn dispatch(&mut self, now: Nanos, results: &mut Results) {
        if self.endpoints == 0 || now < self.settled_at {
            return;
        }
        loop {
            let under_way = (self.shown.len() + self.granted.len()) as u64;
            let saturation = under_way as f64 / self.room as f64;
            let mut next = None;
            for (rank, priority) in PRIORITIES.into_iter().enumerate() {
                let position = BandPosition { rank, bands: 3, priority, lowest: -1, highest: 5 };
                let Ceiling::Below(ceiling) = self.rules.usage_limit.ceiling(position, saturation) else {
                    panic!("no soft ceilings here")
                };
                if saturation > ceiling - 1e-9 {
                    break;
                }
                next = self.first_of(rank);
                if next.is_some() {
                    break;
                }
            }
            let Some(index) = next else { return };
            let request = self.waiting[index].clone();
            self.turns[request.band].retain(|flow| *flow != request.flow);
            let request = self.gone(index);
            let more =
                self.waiting.iter().any(|other| (other.band, other.flow) == (request.band, request.flow));
            if more {
                self.turns[request.band].push(request.flow);
            }
            results.dispatched.push(request.id);
            self.granted.push(request);
        }
    }

    fn first_of(&self, band: usize) -> Option<usize> {
        let rules = self.rules.band(PRIORITIES[band]);
        let flow = match rules.fairness {
            Fairness::RoundRobin => Some(*self.turns[band].first()?),
            _ => None,
        };
        let key = |request: &Request| match rules.ordering {
            Ordering::Fcfs => (request.since, 0, request.id),
            Ordering::Edf => {
                (request.ttl.map_or(NEVER, |ttl| request.since + ttl), request.since, request.id)
            }
            Ordering::SloDeadline => (request.due.unwrap_or(NEVER), request.since, request.id),
        };
        (0..self.waiting.len())
            .filter(|index| {
                let request = &self.waiting[*index];
                request.band == band && flow.is_none_or(|flow| request.flow == flow)
            })
            .min_by_key(|index| key(&self.waiting[*index]))
    }

    fn set_endpoints(&mut self, now: Nanos, endpoints: usize) {
        let before = std::mem::replace(&mut self.endpoints, endpoints);
        if (before == 0) != (endpoints == 0) {
            self.regime_since = now;
        }
        if before == 0 && endpoints > 0 && !self.waiting.is_empty() {
            (self.came_at, self.settled_at) = (now, now + 100 * MS);
        } else if before > 0 && endpoints > 0 && now < self.settled_at {
            self.settled_at = (now + 100 * MS).min(self.came_at + S);
        } else if before == 0 || endpoints == 0 {
            self.settled_at = 0;
        }
    }

    fn end(&mut self, id: usize) {
        if let Some(index) = self.waiting.iter().position(|request| request.id == id) {
            self.gone(index);
        }
        self.granted.retain(|request| request.id != id);
        self.shown.retain(|request| request.id != id);
    }
}

fn rules() -> impl Strategy<Value = FlowControlRules> {
    let fairness = prop_oneof![Just(Fairness::GlobalStrict), Just(Fairness::RoundRobin)];
    let ordering = prop_oneof![Just(Ordering::Fcfs), Just(Ordering::Edf), Just(Ordering::SloDeadline)];
    let band = (1u64..8, 20u64..200, fairness, ordering).prop_map(
        |(max_requests, max_bytes, fairness, ordering)| BandRules {
            max_requests,
            max_bytes,
            fairness,
            ordering,
        },
    );
    let usage_limit = prop_oneof![
        Just(UsageLimit::default()),
        (0.0..2.0).prop_map(|threshold| UsageLimit::Static(StaticUsageLimitParams { threshold })),
        (0.0..0.9).prop_map(|min_ceiling| UsageLimit::Holdback(HoldbackParams {
            domain: Domain::Value,
            min_ceiling,
            ..HoldbackParams::default()
        })),
    ];
    let bands = proptest::collection::vec(band, 3);
    let longest = proptest::option::of((1u64..300).prop_map(Duration::from_millis));
    (bands, usage_limit, longest, proptest::option::of(1u64..12), proptest::option::of(20u64..300)).prop_map(
        |(bands, usage_limit, no_endpoint_ttl, max_requests, max_bytes)| FlowControlRules {
            bands: PRIORITIES.into_iter().zip(bands).collect(),
            usage_limit,
            no_endpoint_ttl,
            max_requests,
            max_bytes,
            ..FlowControlRules::default()
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    let time = || proptest::option::of(1u64..400);
    prop_oneof![
        6 => (0..3usize, 0..3usize, 0u64..60, time(), time())
            .prop_map(|(flow, band, bytes, ttl, due)| Event::Enqueue { flow, band, bytes, ttl, due }),
        2 => any::<usize>().prop_map(Event::End),
        2 => any::<usize>().prop_map(Event::Book),
        3 => (0u64..150).prop_map(Event::Pass),
        1 => (0..3usize).prop_map(Event::Endpoints),
        1 => (1u64..8).prop_map(Event::Room),
        1 => (0u64..150, -2..6).prop_map(|(bytes, highest)| Event::Shed(bytes, highest)),
    ]
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let drains = proptest::option::weighted(0.3, 0..120usize);
    (proptest::collection::vec(event(), 1..120), drains, any::<bool>()).prop_map(
        |(mut events, drains, closes)| {
            if let Some(at) = drains {
                events.insert(at.min(events.len()), Event::Drain);
            }
            events.extend(closes.then_some(Event::Close));
            events
        },
    )
}

/// Tickets by the reference's names.
#[derive(Default)]
struct Names {
    tickets: Vec<Option<Ticket>>,
}

impl Names {
    fn of(&self, ticket: Ticket) -> usize {
        self.tickets.iter().rposition(|known| *known == Some(ticket)).unwrap()
    }

    fn results(&self, actions: &[Action]) -> Results {
        let mut results = Results::default();
        for action in actions {
            match action {
                Action::Dispatch { ticket, .. } => results.dispatched.push(self.of(*ticket)),
                Action::Reject { ticket, outcome } => results.rejected.push((self.of(*ticket), *outcome)),
                other => panic!("{other:?}"),
            }
        }
        results
    }
}

/// Runs both and compares them after every event.
fn agree(rules: FlowControlRules, events: Vec<Event>) -> Result<(), TestCaseError> {
    let mut queue = Queue::new(&rules, 0);
    let mut naive = Naive {
        rules,
        room: 2,
        endpoints: 0,
        regime_since: 0,
        settled_at: 0,
        came_at: 0,
        waiting: Vec::new(),
        granted: Vec::new(),
        shown: Vec::new(),
        turns: Default::default(),
        draining: false,
        newcomers: Vec::new(),
        closed: false,
    };
    let (mut now, mut names) = (S, Names::default());
    let mut ends = vec![0; events.len()];
    for event in events {
        let (mut actions, mut results) = (Vec::new(), Results::default());
        match event {
            Event::Enqueue { flow, band, bytes, ttl, due } => {
                let (ttl, due) = (ttl.map(|ms| ms * MS), due.map(|ms| now + ms * MS));
                let id = names.tickets.len();
                let arrival = Arrival {
                    flow: FLOWS[flow],
                    priority: PRIORITIES[band],
                    bytes,
                    beside: beside(bytes),
                    received: now,
                    since: now,
                    ttl,
                    due,
                };
                let ticket = queue.enqueue(now, &arrival);
                let expected = naive.enqueue(Request { id, flow, band, bytes, since: now, ttl, due });
                prop_assert_eq!(ticket.map(|_| ()), expected);
                naive.newcomers.extend(Some(id).filter(|_| naive.draining));
                names.tickets.push(ticket.ok());
            }
            Event::End(index) if !names.tickets.is_empty() => {
                let id = index % names.tickets.len();
                naive.end(id);
                if let Some(ticket) = names.tickets[id] {
                    queue.end(now, ticket, 1.0, &mut actions);
                }
            }
            Event::Book(index) if !naive.granted.is_empty() => {
                let request = naive.granted.remove(index % naive.granted.len());
                queue.booked(now, names.tickets[request.id].unwrap());
                naive.shown.push(request);
            }
            Event::Pass(ms) => now += ms * MS,
            Event::Endpoints(count) => {
                queue.set_endpoints(now, count);
                naive.set_endpoints(now, count);
            }
            Event::Room(room) => naive.room = room,
            Event::Shed(bytes, highest) => {
                let before = queue.waiting();
                let freed = queue.shed(now, bytes, highest, &mut actions);
                prop_assert_eq!(freed.requests, before.requests - queue.waiting().requests);
                prop_assert_eq!(freed.bytes, naive.shed(bytes, highest, &mut results));
            }
            Event::Drain => {
                queue.drain();
                naive.draining = true;
            }
            Event::Close => {
                queue.close(now, &mut actions);
                naive.closed = true;
                while !naive.waiting.is_empty() {
                    let request = naive.gone(0);
                    results.rejected.push((request.id, Outcome::EvictedOther));
                }
            }
            Event::End(_) | Event::Book(_) => {}
        }
        let per_request = 1.0 / naive.room as f64;
        let saturation = naive.shown.len() as f64 * per_request;
        let capacity = Capacity::new([Level { saturation, per_request, per_byte: 0.0 }]);
        queue.advance(now, &mut actions);
        queue.dispatch(now, &capacity, &mut actions);
        naive.advance(now, &mut results);
        naive.dispatch(now, &mut results);
        let settles = naive.endpoints > 0 && naive.settled_at > now;
        let refused = if settles { Vec::new() } else { std::mem::take(&mut naive.newcomers) };
        for id in refused {
            if let Some(index) = naive.waiting.iter().position(|request| request.id == id) {
                results.rejected.push((naive.gone(index).id, Outcome::RejectedOther));
            }
        }
        naive.dispatch(now, &mut results);
        while naive.closed && !naive.waiting.is_empty() {
            let request = naive.gone(0);
            results.rejected.push((request.id, Outcome::RejectedOther));
        }

        let mut got = names.results(&actions);
        got.rejected.sort_unstable_by_key(|(id, _)| *id);
        results.rejected.sort_unstable_by_key(|(id, _)| *id);
        prop_assert_eq!(&got, &results);
        for id in got.dispatched.iter().copied().chain(got.rejected.iter().map(|(id, _)| *id)) {
            ends[id] += 1;
            prop_assert_eq!(ends[id], 1, "request {} ended twice", id);
        }
        prop_assert_eq!(queue.waiting().requests, naive.waiting.len() as u64);
        prop_assert_eq!(
            queue.waiting().bytes,
            naive.waiting.iter().map(|request| request.bytes).sum::<u64>()
        );
        prop_assert_eq!(queue.granted().requests, naive.granted.len() as u64);
        prop_assert_eq!(queue.in_flight(), (naive.granted.len() + naive.shown.len()) as u64);
        prop_assert_eq!(queue.flows(), naive.turns.iter().map(Vec::len).sum::<usize>());
        prop_assert!(queue.waiting().requests <= queue.limit().requests);
        prop_assert!(queue.waiting().bytes <= queue.limit().bytes);
        for band in queue.bands() {
            prop_assert!(band.waiting.requests <= band.limit.requests);
            prop_assert!(band.waiting.bytes <= band.limit.bytes);
        }
        let wake = queue.wake_at(now);
        prop_assert!(wake > now, "it would never sleep");
        prop_assert_eq!(wake, naive.next(now).unwrap_or(NEVER));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn queue_matches_a_reference_of_plain_lists(rules in rules(), events in events()) {
        agree(rules, events)?;
    }
}
