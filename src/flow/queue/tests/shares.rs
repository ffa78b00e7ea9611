//! Shares that flows get of a busy pool.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::flow::queue::ServedElsewhere;
use crate::flow::queue::flows::shared_name;
use crate::replicas::FlowService;
use crate::schedule::flow_control::{Fairness, ProgramAwareParams};

const FLOWS: [&str; 4] = ["a", "b", "c", "d"];

/// Lets flows that always have requests waiting compete for one place, and returns what
/// share of the whole each got, in units of `cost`.
fn shares(fairness: Fairness, cost: impl Fn(usize, &mut StdRng) -> f64) -> [f64; 4] {
    let rules = FlowControlRules {
        bands: vec![(0, BandRules { fairness, ..BandRules::default() })],
        ..FlowControlRules::default()
    };
    let mut rng = StdRng::seed_from_u64(7);
    let mut pool = Pool::new(&rules, 1);
    let mut got = [0.0; 4];
    // Flows begin with crowds of different sizes, and send as often as they get through.
    let mut flows: HashMap<Ticket, usize> = HashMap::new();
    let send = |pool: &mut Pool, flows: &mut HashMap<Ticket, usize>, flow: usize| {
        let ticket = pool.queue.enqueue(pool.now, &pool.arrival(FLOWS[flow], 0, 1)).unwrap();
        flows.insert(ticket, flow);
    };
    for (flow, crowd) in [40, 10, 3, 1].into_iter().enumerate() {
        (0..crowd).for_each(|_| send(&mut pool, &mut flows, flow));
    }
    for _ in 0..20_000 {
        let mut actions = Vec::new();
        pool.queue.dispatch(pool.now, &pool.capacity(), &mut actions);
        let [Action::Dispatch { ticket, .. }] = actions[..] else { panic!("{actions:?}") };
        let flow = flows.remove(&ticket).unwrap();
        let cost = cost(flow, &mut rng);
        got[flow] += cost;
        pool.now += rng.random_range(1..20) * MS;
        pool.queue.end(pool.now, ticket, cost, &mut Vec::new());
        send(&mut pool, &mut flows, flow);
    }
    let all: f64 = got.iter().sum();
    got.map(|got| got / all)
}

fn assert_even(shares: [f64; 4]) {
    assert!(shares.iter().all(|share| (share - 0.25).abs() <= 0.02), "{shares:?}");
}

#[test]
fn round_robin_serves_every_flow_equally() {
    assert_even(shares(Fairness::RoundRobin, |_, _| 1.0));
}

#[test]
fn higher_priorities_are_served_before_lower_ones() {
    // How likely a request comes in the time that one takes: more than there is room for.
    let bands = [(9, 0.3), (4, 0.5), (0, 0.9), (-2, 0.9)];
    let mut rng = StdRng::seed_from_u64(7);
    let mut pool = Pool::new(&FlowControlRules::default(), 1);
    let (mut tickets, mut got) = (HashMap::new(), [0_u32; 4]);
    for _ in 0..20_000 {
        for (band, (priority, likely)) in bands.into_iter().enumerate() {
            if rng.random_bool(likely) {
                // The lower bands are full after a while, and refuse.
                if let Ok(ticket) = pool.queue.enqueue(pool.now, &pool.arrival("a", priority, 1)) {
                    tickets.insert(ticket, band);
                }
            }
        }
        let mut actions = Vec::new();
        pool.queue.dispatch(pool.now, &pool.capacity(), &mut actions);
        pool.now += MS;
        for action in actions {
            let Action::Dispatch { ticket, .. } = action else { panic!("{action:?}") };
            got[tickets[&ticket]] += 1;
            pool.queue.end(pool.now, ticket, 1.0, &mut Vec::new());
        }
    }
    let all = f64::from(got.iter().sum::<u32>());
    for (got, share) in got.into_iter().zip([0.3, 0.5, 0.2, 0.0]) {
        assert!((f64::from(got) / all - share).abs() <= 0.02, "{got} of {all}, {share}");
    }
}

#[test]
fn least_service_serves_every_program_equal_tokens() {
    // Requests of one program cost ten times those of another.
    let cost =
        |flow: usize, rng: &mut StdRng| [100.0, 300.0, 500.0, 1000.0][flow] * rng.random_range(0.5..1.5);
    let params = ProgramAwareParams { las_weight_head_wait: 0.0, ..ProgramAwareParams::default() };
    assert_even(shares(Fairness::ProgramAware(params), cost));
}

#[test]
fn first_come_first_served_favors_the_busiest_flow() {
    let [a, .., d] = shares(Fairness::GlobalStrict, |_, _| 1.0);
    assert!(a > 20.0 * d, "{a} {d}");
}

/// Rules by which tokens alone decide.
fn least_service() -> FlowControlRules {
    let params = ProgramAwareParams { las_weight_head_wait: 0.0, ..ProgramAwareParams::default() };
    let fairness = Fairness::ProgramAware(params);
    FlowControlRules {
        bands: vec![(0, BandRules { fairness, ..BandRules::default() })],
        ..FlowControlRules::default()
    }
}

#[test]
fn program_served_at_another_replica_comes_later() {
    let mut pool = Pool::new(&least_service(), 1);
    let said = FlowService { priority: 0, flow: shared_name("greedy"), tokens: 1000 };
    let arrive = |pool: &mut Pool| {
        pool.enqueue("x", "greedy", 0);
        pool.enqueue("y", "modest", 0);
    };
    let report = |pool: &mut Pool, others: &[(Nanos, &[FlowService])]| {
        pool.queue.report_service(pool.now, &ServedElsewhere::new(others));
    };
    // Reported while they wait, and before they come; of another band, and no longer.
    arrive(&mut pool);
    report(&mut pool, &[(0, &[said])]);
    assert_eq!(pool.drain(), ["y", "x"]);
    arrive(&mut pool);
    assert_eq!(pool.drain(), ["y", "x"]);
    report(&mut pool, &[(0, &[FlowService { priority: 1, ..said }])]);
    arrive(&mut pool);
    assert_eq!(pool.drain(), ["x", "y"]);
    // What several said adds up, as far as it isn't forgotten.
    let half = FlowService { tokens: 600, ..said };
    let other = FlowService { flow: shared_name("modest"), ..said };
    report(&mut pool, &[(0, &[half, other]), (0, &[half])]);
    arrive(&mut pool);
    assert_eq!(pool.drain(), ["y", "x"]);
    report(&mut pool, &[(0, &[half, other]), (60 * S, &[half])]);
    arrive(&mut pool);
    assert_eq!(pool.drain(), ["x", "y"]);
}

#[test]
fn programs_get_equal_tokens_of_two_replicas_together() {
    // One sends to both, the other to the second only, which serves twice as many.
    const SENDS: [&[usize]; 2] = [&[0], &[0, 1]];
    let mut pools = [0, 1].map(|_| Pool::new(&least_service(), 1));
    let mut flows: [HashMap<Ticket, usize>; 2] = Default::default();
    let mut got = [0.0; 2];
    let mut rng = StdRng::seed_from_u64(7);
    let send = |pool: &mut Pool, flows: &mut HashMap<Ticket, usize>, flow: usize| {
        let ticket = pool.queue.enqueue(pool.now, &pool.arrival(FLOWS[flow], 0, 1)).unwrap();
        flows.insert(ticket, flow);
    };
    for (replica, sends) in SENDS.into_iter().enumerate() {
        sends.iter().for_each(|flow| send(&mut pools[replica], &mut flows[replica], *flow));
    }
    for round in 0..10_000 {
        for (replica, turn) in [(0, 20), (1, 10), (1, 10)] {
            let (pool, flows) = (&mut pools[replica], &mut flows[replica]);
            let mut actions = Vec::new();
            pool.queue.dispatch(pool.now, &pool.capacity(), &mut actions);
            let [Action::Dispatch { ticket, .. }] = actions[..] else { panic!("{actions:?}") };
            let flow = flows.remove(&ticket).unwrap();
            let cost = 100.0 * rng.random_range(0.5..1.5);
            got[flow] += cost;
            pool.now += turn * MS;
            pool.queue.end(pool.now, ticket, cost, &mut Vec::new());
            send(pool, flows, flow);
        }
        if round % 10 == 0 {
            let said = pools.each_ref().map(|pool| pool.queue.service(pool.now));
            for (pool, other) in pools.iter_mut().zip(said.iter().rev()) {
                pool.queue.report_service(pool.now, &ServedElsewhere::new(&[(0, other)]));
            }
        }
    }
    let share = got[0] / (got[0] + got[1]);
    assert!((share - 0.5).abs() <= 0.02, "{got:?}");
}
