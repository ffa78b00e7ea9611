//! One policy over its own servers in virtual time: a state machine that is told of
//! arrivals in their order, and does between them what is due.
//!
//! At one and the same instant, servers are scraped first, then requests arrive, then
//! engines go on: what arrives together can be in a step together.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::time::Duration;

use serde::Serialize;

use super::policy::{Picker, Route};
use super::servers::Server;
use super::workload::Prepared;
use crate::flow::{Rejection, Routed};
use crate::request::usage::Usage;
use crate::schedule::Served;
use crate::sim::{ConfigError, Engine, Finish, Output, Rejected, SimRequest};

/// How often what is kept for nobody is dropped, as in the server.
const SWEEP: Duration = Duration::from_secs(30);

/// Something that is due. The order of the variants is that of one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// Drop what is of no more use.
    Sweep,
    /// Read the numbers of this server.
    Scrape(usize),
    /// This server's engine goes on.
    Engine(usize),
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fate {
    /// Where it was sent; `None`: nowhere.
    pub(super) server: Option<usize>,
    /// From its arrival to its first token.
    pub(super) first: Option<Duration>,
    /// From its arrival to its last token.
    pub(super) last: Option<Duration>,
    /// It was refused, by the picker or by the server.
    pub(super) refused: bool,
    pub(super) prompt_tokens: u32,
    /// Tokens of the prompt that the server's prefix cache had.
    pub(super) cached_tokens: u32,
    pub(super) output_tokens: u32,
}

/// A request that a server has.
struct UnderWay {
    arrived: Duration,
    server: usize,
    routed: Option<Routed>,
}

/// A policy, its servers, and what became of the requests so far.
pub(super) struct World {
    picker: Picker,
    engines: Vec<Engine>,
    /// When each engine is known to go on, so that it is due once.
    armed: Vec<Option<Duration>>,
    due: BinaryHeap<Reverse<(Duration, Due)>>,
    under_way: HashMap<u64, UnderWay>,
    outputs: Vec<Output>,
    fates: Vec<Fate>,
    refusals: BTreeMap<String, u64>,
    events: Events,
}

/// How many events there were: what a replay costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Events {
    /// Servers' numbers were read.
    pub scrapes: u64,
    /// A server's engine finished a step, or began its first after a pause.
    pub engine: u64,
}

/// What became of all requests of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fates {
    /// In order of arrival.
    pub(super) requests: Vec<Fate>,
    /// Refusals by what was said.
    pub(super) refusals: BTreeMap<String, u64>,
    pub(super) events: Events,
}

impl World {
    pub(super) fn new(picker: Picker, servers: &[Server]) -> Result<Self, ConfigError> {
        let engines: Vec<Engine> =
            servers.iter().map(|server| Engine::new(server.engine.clone())).collect::<Result<_, _>>()?;
        let mut due = BinaryHeap::new();
        if let Some(scraping) = picker.scraping() {
            for (position, engine) in engines.iter().enumerate() {
                // The pool was there before the first request.
                picker.scrape(position, engine);
                due.push(Reverse((scraping.phase(position), Due::Scrape(position))));
            }
        }
        due.push(Reverse((SWEEP, Due::Sweep)));
        let armed = vec![None; engines.len()];
        let (under_way, outputs, fates) = (HashMap::new(), Vec::new(), Vec::new());
        let (refusals, events) = (BTreeMap::new(), Events::default());
        Ok(Self { picker, engines, armed, due, under_way, outputs, fates, refusals, events })
    }

    /// The next request. `now` never goes back.
    pub(super) fn arrive(&mut self, request: &Prepared, now: Duration) {
        while let Some(Reverse((at, due))) = self.due.peek().copied()
            && (at < now || (at == now && !matches!(due, Due::Engine(_))))
        {
            self.due.pop();
            self.happen(at, due, true);
        }
        self.picker.set_clock(now);
        let mut fate = Fate {
            server: None,
            first: None,
            last: None,
            refused: false,
            prompt_tokens: request.prompt_tokens,
            cached_tokens: 0,
            output_tokens: request.output_tokens,
        };
        match self.picker.pick(request, now) {
            Err(rejection) => {
                fate.refused = true;
                self.refused(by_picker(&rejection));
            }
            Ok(route) => {
                fate.server = Some(route.server);
                fate.refused = !self.send(request, route, now);
            }
        }
        self.fates.push(fate);
    }

    /// No more requests come: what is under way goes on to its end.
    pub(super) fn finish(mut self) -> Fates {
        while let Some(Reverse((at, due))) = self.due.pop() {
            if matches!(due, Due::Engine(_)) {
                self.happen(at, due, false);
            }
        }
        Fates { requests: self.fates, refusals: self.refusals, events: self.events }
    }

    fn happen(&mut self, at: Duration, due: Due, again: bool) {
        self.picker.set_clock(at);
        match due {
            Due::Sweep => {
                self.picker.sweep();
                if again {
                    self.due.push(Reverse((at + SWEEP, Due::Sweep)));
                }
            }
            Due::Scrape(server) => {
                self.events.scrapes += 1;
                self.picker.scrape(server, &self.engines[server]);
                if let Some(scraping) = self.picker.scraping().filter(|_| again) {
                    self.due.push(Reverse((at + scraping.interval, due)));
                }
            }
            Due::Engine(server) => {
                // Another one is on its way if the engine was armed anew.
                if self.armed[server] != Some(at) {
                    return;
                }
                self.events.engine += 1;
                self.engines[server].advance(at, &mut self.outputs);
                self.take_outputs();
                self.arm(server);
            }
        }
    }

    /// Makes the engine due when it goes on.
    fn arm(&mut self, server: usize) {
        let next = self.engines[server].next_event_at();
        if self.armed[server] != next {
            self.armed[server] = next;
            if let Some(at) = next {
                self.due.push(Reverse((at, Due::Engine(server))));
            }
        }
    }

    /// Sends the newest request to its server; false when that refuses it.
    fn send(&mut self, request: &Prepared, route: Route, now: Duration) -> bool {
        let id = self.fates.len() as u64;
        let Route { server, mut routed } = route;
        let engine = &mut self.engines[server];
        let sent = SimRequest {
            id,
            prompt_tokens: request.prompt_tokens,
            blocks: request.blocks(engine.config().block_size).to_vec(),
            output_tokens: request.output_tokens,
            finish: Finish::Stop,
            adapter: None,
        };
        let taken = engine.arrive(sent, now);
        self.arm(server);
        match taken {
            Ok(()) => {
                self.under_way.insert(id, UnderWay { arrived: now, server, routed });
                true
            }
            Err(refusal) => {
                // An answer like any other, but for its status.
                if let Some(routed) = &mut routed {
                    routed.answer_begins(&Served::By(self.picker.address(server)));
                    routed.first_bytes();
                    routed.answer_ends(&Usage::default());
                }
                self.refused(by_server(refusal));
                false
            }
        }
    }

    fn refused(&mut self, text: String) {
        *self.refusals.entry(text).or_default() += 1;
    }

    fn take_outputs(&mut self) {
        for output in self.outputs.drain(..).filter(|output| output.generated == 1 || output.finished) {
            let Some(request) = self.under_way.get_mut(&output.id) else { continue };
            let Some(fate) = self.fates.get_mut(output.id as usize) else { continue };
            self.picker.set_clock(output.at);
            if output.generated == 1 {
                fate.first = Some(output.at.saturating_sub(request.arrived));
                fate.cached_tokens = output.cached_tokens;
                if let Some(routed) = &mut request.routed {
                    routed.answer_begins(&Served::By(self.picker.address(request.server)));
                    routed.first_bytes();
                }
            }
            if output.finished {
                fate.last = Some(output.at.saturating_sub(request.arrived));
                if let Some(routed) = &mut request.routed {
                    routed.answer_ends(&Usage {
                        prompt_tokens: Some(fate.prompt_tokens.into()),
                        completion_tokens: Some(output.generated.into()),
                        cached_tokens: Some(fate.cached_tokens.into()),
                    });
                }
                self.under_way.remove(&output.id);
            }
        }
    }
}

fn by_picker(rejection: &Rejection) -> String {
    format!("{} by the picker: {}", rejection.code.status(), rejection.message)
}

fn by_server(refusal: Rejected) -> String {
    let status = match refusal {
        Rejected::QueueFull => 429,
        Rejected::TooLong { .. } => 400,
    };
    format!("{status} by the server: {refusal}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::policy::{Policy, Reading};
    use crate::replay::workload::{Arrival, Piece, Preparation};
    use crate::sim::EngineConfig;

    const MS: Duration = Duration::from_millis(1);

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
        Arrival { at: at_ms * MS, prompt, output_tokens }
    }

    fn run(policy: &Policy, engine: &EngineConfig, servers: usize, arrivals: &[Arrival]) -> Fates {
        let servers = Server::equal(servers, engine);
        let reading = Reading { interval: 50 * MS, max_age: 2000 * MS };
        let (picker, _) = Picker::new(policy, &servers, reading, 1).unwrap();
        let mut world = World::new(picker, &servers).unwrap();
        let preparation = Preparation::new(arrivals, &servers);
        for arrival in arrivals {
            world.arrive(&preparation.prepare(arrival), arrival.at);
        }
        world.finish()
    }

    fn times(fates: &Fates) -> Vec<(u128, u128)> {
        let ms = |time: Option<Duration>| time.unwrap().as_millis();
        fates.requests.iter().map(|fate| (ms(fate.first), ms(fate.last))).collect()
    }

    #[test]
    fn one_after_the_other_a_request_takes_its_prompt_and_then_a_step_per_token() {
        // The second waits for a step of the first and shares its steps; the third comes late.
        let arrivals = [arrival(0, &[1], 250, 3), arrival(1000, &[2], 80, 1), arrival(2000, &[3], 40, 5)];
        for policy in [Policy::RoundRobin, Policy::Random, Policy::Configured(None)] {
            let fates = run(&policy, &engine(), 1, &arrivals);
            assert_eq!(times(&fates), [(250, 270), (80, 80), (40, 80)], "{policy:?}");
            assert_eq!(fates.requests[0].server, Some(0));
        }
    }

    #[test]
    fn what_arrives_together_is_in_a_step_together() {
        let arrivals = [arrival(5, &[1], 30, 1), arrival(5, &[2], 50, 2), arrival(5, &[3], 60, 1)];
        // 100 tokens a step: 30 + 50 + 20, then 40 and a token of the second's.
        let fates = run(&Policy::RoundRobin, &engine(), 1, &arrivals);
        assert_eq!(times(&fates), [(100, 100), (100, 150), (150, 150)]);
    }

    #[test]
    fn a_prefix_is_found_where_it_was_computed() {
        let arrivals =
            [arrival(0, &[7, 1], 64, 1), arrival(1000, &[7, 2], 64, 1), arrival(2000, &[7, 3], 64, 1)];
        let fates = run(&Policy::RoundRobin, &engine(), 2, &arrivals);
        let cached: Vec<u32> = fates.requests.iter().map(|fate| fate.cached_tokens).collect();
        assert_eq!(cached, [0, 0, 64]);
        assert_eq!(times(&fates)[2], (64, 64));
    }

    #[test]
    fn whoever_refuses_every_request_is_accounted_for() {
        let small = EngineConfig { max_running: 1, max_waiting: 1, max_model_len: 500, ..engine() };
        let mut arrivals: Vec<Arrival> = (0..10).map(|seed| arrival(0, &[seed], 50, 2)).collect();
        arrivals.push(arrival(1, &[1], 600, 1));
        for policy in [Policy::RoundRobin, Policy::Configured(None)] {
            let fates = run(&policy, &small, 2, &arrivals);
            let (refused, answered) = (
                fates.requests.iter().filter(|fate| fate.refused).count(),
                fates.requests.iter().filter(|fate| fate.last.is_some()).count(),
            );
            assert_eq!(refused + answered, 11, "{policy:?}");
            assert!(fates.requests.iter().all(|fate| fate.refused != fate.last.is_some()));
            assert_eq!(fates.refusals.values().sum::<u64>(), refused as u64);
            let texts: Vec<&String> = fates.refusals.keys().collect();
            assert_eq!(texts.len(), 2, "{texts:?}");
            assert!(
                texts[0].starts_with("400 by the server: ") && texts[1].starts_with("429 by the server: ")
            );
        }
    }

    #[test]
    fn what_is_under_way_is_given_back_when_it_ends() {
        let picker = |servers: &[Server]| {
            let reading = Reading { interval: 50 * MS, max_age: 2000 * MS };
            Picker::new(&Policy::Configured(None), servers, reading, 1).unwrap().0
        };
        let small = EngineConfig { max_running: 1, max_waiting: 1, ..engine() };
        let servers = Server::equal(2, &small);
        let arrivals: Vec<Arrival> = (0..10).map(|n| arrival(n, &[u64::from(n)], 50, 2)).collect();
        let preparation = Preparation::new(&arrivals, &servers);
        let mut world = World::new(picker(&servers), &servers).unwrap();
        for arrival in &arrivals {
            world.arrive(&preparation.prepare(arrival), arrival.at);
        }
        let Picker::Configured(configured) = &world.picker else { panic!("configured") };
        let loads: Vec<_> =
            configured.snapshot().endpoints().iter().map(|endpoint| endpoint.load().clone()).collect();
        let in_flight = || loads.iter().map(|load| load.in_flight()).collect::<Vec<_>>();
        assert_eq!(in_flight(), [2, 2], "as many as a server takes");
        assert_eq!(world.finish().requests.len(), 10);
        assert_eq!(in_flight(), [0, 0]);
    }

    #[test]
    fn pickers_see_the_numbers_of_the_last_scrape() {
        let servers = Server::equal(1, &engine());
        let reading = Reading { interval: 50 * MS, max_age: 2000 * MS };
        let (picker, _) = Picker::new(&Policy::Configured(None), &servers, reading, 1).unwrap();
        let mut world = World::new(picker, &servers).unwrap();
        let arrivals = [arrival(10, &[1], 300, 1), arrival(49, &[2], 10, 1), arrival(50, &[3], 10, 1)];
        let preparation = Preparation::new(&arrivals, &servers);
        let mut seen = Vec::new();
        for arrival in &arrivals {
            world.arrive(&preparation.prepare(arrival), arrival.at);
            let Picker::Configured(configured) = &world.picker else { panic!("configured") };
            let load = configured.snapshot().endpoints()[0].load().clone();
            seen.push((load.running.last(), load.waiting.last(), load.running.read_at_ms()));
        }
        // Times are counted from 1; the second request waits for the step under way.
        assert_eq!(seen, [(0.0, 0.0, Some(1)), (0.0, 0.0, Some(1)), (1.0, 1.0, Some(51))]);
    }

    #[test]
    fn an_hour_costs_its_scrapes_and_its_steps() {
        let hour: Vec<Arrival> = (0..=60).map(|n| arrival(n * 60_000, &[u64::from(n)], 150, 4)).collect();
        let fates = run(&Policy::Configured(None), &engine(), 8, &hour);
        assert!(fates.requests.iter().all(|fate| fate.last.is_some()));
        // Eight servers, twenty times a second, and once more at the very end.
        assert_eq!(fates.events.scrapes, 8 * (3600 * 20 + 1));
        // Per request: it begins, two steps for its prompt, three for the other tokens.
        assert_eq!(fates.events.engine, 61 * 6);
        let baseline = run(&Policy::RoundRobin, &engine(), 8, &hour);
        assert_eq!(baseline.events.scrapes, 0, "nobody reads them");
    }
}
