//! Policies over simulated servers in virtual time: what happens when.

use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use usher::config::EndpointPickerConfig;
use usher::endpoints::{ROLE_LABEL, Store};
use usher::replay::{
    Arrival, Formula, Interconnect, Offline, Picker, Piece, Policy, Reading, RequestOutcome, RequestOutcomes,
    Requests, Server, World, build,
};
use usher::sim::{Dialect, EngineConfig, Links};

const MS: Duration = Duration::from_millis(1);

fn reading() -> Reading {
    Reading { interval: 50 * MS, max_age: 2000 * MS, dialect: Dialect::default() }
}

/// A token takes a millisecond to read and ten to write, whatever else goes on.
fn engine() -> EngineConfig {
    EngineConfig {
        prefill_tokens_per_second: 1000.0,
        decode_step: 10 * MS,
        batch_factor: 0.0,
        jitter: 0.0,
        max_batched_tokens: 100,
        ..EngineConfig::default()
    }
}

fn arrival(at_ms: u32, seeds: &[u64], tokens: u32, output_tokens: u32) -> Arrival {
    let prompt = seeds.iter().map(|&seed| Piece { seed, tokens }).collect();
    Arrival { at: at_ms * MS, prompt, output_tokens, ..Arrival::default() }
}

fn run(policy: &Policy, engine: &EngineConfig, servers: usize, arrivals: &[Arrival]) -> RequestOutcomes {
    let servers = Server::equal(servers, engine);
    let reading = reading();
    let (picker, _) = Picker::new(policy, &servers, reading, 1, &build).unwrap();
    world(picker, &servers, Interconnect::default(), arrivals).run(|| ())
}

fn world(picker: Picker, servers: &[Server], interconnect: Interconnect, arrivals: &[Arrival]) -> World {
    let requests = Arc::new(Requests::new(arrivals, servers, true));
    World::new(picker, servers, interconnect, requests).unwrap()
}

/// The built-in configuration over these servers, and its endpoints.
fn configured(servers: &[Server]) -> (Picker, Arc<Store>) {
    let reading = reading();
    let (offline, _) = Offline::new(None, servers, reading, StdRng::seed_from_u64(1)).unwrap();
    let store = Arc::clone(offline.store());
    (Picker::configured(Box::new(offline)), store)
}

fn times(outcomes: &RequestOutcomes) -> Vec<(u128, u128)> {
    let ms = |time: Option<Duration>| time.unwrap().as_millis();
    outcomes.requests.iter().map(|outcome| (ms(outcome.first), ms(outcome.last))).collect()
}

#[test]
fn sequential_requests_take_prefill_and_a_step_per_token() {
    // The second waits for a step of the first and shares its steps; the third comes late.
    let arrivals = [arrival(0, &[1], 250, 3), arrival(1000, &[2], 80, 1), arrival(2000, &[3], 40, 5)];
    for policy in [Policy::RoundRobin, Policy::Random, Policy::Configured(None)] {
        let outcomes = run(&policy, &engine(), 1, &arrivals);
        assert_eq!(times(&outcomes), [(250, 270), (80, 80), (40, 80)], "{policy:?}");
        assert_eq!(outcomes.requests[0].server, Some(0));
    }
}

#[test]
fn requests_arriving_together_share_a_step() {
    let arrivals = [arrival(5, &[1], 30, 1), arrival(5, &[2], 50, 2), arrival(5, &[3], 60, 1)];
    // 100 tokens a step: 30 + 50 + 20, then 40 and a token of the second's.
    let outcomes = run(&Policy::RoundRobin, &engine(), 1, &arrivals);
    assert_eq!(times(&outcomes), [(100, 100), (100, 150), (150, 150)]);
}

#[test]
fn a_prefix_is_found_where_it_was_computed() {
    let arrivals = [arrival(0, &[7, 1], 64, 1), arrival(1000, &[7, 2], 64, 1), arrival(2000, &[7, 3], 64, 1)];
    let outcomes = run(&Policy::RoundRobin, &engine(), 2, &arrivals);
    let cached: Vec<u32> = outcomes.requests.iter().map(|outcome| outcome.cached_tokens).collect();
    assert_eq!(cached, [0, 0, 64]);
    assert_eq!(times(&outcomes)[2], (64, 64));
}

#[test]
fn refused_requests_are_counted_by_reason() {
    let small = EngineConfig { max_running: 1, max_waiting: 1, max_model_len: 500, ..engine() };
    let mut arrivals: Vec<Arrival> = (0..10).map(|seed| arrival(0, &[seed], 50, 2)).collect();
    arrivals.push(arrival(1, &[1], 600, 1));
    for policy in [Policy::RoundRobin, Policy::Configured(None)] {
        let outcomes = run(&policy, &small, 2, &arrivals);
        let (refused, answered) = (
            outcomes.requests.iter().filter(|outcome| outcome.refused).count(),
            outcomes.requests.iter().filter(|outcome| outcome.last.is_some()).count(),
        );
        assert_eq!(refused + answered, 11, "{policy:?}");
        assert!(outcomes.requests.iter().all(|outcome| outcome.refused != outcome.last.is_some()));
        assert_eq!(outcomes.refusals.values().sum::<u64>(), refused as u64);
        let texts: Vec<&String> = outcomes.refusals.keys().collect();
        assert_eq!(texts.len(), 2, "{texts:?}");
        assert!(texts[0].starts_with("400 by the server: ") && texts[1].starts_with("429 by the server: "));
    }
}

#[test]
fn in_flight_requests_are_released_at_their_end() {
    let small = EngineConfig { max_running: 1, max_waiting: 1, ..engine() };
    let servers = Server::equal(2, &small);
    let arrivals: Vec<Arrival> = (0..10).map(|n| arrival(n, &[u64::from(n)], 50, 2)).collect();
    let (picker, store) = configured(&servers);
    let mut world = world(picker, &servers, Interconnect::default(), &arrivals);
    assert!(world.run_until_left(0));
    let loads: Vec<_> = store.snapshot().endpoints().iter().map(|endpoint| endpoint.load().clone()).collect();
    let in_flight = || loads.iter().map(|load| load.in_flight()).collect::<Vec<_>>();
    assert_eq!(in_flight(), [2, 2], "as many as a server takes");
    assert_eq!(world.run(|| ()).requests.len(), 10);
    assert_eq!(in_flight(), [0, 0]);
}

#[test]
fn pickers_see_the_numbers_of_the_last_scrape() {
    let servers = Server::equal(1, &engine());
    let (picker, store) = configured(&servers);
    let arrivals = [arrival(10, &[1], 300, 1), arrival(49, &[2], 10, 1), arrival(50, &[3], 10, 1)];
    let mut world = world(picker, &servers, Interconnect::default(), &arrivals);
    let mut seen = Vec::new();
    for left in (0..arrivals.len()).rev() {
        assert!(world.run_until_left(left));
        let load = store.snapshot().endpoints()[0].load().clone();
        seen.push((load.running.last(), load.waiting.last(), load.running.read_at_ms()));
    }
    // Times are counted from 1; the second request waits for the step under way.
    assert_eq!(seen, [(0.0, 0.0, Some(1)), (0.0, 0.0, Some(1)), (1.0, 1.0, Some(51))]);
}

#[test]
fn an_hour_costs_its_scrapes_and_its_steps() {
    let hour: Vec<Arrival> = (0..=60).map(|n| arrival(n * 60_000, &[u64::from(n)], 150, 4)).collect();
    let outcomes = run(&Policy::Configured(None), &engine(), 8, &hour);
    assert!(outcomes.requests.iter().all(|outcome| outcome.last.is_some()));
    // Eight servers, twenty times a second, and once more at the very end.
    assert_eq!(outcomes.events.scrapes, 8 * (3600 * 20 + 1));
    // Per request: it begins, two steps for its prompt, three for the other tokens.
    assert_eq!(outcomes.events.engine, 61 * 6);
    let baseline = run(&Policy::RoundRobin, &engine(), 8, &hour);
    assert_eq!(baseline.events.scrapes, 0, "nobody reads them");
}

const DISAGGREGATED: &str = "
plugins:
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
- {type: always-disagg-pd-decider}
- {type: prefill-filter}
- {type: decode-filter}
- {type: active-request-scorer}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: active-request-scorer}]}
- {name: decode, plugins: [{pluginRef: decode-filter}]}
";

/// A server per role, in zones of their names; links of 20,000 bytes per second where
/// nothing is shared, 100,000 in a zone, and 10 bytes per token.
fn disaggregated(servers: &[(&str, &str)], arrivals: &[Arrival], prefill: &EngineConfig) -> RequestOutcomes {
    let server = |(role, zone): &(&str, &str)| {
        let engine = if *role == "prefill" { prefill.clone() } else { engine() };
        let labels = [(ROLE_LABEL, *role), ("topology.kubernetes.io/zone", *zone)];
        let labels = labels.map(|(label, value)| (label.to_owned(), value.to_owned()));
        Server { labels: labels.into(), ..Server::new(format!("{role}-{zone}"), engine) }
    };
    let servers: Vec<Server> = servers.iter().map(server).collect();
    let config = EndpointPickerConfig::parse(DISAGGREGATED).unwrap();
    let policy = Policy::Configured(Some(Box::new(config)));
    let reading = reading();
    let (picker, _) = Picker::new(&policy, &servers, reading, 1, &build).unwrap();
    let links = Links::new([0, 0, 100_000, 0, 20_000]);
    world(picker, &servers, Interconnect { links, kv_bytes_per_token: 10 }, arrivals).run(|| ())
}

#[test]
fn a_prompt_is_computed_moved_and_answered() {
    let arrivals = [arrival(0, &[1], 200, 3), arrival(5000, &[1], 200, 3)];
    // 200 ms to compute, 2,000 bytes to move, and a step of 10 ms for every token. The
    // second time 192 tokens are in both caches: 8 to compute, and 80 bytes.
    let far = disaggregated(&[("prefill", "a"), ("decode", "b")], &arrivals, &engine());
    assert_eq!(times(&far), [(310, 330), (22, 42)]);
    let near = disaggregated(&[("prefill", "a"), ("decode", "a")], &arrivals[..1], &engine());
    assert_eq!(times(&near), [(230, 250)]);
    let RequestOutcome { server, prefiller, computed_by, cached_tokens, .. } = far.requests[1];
    assert_eq!((server, prefiller, computed_by, cached_tokens), (Some(1), Some(0), Some(0), 192));
}

#[test]
fn prompts_are_spread_by_in_flight_load() {
    let arrivals: Vec<Arrival> = (0..4).map(|n| arrival(n, &[u64::from(n)], 200, 1)).collect();
    let outcomes =
        disaggregated(&[("prefill", "a"), ("prefill", "b"), ("decode", "a")], &arrivals, &engine());
    let count =
        |position| outcomes.requests.iter().filter(|outcome| outcome.prefiller == Some(position)).count();
    assert_eq!((count(0), count(1)), (2, 2));
    assert!(outcomes.requests.iter().all(|outcome| outcome.server == Some(2) && outcome.last.is_some()));
}

#[test]
fn prompt_refused_by_prefill_is_computed_by_decode() {
    let small = EngineConfig { max_model_len: 100, ..engine() };
    let outcomes = disaggregated(&[("prefill", "a"), ("decode", "b")], &[arrival(0, &[1], 200, 3)], &small);
    assert_eq!(times(&outcomes), [(200, 220)]);
    let RequestOutcome { prefiller, computed_by, refused, .. } = outcomes.requests[0];
    assert_eq!((prefiller, computed_by, refused), (Some(0), Some(1), false));
}

#[test]
fn turn_follows_a_pause_after_the_previous_response() {
    let first = Arrival { response: Some(9), ..arrival(0, &[1], 64, 32) };
    let prompt = first.prompt.iter().copied().chain(first.response()).collect();
    let second = Arrival { at: 500 * MS, after: [0].into(), prompt, output_tokens: 1, ..Arrival::default() };
    for policy in [Policy::RoundRobin, Policy::Configured(None), Policy::Reference(Formula::BlockCost)] {
        let outcomes = run(&policy, &engine(), 1, &[first.clone(), second.clone()]);
        // 64 ms for the prompt, and 31 steps.
        assert_eq!(times(&outcomes)[0], (64, 64 + 310), "{policy:?}");
        assert_eq!(outcomes.requests[1].arrived, (64 + 310 + 500) * MS);
        assert!(outcomes.requests[1].cached_tokens >= 64, "{:?}", outcomes.requests[1]);
    }
}

#[test]
fn clients_see_tokens_later_by_the_delay_of_the_gateway() {
    let first = arrival(5, &[1], 64, 3);
    let second = Arrival { after: [0].into(), ..arrival(500, &[2], 64, 1) };
    let servers = Server::equal(1, &engine());
    let reading = reading();
    let (picker, _) = Picker::new(&Policy::RoundRobin, &servers, reading, 1, &build).unwrap();
    let world = world(picker, &servers, Interconnect::default(), &[first, second]);
    let outcomes = world.with_gateway_delay(7 * MS).run(|| ());
    assert_eq!(times(&outcomes), [(71, 91), (71, 71)]);
    assert_eq!(outcomes.requests[1].arrived, (5 + 91 + 500) * MS);
}

#[test]
fn requests_after_a_refused_one_still_arrive() {
    let small = EngineConfig { max_model_len: 100, ..engine() };
    let second = Arrival { after: [0].into(), ..arrival(10, &[2], 50, 1) };
    let outcomes = run(&Policy::RoundRobin, &small, 1, &[arrival(0, &[1], 200, 1), second]);
    assert_eq!((outcomes.requests[0].refused, outcomes.requests[1].arrived), (true, 10 * MS));
    assert!(outcomes.requests[1].last.is_some());
}

#[test]
fn late_server_gets_no_request_before_it_joins() {
    let mut servers = Server::equal(2, &engine());
    servers[1].joins = 1000 * MS;
    let arrivals: Vec<Arrival> = (0..20).map(|n| arrival(n * 100, &[u64::from(n)], 10, 1)).collect();
    for policy in
        [Policy::RoundRobin, Policy::Random, Policy::Configured(None), Policy::Reference(Formula::Product)]
    {
        let reading = reading();
        let (picker, _) = Picker::new(&policy, &servers, reading, 1, &build).unwrap();
        let outcomes = world(picker, &servers, Interconnect::default(), &arrivals).run(|| ());
        let late =
            |outcomes: &[RequestOutcome]| outcomes.iter().filter(|outcome| outcome.server == Some(1)).count();
        assert_eq!(late(&outcomes.requests[..10]), 0, "{policy:?}");
        assert!(late(&outcomes.requests[10..]) > 1, "{policy:?}");
        assert!(outcomes.requests.iter().all(|outcome| outcome.last.is_some()));
    }
}

#[test]
fn reference_formulas_prefer_cached_and_idle_servers() {
    let arrivals = [
        arrival(0, &[1], 640, 1),
        // Where the first one was; behind it, where nothing waits.
        arrival(2000, &[1], 640, 1),
        arrival(2001, &[2], 640, 1),
    ];
    for formula in [Formula::Product, Formula::BlockCost] {
        let servers: Vec<_> = run(&Policy::Reference(formula), &engine(), 2, &arrivals)
            .requests
            .iter()
            .map(|outcome| outcome.server)
            .collect();
        assert_eq!(servers[0], servers[1], "{formula:?}");
        assert_ne!(servers[1], servers[2], "{formula:?}");
    }
}
