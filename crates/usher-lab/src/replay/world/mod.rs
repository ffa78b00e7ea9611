//! One policy over its own servers in virtual time: a state machine of events that are due.
//!
//! At one and the same instant, servers are scraped first, then requests arrive, then
//! engines go on: what arrives together can be in a step together. Requests that follow
//! others ([`chain`]) become due when those end.
//!
//! A request whose decision names a prefill server goes there first. With
//! its first token there, it goes to the server that responds, and its keys and values
//! over the link between the two. Should the first refuse it, the second does everything,
//! as sidecars have it.
//!
//! In a world that scales ([`resize`]), servers come and go. A server's number is given to
//! another one once it is gone.

mod chain;
mod outcome;
mod resize;
mod scaling;
mod state;

use std::cmp::Reverse;
use std::time::Duration;

use super::configured::Route;
use super::requests::Prepared;
use crate::sim::{Finish, Kind, Output, Rejected, SimRequest};
use state::{Due, SWEEP, UnderWay};
use usher_core::endpoints::health::Verdict;
use usher_core::request::usage::Usage;
use usher_core::request::{Rejection, Served};

pub(super) use chain::Chain;
pub use outcome::{Events, RequestOutcome, RequestOutcomes};
pub(super) use scaling::Scaling;
pub use state::{Interconnect, World};

impl World {
    /// Runs to the end of the last request. `progress` is called with every request that
    /// comes.
    pub fn run(mut self, mut progress: impl FnMut()) -> RequestOutcomes {
        let mut to_come = self.to_come;
        while self.step() {
            if self.to_come < to_come {
                to_come = self.to_come;
                progress();
            }
        }
        self.end()
    }

    /// Goes on until so many requests are left to come. False when nothing is due before.
    pub fn run_until_left(&mut self, to_come: usize) -> bool {
        while self.to_come > to_come {
            if !self.step() {
                return false;
            }
        }
        true
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

    fn end(self) -> RequestOutcomes {
        let fleet = self.scaling.map(|scaling| scaling.fleet);
        let latency = self.picker.latency();
        RequestOutcomes {
            requests: self.outcomes,
            refusals: self.refusals,
            events: self.events,
            fleet,
            latency,
        }
    }

    /// The request at this position comes.
    fn arrive(&mut self, position: usize, now: Duration) {
        self.to_come -= 1;
        let request = self.requests.get(position);
        let choice = self.picker.pick(position, &self.requests, &self.engines, now);
        let route = choice.as_ref().ok();
        let (server, prefiller) = (route.map(|route| route.server), route.and_then(|route| route.prefiller));
        self.outcomes[position] = RequestOutcome {
            arrived: now,
            server,
            prefiller,
            computed_by: prefiller.or(server),
            prompt_tokens: request.prompt_tokens,
            output_tokens: request.output_tokens,
            class: request.class,
            ..RequestOutcome::default()
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

    /// A server gets no more requests; those that it has end there.
    fn leave(&mut self, number: usize) {
        self.joining.remove(&number);
        self.pool.retain(|(other, _)| *other != number);
        self.picker.set_servers(&self.pool);
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
                if let Some(interval) = self.picker.scrape_interval().filter(|_| again) {
                    self.due.push(Reverse((at + interval, due)));
                }
            }
            Due::Ready(pod) => self.comes_up(pod, at),
            Due::Join(server) => self.join(server),
            Due::Leave(server) => self.leave(server),
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
        let Route { server, prefiller, observer } = route;
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
        let mut under_way = UnderWay { arrived: now, server, awaits_prompt: None, observer };
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
            self.outcomes[id].computed_by = Some(server);
        }
        self.respond(under_way, whole, now);
    }

    /// Gives a request to the server that answers it.
    fn respond(&mut self, mut under_way: UnderWay, request: SimRequest, now: Duration) {
        let (server, id) = (under_way.server, request.id);
        let taken = self.engines[server].arrive(request, now);
        self.arm(server);
        match taken {
            Ok(()) => {
                self.under_way.insert(id, under_way);
            }
            Err(refusal) => {
                // A response like any other, but for its status.
                if let Some(observer) = &mut under_way.observer {
                    observer.response_headers(&Served::By(self.picker.address(server)), Verdict::Good, false);
                    observer.first_token();
                    observer.response_complete(&Usage::default());
                }
                self.picker.ended(id as usize);
                self.refuse(id as usize, by_server(refusal), now);
            }
        }
    }

    fn refuse(&mut self, id: usize, text: String, now: Duration) {
        self.outcomes[id].refused = true;
        *self.refusals.entry(text).or_default() += 1;
        self.ended(id, now);
    }

    /// The first or the last token of what a server had to do.
    fn token(&mut self, output: Output) {
        let id = output.id as usize;
        let Some(mut request) = self.under_way.remove(&output.id) else { return };
        self.picker.set_clock(output.at);
        let seen = (output.at + self.gateway_delay).saturating_sub(request.arrived);
        let outcome = &mut self.outcomes[id];
        if let Some(rest) = request.awaits_prompt.take() {
            outcome.cached_tokens = output.cached_tokens;
            return self.respond(request, *rest, output.at);
        }
        if output.generated == 1 {
            outcome.first = Some(seen);
            if outcome.computed_by == outcome.server {
                outcome.cached_tokens = output.cached_tokens;
            }
            let observer = request.observer.as_mut().filter(|_| self.requests.streams());
            if let Some(observer) = observer {
                observer.response_headers(
                    &Served::By(self.picker.address(request.server)),
                    Verdict::Good,
                    true,
                );
                observer.first_token();
            }
            self.picker.first_token(id);
        }
        if !output.finished {
            self.under_way.insert(output.id, request);
            return;
        }
        outcome.last = Some(seen);
        if let Some(observer) = &mut request.observer {
            if !self.requests.streams() {
                observer.response_headers(
                    &Served::By(self.picker.address(request.server)),
                    Verdict::Good,
                    false,
                );
            }
            let usage = Usage {
                prompt_tokens: Some(outcome.prompt_tokens.into()),
                completion_tokens: Some(output.generated.into()),
                cached_tokens: Some(outcome.cached_tokens.into()),
            };
            observer.response_complete(&usage);
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
