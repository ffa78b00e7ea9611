//! Two replicas before one pool, who tell each other every 20 ms what waits and what is in flight.

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::flow::queue::room::{PATIENCE, WINDOW};
use crate::replicas::QueueState;

const LOW: i32 = 0;
const HIGH: i32 = 5;

/// Time after which the other replica knows of a request, and has used its share of before.
const KNOWN: Nanos = 55 * MS;

struct Replica {
    queue: Queue,
    /// Requests in flight, and their ends.
    running: Vec<(Nanos, Ticket)>,
    /// Requests in flight of the other, as it said last.
    heard: u64,
    /// Time of its messages within 20 ms.
    phase: u64,
    dispatched: u64,
    /// Requests of low priority that wait always.
    backlog: u64,
}

struct Model {
    now: Nanos,
    replicas: [Replica; 2],
    /// Messages on their way: to whom, requests in flight, and the queue.
    messages: Vec<(usize, u64, QueueState)>,
    room: u64,
    /// Mean time of a request in ms.
    mean: u64,
    rng: StdRng,
    /// Ticket and arrival of the request of high priority that waits at the second replica.
    urgent: Option<(Ticket, Nanos)>,
    /// Requests of low priority that took its place.
    passed: u64,
}

impl Model {
    fn new(room: u64, mean: u64, phases: [u64; 2], seed: u64) -> Self {
        let replicas = phases.map(|phase| {
            let mut queue = Queue::new(&FlowControlRules::default(), 10 * MS);
            queue.set_endpoints(S, 1);
            Replica { queue, running: Vec::new(), heard: 0, phase, dispatched: 0, backlog: 0 }
        });
        let rng = StdRng::seed_from_u64(seed);
        Self { now: S, replicas, messages: Vec::new(), room, mean, rng, urgent: None, passed: 0 }
    }

    fn arrive(&mut self, at: usize, priority: i32) -> Ticket {
        let (received, since) = (self.now, self.now);
        let arrival =
            Arrival { flow: "", priority, bytes: 1, beside: 0, received, since, ttl: None, due: None };
        self.replicas[at].queue.enqueue(self.now, &arrival).unwrap()
    }

    fn in_flight(&self) -> u64 {
        self.replicas.iter().map(|replica| replica.running.len() as u64).sum()
    }

    /// Lets go as many as there is room for as this replica sees it.
    fn dispatch(&mut self, at: usize) {
        let mut free = self.room.saturating_sub(self.in_flight());
        let replica = &mut self.replicas[at];
        let seen = replica.running.len() as u64 + replica.heard;
        let per_request = 1.0 / self.room as f64;
        let level = Level { saturation: seen as f64 * per_request, per_request, per_byte: 0.0 };
        let mut actions = Vec::new();
        replica.queue.dispatch(self.now, &Capacity::new([level]), &mut actions);
        for action in actions {
            let Action::Dispatch { ticket, .. } = action else { panic!("{action:?}") };
            replica.queue.booked(self.now, ticket);
            let lasts = self.rng.random_range(self.mean / 2..self.mean * 3 / 2) * MS;
            replica.running.push((self.now + lasts, ticket));
            replica.dispatched += 1;
            if let Some((urgent, since)) = self.urgent {
                if at == 1 && urgent == ticket {
                    self.urgent = None;
                } else if free <= 1 && self.now > since + KNOWN {
                    self.passed += 1;
                }
            }
            free = free.saturating_sub(1);
        }
    }

    /// A millisecond.
    fn step(&mut self) {
        self.now += MS;
        for (to, in_flight, queue) in std::mem::take(&mut self.messages) {
            self.replicas[to].heard = in_flight;
            let waits = if queue.waiting.is_empty() { Vec::new() } else { vec![(1 - to as u128, queue)] };
            self.replicas[to].queue.report_others(self.now, &waits);
            self.dispatch(to);
        }
        for at in [0, 1] {
            let replica = &mut self.replicas[at];
            let over: Vec<_> = replica.running.extract_if(.., |(end, _)| *end <= self.now).collect();
            for (_, ticket) in &over {
                replica.queue.end(self.now, *ticket, 0.0, &mut Vec::new());
            }
            let missing = replica.backlog.saturating_sub(replica.queue.waiting().requests);
            for _ in 0..missing {
                self.arrive(at, LOW);
            }
            if missing > 0 || !over.is_empty() || self.replicas[at].queue.wake_at(self.now) <= self.now {
                self.dispatch(at);
            }
            let replica = &self.replicas[at];
            if (self.now / MS + replica.phase).is_multiple_of(20) {
                self.messages.push((1 - at, replica.running.len() as u64, replica.queue.state()));
            }
        }
    }

    fn run(&mut self, ms: u64) {
        (0..ms).for_each(|_| self.step());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn equal_queues_get_equal_shares_of_the_pool(
        room in 8u64..40,
        mean in 100u64..300,
        phases in [0u64..20, 0u64..20],
        seed in any::<u64>(),
    ) {
        let mut model = Model::new(room, mean, phases, seed);
        // One has all of the pool before requests wait at the other.
        model.replicas[0].backlog = 50;
        model.run(1000);
        model.replicas[1].backlog = 50;
        model.run(20 * mean);
        model.replicas.iter_mut().for_each(|replica| replica.dispatched = 0);
        let ms = 3000 * mean / room;
        let mut busy = 0;
        for _ in 0..ms {
            model.step();
            busy += model.in_flight();
        }
        let [a, b] = model.replicas.each_ref().map(|replica| replica.dispatched as f64);
        let share = a / (a + b);
        prop_assert!((share - 0.5).abs() <= 0.05, "{share}");
        let used = busy as f64 / (ms * room) as f64;
        prop_assert!((0.75..1.1).contains(&used), "{used} of the pool");
    }

    #[test]
    fn urgent_request_is_not_passed_over_by_others_of_another_replica(
        room in 1u64..40,
        mean in 100u64..300,
        phases in [0u64..20, 0u64..20],
        seed in any::<u64>(),
    ) {
        let mut model = Model::new(room, mean, phases, seed);
        model.replicas[0].backlog = 50;
        model.run(1000);
        for _ in 0..50 {
            model.urgent = Some((model.arrive(1, HIGH), model.now));
            model.dispatch(1);
            let most = model.now + (2 * mean + 200) * MS;
            while model.urgent.is_some() {
                model.step();
                prop_assert!(model.now < most, "it waits");
            }
            model.run(seed % 100);
        }
        prop_assert_eq!(model.passed, 0);
    }
}

#[test]
fn room_is_not_left_for_long_to_a_replica_that_takes_none() {
    let mut pool = Pool::new(&FlowControlRules::default(), 20);
    let dead = QueueState { waiting: vec![(HIGH, 1000)], dispatched: 3 };
    pool.queue.report_others(pool.now, &[(1, dead)]);
    for name in ["a", "b", "c"] {
        pool.enqueue(name, "flow", LOW);
    }
    assert_eq!(pool.pump().dispatched, [""; 0]);
    let until = pool.now + PATIENCE + 2 * WINDOW;
    let mut gone = Vec::new();
    while gone.len() < 3 {
        pool.now = pool.queue.wake_at(pool.now);
        assert!(pool.now <= until, "{gone:?}");
        gone.extend(pool.dispatched());
    }
    pool.now += S;
    pool.enqueue("d", "flow", LOW);
    assert_eq!(pool.dispatched(), ["d"], "nor is it waited for again");
    pool.queue.report_others(pool.now, &[]);
    pool.enqueue("e", "flow", LOW);
    assert_eq!(pool.dispatched(), ["e"]);
}

#[test]
fn closed_queue_takes_the_room_that_there_is() {
    let mut pool = Pool::new(&FlowControlRules::default(), 20);
    pool.queue.report_others(pool.now, &[(1, QueueState { waiting: vec![(HIGH, 1000)], dispatched: 3 })]);
    pool.queue.close(pool.now, &mut Vec::new());
    pool.enqueue("a", "flow", LOW);
    assert_eq!(pool.pump().dispatched, ["a"]);
}
