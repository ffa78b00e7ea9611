//! One policy over its own servers in virtual time: a state machine of events that are due.
//!
//! At one and the same instant, servers are scraped first, then requests arrive, then
//! engines go on: what arrives together can be in a step together. Requests that follow
//! others ([`chain`]) become due when those end.
//!
//! A request whose decision names somebody to compute the prompt goes there first. With
//! its first token there, it goes to the server that answers, and its keys and values
//! over the link between the two. Should the first refuse it, the second does everything,
//! as sidecars have it.
//!
//! In a world that scales ([`scaling`]), servers come and go. A server's number is given to
//! another one once it is gone.

mod chain;
mod scaling;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::policy::{Picker, Route};
use super::requests::{Prepared, Requests};
use super::scale::Fleet;
use super::servers::Server;
use super::workload::LatencyClass;
use crate::endpoints::health::Verdict;
use crate::flow::{Rejection, Routed};
use crate::request::usage::Usage;
use crate::schedule::Served;
use crate::schedule::latency::Report;
use crate::sim::{ConfigError, Engine, Finish, Kind, Links, Output, Place, Rejected, SimRequest};

pub(super) use scaling::Scaling;

pub(super) use chain::Chain;

/// How often what is kept for nobody is dropped, as in the server.
const SWEEP: Duration = Duration::from_secs(30);

/// Something that is due. The order of the variants is that of one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// Drop what is of no more use.
    Sweep,
    /// Read what the server with this number says.
    Scrape(usize),
    /// This pod's start is over.
    Ready(u64),
    /// The server with this number joins the pool.
    Join(usize),
    /// Look how many pods there should be.
    Size,
    /// The request at this position comes.
    Arrive(usize),
    /// This server's engine goes on.
    Engine(usize),
}

/// What became of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fate {
    /// When it came.
    pub(super) arrived: Duration,
    /// Where it was sent; `None`: nowhere.
    pub(super) server: Option<usize>,
    /// Who was to compute its prompt, if somebody else.
    pub(super) prefiller: Option<usize>,
    /// Who did, or was to if nobody did.
    pub(super) computed_by: Option<usize>,
    /// From its arrival to its first token.
    pub(super) first: Option<Duration>,
    /// From its arrival to its last token.
    pub(super) last: Option<Duration>,
    /// It was refused, by the picker or by the server.
    pub(super) refused: bool,
    pub(super) prompt_tokens: u32,
    /// Tokens of the prompt that the prefix cache had of who computed the others.
    pub(super) cached_tokens: u32,
    pub(super) output_tokens: u32,
    /// Its own limits, if it has some.
    pub(super) class: Option<LatencyClass>,
}

/// A request that a server has.
struct UnderWay {
    arrived: Duration,
    /// Who answers.
    server: usize,
    /// What goes there once somebody else has computed the prompt.
    awaits_prompt: Option<Box<SimRequest>>,
    routed: Option<Routed>,
}

/// How prompts move from server to server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interconnect {
    /// How fast.
    pub links: Links,
    /// Bytes of keys and values per token of a prompt.
    pub kv_bytes_per_token: u64,
}

/// A policy, its servers, and what became of the requests so far.
pub(super) struct World {
    picker: Picker,
    engines: Vec<Engine>,
    places: Vec<Place>,
    interconnect: Interconnect,
    /// Time that clients see on top of the servers', of every request.
    gateway_delay: Duration,
    /// When each engine is known to go on, so that it is due once.
    armed: Vec<Option<Duration>>,
    due: BinaryHeap<Reverse<(Duration, Due)>>,
    under_way: HashMap<u64, UnderWay>,
    outputs: Vec<Output>,
    fates: Vec<Fate>,
    refusals: BTreeMap<String, u64>,
    events: Events,
    /// Decides how many servers there are; `None`: they stay.
    scaling: Option<Box<Scaling>>,
    requests: Arc<Requests>,
    chain: Chain,
    /// Requests that have yet to come.
    to_come: usize,
    /// Servers that joined, with their numbers.
    pool: Vec<(usize, Server)>,
    /// Servers that have yet to join, by number.
    joining: BTreeMap<usize, Server>,
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
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Fates {
    /// By position.
    pub(super) requests: Vec<Fate>,
    /// Refusals by what was said.
    pub(super) refusals: BTreeMap<String, u64>,
    pub(super) events: Events,
    /// What the servers cost that came and went.
    pub(super) fleet: Option<Fleet>,
    /// Times that a policy learned and predicted, if it did.
    pub(super) latency: Option<Report>,
}

impl World {
    /// A world of these servers in which nothing has happened. Those that join later are no
    /// candidates yet.
    pub(super) fn new(
        mut picker: Picker,
        servers: &[Server],
        interconnect: Interconnect,
        requests: Arc<Requests>,
    ) -> Result<Self, ConfigError> {
        let engines: Vec<Engine> =
            servers.iter().map(|server| Engine::new(server.engine.clone())).collect::<Result<_, _>>()?;
        let mut due = BinaryHeap::new();
        let numbered = servers.iter().cloned().enumerate();
        let (pool, joining): (Vec<_>, Vec<_>) = numbered.partition(|(_, server)| server.joins.is_zero());
        if !joining.is_empty() {
            picker.set_servers(&pool);
            due.extend(joining.iter().map(|(number, server)| Reverse((server.joins, Due::Join(*number)))));
        }
        if let Some(scraping) = picker.scraping() {
            for (position, engine) in engines.iter().enumerate() {
                // The pool was there before the first request.
                picker.scrape(position, engine);
                due.push(Reverse((scraping.phase(position), Due::Scrape(position))));
            }
        }
        due.push(Reverse((SWEEP, Due::Sweep)));
        let arrivals = requests.arrivals();
        let roots = arrivals.iter().enumerate().filter(|(_, arrival)| !arrival.follows());
        due.extend(roots.map(|(position, arrival)| Reverse((arrival.at, Due::Arrive(position)))));
        Ok(Self {
            picker,
            armed: vec![None; engines.len()],
            engines,
            places: servers.iter().map(Server::place).collect(),
            interconnect,
            gateway_delay: Duration::ZERO,
            due,
            under_way: HashMap::new(),
            outputs: Vec::new(),
            fates: vec![Fate::default(); arrivals.len()],
            refusals: BTreeMap::new(),
            events: Events::default(),
            scaling: None,
            chain: Chain::new(arrivals),
            to_come: arrivals.len(),
            requests,
            pool,
            joining: joining.into_iter().collect(),
        })
    }

    /// The same where clients see first and last tokens so much later, and follow them.
    pub(super) fn with_gateway_delay(self, gateway_delay: Duration) -> Self {
        Self { gateway_delay, ..self }
    }

    /// Runs to the end of the last request. `progress` is called with every request that
    /// comes.
    pub(super) fn run(mut self, mut progress: impl FnMut()) -> Fates {
        let mut to_come = self.to_come;
        while self.step() {
            if self.to_come < to_come {
                to_come = self.to_come;
                progress();
            }
        }
        self.end()
    }

    /// Lets the next thing happen. False when nothing is due.
    fn step(&mut self) -> bool {
        let Some(Reverse((at, due))) = self.due.pop() else { return false };
        let more = self.to_come > 0;
        if more || matches!(due, Due::Engine(_)) {
            self.happen(at, due, more);
        }
        true
    }

    fn end(self) -> Fates {
        let fleet = self.scaling.map(|scaling| scaling.fleet);
        let latency = self.picker.latency();
        Fates { requests: self.fates, refusals: self.refusals, events: self.events, fleet, latency }
    }

    /// The request at this position comes.
    fn arrive(&mut self, position: usize, now: Duration) {
        self.to_come -= 1;
        let request = self.requests.get(position);
        let choice = self.picker.pick(position, &self.requests, &self.engines, now);
        let route = choice.as_ref().ok();
        let (server, prefiller) = (route.map(|route| route.server), route.and_then(|route| route.prefiller));
        self.fates[position] = Fate {
            arrived: now,
            server,
            prefiller,
            computed_by: prefiller.or(server),
            prompt_tokens: request.prompt_tokens,
            output_tokens: request.output_tokens,
            class: request.class,
            ..Fate::default()
        };
        match choice {
            Err(rejection) => self.refuse(position, by_picker(&rejection), now),
            Ok(route) => self.send(position, &request, route, now),
        }
    }

    /// A request has ended: those that waited for it may come.
    fn ended(&mut self, position: usize, now: Duration) {
        let seen = now.saturating_add(self.gateway_delay);
        let due = self.chain.ended(position, self.requests.arrivals(), seen);
        self.due.extend(due.into_iter().map(|(at, position)| Reverse((at, Due::Arrive(position)))));
    }

    /// A server becomes a candidate.
    fn join(&mut self, number: usize) {
        let Some(server) = self.joining.remove(&number) else { return };
        let place = self.pool.partition_point(|(other, _)| *other < number);
        self.pool.insert(place, (number, server));
        self.picker.set_servers(&self.pool);
        self.picker.scrape(number, &self.engines[number]);
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
            Due::Ready(pod) => self.comes_up(pod, at),
            Due::Join(server) => self.join(server),
            Due::Arrive(position) => self.arrive(position, at),
            Due::Size => self.resize(at, again),
            Due::Engine(server) => {
                // Another one is on its way if the engine was armed anew.
                if self.armed[server] != Some(at) {
                    return;
                }
                self.events.engine += 1;
                let mut outputs = std::mem::take(&mut self.outputs);
                self.engines[server].advance(at, &mut outputs);
                self.arm(server);
                // Most tokens are neither the first nor the last.
                for output in outputs.drain(..).filter(|output| output.generated == 1 || output.finished) {
                    self.token(output);
                }
                self.outputs = outputs;
                self.leaves_if_idle(server, at);
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

    /// Sends a request where the route says.
    fn send(&mut self, id: usize, request: &Prepared, route: Route, now: Duration) {
        let Route { server, prefiller, routed } = route;
        let part = |server: usize, kind: Kind| SimRequest {
            id: id as u64,
            prompt_tokens: request.prompt_tokens,
            blocks: request.blocks(self.engines[server].config().block_size).to_vec(),
            output_tokens: request.output_tokens,
            finish: Finish::Stop,
            adapter: None,
            kind,
        };
        let whole = part(server, Kind::Whole);
        let prompt = prefiller.map(|prefiller| (prefiller, part(prefiller, Kind::Prefill)));
        let mut under_way = UnderWay { arrived: now, server, awaits_prompt: None, routed };
        if let Some((prefiller, prompt)) = prompt {
            let taken = self.engines[prefiller].arrive(prompt, now);
            self.arm(prefiller);
            if taken.is_ok() {
                let transfer = self.interconnect.links.between(
                    &self.places[prefiller],
                    &self.places[server],
                    self.interconnect.kv_bytes_per_token,
                );
                let rest = SimRequest { kind: Kind::Decode(transfer), ..whole };
                under_way.awaits_prompt = Some(Box::new(rest));
                self.under_way.insert(id as u64, under_way);
                return;
            }
            self.fates[id].computed_by = Some(server);
        }
        self.answer(under_way, whole, now);
    }

    /// Gives a request to the server that answers it.
    fn answer(&mut self, mut under_way: UnderWay, request: SimRequest, now: Duration) {
        let (server, id) = (under_way.server, request.id);
        let taken = self.engines[server].arrive(request, now);
        self.arm(server);
        match taken {
            Ok(()) => {
                self.under_way.insert(id, under_way);
            }
            Err(refusal) => {
                // An answer like any other, but for its status.
                if let Some(routed) = &mut under_way.routed {
                    routed.answer_begins(&Served::By(self.picker.address(server)), Verdict::Good, false);
                    routed.first_token();
                    routed.answer_ends(&Usage::default(), 0);
                }
                self.picker.ended(id as usize);
                self.refuse(id as usize, by_server(refusal), now);
            }
        }
    }

    fn refuse(&mut self, id: usize, text: String, now: Duration) {
        self.fates[id].refused = true;
        *self.refusals.entry(text).or_default() += 1;
        self.ended(id, now);
    }

    /// The first or the last token of what a server had to do.
    fn token(&mut self, output: Output) {
        let id = output.id as usize;
        let Some(mut request) = self.under_way.remove(&output.id) else { return };
        self.picker.set_clock(output.at);
        let seen = (output.at + self.gateway_delay).saturating_sub(request.arrived);
        let fate = &mut self.fates[id];
        if let Some(rest) = request.awaits_prompt.take() {
            fate.cached_tokens = output.cached_tokens;
            return self.answer(request, *rest, output.at);
        }
        if output.generated == 1 {
            fate.first = Some(seen);
            if fate.computed_by == fate.server {
                fate.cached_tokens = output.cached_tokens;
            }
            let routed = request.routed.as_mut().filter(|_| self.requests.streams());
            if let Some(routed) = routed {
                routed.answer_begins(&Served::By(self.picker.address(request.server)), Verdict::Good, true);
                routed.first_token();
            }
            self.picker.first_token(id);
        }
        if !output.finished {
            self.under_way.insert(output.id, request);
            return;
        }
        fate.last = Some(seen);
        if let Some(routed) = &mut request.routed {
            if !self.requests.streams() {
                routed.answer_begins(&Served::By(self.picker.address(request.server)), Verdict::Good, false);
            }
            let usage = Usage {
                prompt_tokens: Some(fate.prompt_tokens.into()),
                completion_tokens: Some(output.generated.into()),
                cached_tokens: Some(fate.cached_tokens.into()),
            };
            routed.answer_ends(&usage, 0);
        }
        self.picker.ended(id);
        self.ended(id, output.at);
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
mod tests;
