//! Scores against the formula as it is written, with every decay computed.

use proptest::prelude::*;

use super::*;
use crate::flow::queue::Arrival;
use crate::schedule::flow_control::Ordering;

const MS: Nanos = 1_000_000;

/// A few blocks of them.
const FLOWS: usize = 3 * BLOCK;

/// Input of the formula that belongs to a flow.
#[derive(Clone, Default)]
struct Program {
    service: f64,
    /// Time of the last update of the service.
    at: Nanos,
    waiting: Vec<(Rank, Nanos)>,
}

struct Naive {
    params: ProgramAwareParams,
    programs: Vec<Program>,
}

impl Naive {
    fn decay(&mut self, now: Nanos) {
        for program in &mut self.programs {
            let half_lives = (now - program.at) as f64 / 1e9 / self.params.las_half_life_seconds;
            program.service *= 0.5f64.powf(half_lives);
            program.at = now;
        }
    }

    /// The scores of the flows that wait.
    fn scores(&mut self, now: Nanos) -> Vec<Option<f64>> {
        self.decay(now);
        let heads: Vec<Option<(f64, f64)>> = self
            .programs
            .iter()
            .map(|program| {
                let (_, since) = program.waiting.iter().min()?;
                Some((program.service, (now - since) as f64 / MS as f64))
            })
            .collect();
        let range = |of: fn(&(f64, f64)) -> f64| {
            let values = heads.iter().flatten().map(of);
            (values.clone().fold(f64::INFINITY, f64::min), values.fold(f64::NEG_INFINITY, f64::max))
        };
        let (service, wait) = (range(|head| head.0), range(|head| head.1));
        let scaled = |value: f64, (least, most): (f64, f64)| {
            if most > least { (value - least) / (most - least) } else { 0.5 }
        };
        let (by_service, by_wait) = (self.params.las_weight_service, self.params.las_weight_head_wait);
        heads
            .iter()
            .map(|head| {
                head.map(|(got, waits)| {
                    by_service * (1.0 - scaled(got, service)) + by_wait * scaled(waits, wait)
                })
            })
            .collect()
    }
}

#[derive(Clone, Debug)]
enum Event {
    Push(usize),
    Remove(usize, usize),
    Serve(usize, f64),
    Pass(u64),
    Pop,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (0..FLOWS).prop_map(Event::Push),
        1 => (0..FLOWS, any::<usize>()).prop_map(|(flow, index)| Event::Remove(flow, index)),
        2 => (0..FLOWS, 0.0..5000.0).prop_map(|(flow, cost)| Event::Serve(flow, cost)),
        2 => prop_oneof![0..1000u64, 0..100_000u64].prop_map(Event::Pass),
        3 => Just(Event::Pop),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn dispatched_program_has_the_highest_score(
        events in proptest::collection::vec(event(), 1..600),
        by_service in 0.0..1.0,
        by_wait in 0.0..1.0,
    ) {
        let params = ProgramAwareParams {
            las_weight_service: by_service,
            las_weight_head_wait: by_wait,
            // Nothing is forgotten here.
            eviction_ttl_seconds: 1e9,
            ..ProgramAwareParams::default()
        };
        let mut policy = ProgramAware::new(&params);
        let mut flows = Flows::new(Some(policy.memory()));
        let mut naive = Naive { params, programs: vec![Program::default(); FLOWS] };
        let names: Vec<String> = (0..FLOWS).map(|flow| flow.to_string()).collect();
        let (mut now, mut references, mut sequence) = (1, [None; FLOWS], 0);
        for event in events {
            match event {
                Event::Push(index) => {
                    sequence += 1;
                    let arrival = Arrival {
                        flow: &names[index], priority: 0, bytes: 0, beside: 0, received: now, since: now, ttl: None, due: None,
                    };
                    let rank = Rank::of(Ordering::Fcfs, &arrival, sequence);
                    let flow = flows.enter(&names[index], now);
                    references[index] = Some(flow);
                    policy.push(&mut flows, rank, Waiter { slot: index as u32, flow: flow.index, since: now });
                    naive.programs[index].waiting.push((rank, now));
                }
                Event::Remove(index, which) => {
                    let waiting = &mut naive.programs[index].waiting;
                    if !waiting.is_empty() {
                        let (rank, _) = waiting.remove(which % waiting.len());
                        let flow = references[index].unwrap();
                        policy.remove(&mut flows, flow.index, rank);
                        flows.leave(flow.index, now);
                    }
                }
                Event::Serve(index, cost) => {
                    if let Some(flow) = references[index] {
                        policy.served(&mut flows, flow, cost, now);
                        naive.decay(now);
                        naive.programs[index].service += cost;
                    }
                }
                Event::Pass(ms) => now += ms * MS,
                Event::Pop => {
                    let scores = naive.scores(now);
                    let best = scores.iter().flatten().copied().reduce(f64::max);
                    let popped = policy.pop(&mut flows);
                    prop_assert_eq!(popped.is_some(), best.is_some());
                    let Some(waiter) = popped else { continue };
                    flows.leave(waiter.flow, now);
                    let index = waiter.slot as usize;
                    let score = scores[index].unwrap();
                    prop_assert!(score >= best.unwrap() - 1e-6, "{score} of {scores:?}");
                    let first = naive.programs[index].waiting.iter().copied().min().unwrap();
                    naive.programs[index].waiting.retain(|waiting| *waiting != first);
                }
            }
        }
    }
}

#[test]
fn selection_works_after_years_of_decay() {
    let mut policy = ProgramAware::new(&ProgramAwareParams::default());
    let memory = Memory { ttl: Nanos::MAX, sweep: Nanos::MAX };
    let mut flows = Flows::new(Some(memory));
    let arrival =
        Arrival { flow: "", priority: 0, bytes: 0, beside: 0, received: 0, since: 0, ttl: None, due: None };
    let references = ["a", "b", "c"].map(|name| flows.enter(name, 0));
    for (sequence, flow) in (0..).zip(references) {
        let rank = Rank::of(Ordering::Fcfs, &arrival, sequence);
        policy.push(&mut flows, rank, Waiter { slot: flow.index, flow: flow.index, since: 0 });
        policy.served(&mut flows, flow, sequence as f64, 0);
    }
    for minute in 1..3000 {
        policy.served(&mut flows, references[2], 1.0, minute * 65 * 60_000 * MS);
        let best = policy.best();
        assert!(best == Some(references[0].index) || best == Some(references[1].index), "{minute} {best:?}");
    }
}

#[test]
fn service_decays_by_its_half_life_at_any_uptime() {
    let params = ProgramAwareParams { las_half_life_seconds: 1.0, ..ProgramAwareParams::default() };
    let mut policy = ProgramAware::new(&params);
    let mut flows = Flows::new(Some(policy.memory()));
    let arrival =
        Arrival { flow: "", priority: 0, bytes: 0, beside: 0, received: 0, since: 0, ttl: None, due: None };
    let (a, b) = (flows.enter("a", 0), flows.enter("b", 0));
    for (sequence, flow) in [(1, a), (2, b)] {
        let rank = Rank::of(Ordering::Fcfs, &arrival, sequence);
        policy.push(&mut flows, rank, Waiter { slot: flow.index, flow: flow.index, since: 0 });
    }
    // Every second a gets 100 and b 99, for a day.
    for second in 0..86_400u64 {
        policy.served(&mut flows, a, 100.0, second * 1000 * MS);
        policy.served(&mut flows, b, 99.0, second * 1000 * MS);
        assert_eq!(policy.best(), Some(b.index), "after {second} seconds");
    }
    // Half of what a has is less than what b has.
    policy.served(&mut flows, b, 50.0, 86_401 * 1000 * MS);
    assert_eq!(policy.best(), Some(a.index));
    assert!(flows.find(a, 0).unwrap().service.is_finite());
}

#[test]
fn service_is_published_as_far_as_it_is_remembered() {
    let mut policy = ProgramAware::new(&ProgramAwareParams::default());
    let mut flows = Flows::new(Some(policy.memory()));
    for number in 0..=300 {
        let flow = flows.enter(&number.to_string(), 0);
        policy.served(&mut flows, flow, f64::from(number) * 10.0, 0);
    }
    let mut published = policy.service(&flows, 60_000 * MS);
    published.sort_unstable_by_key(|(_, tokens)| *tokens);
    assert_eq!((published.len(), published[0].1), (300, 5));
    assert_eq!(published[299], (crate::flow::queue::flows::shared_name("300"), 1500));
    assert_eq!(policy.service(&flows, 86_400_000 * MS), [], "all is forgotten");
}
