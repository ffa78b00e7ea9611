//! Policies that decide where requests go: the real scheduler of a configuration, or a baseline.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use usher_core::config::EndpointPickerConfig;
use usher_core::request::Rejection;
use usher_plugins::latency::Report;

use super::configured::{Build, BuildError, Configured, Reading, Route};
use super::reference::{Formula, Reference};
use super::requests::Requests;
use super::servers::Server;
use crate::sim::Engine;

/// Policy that chooses a server for each request.
#[derive(Clone, Debug)]
pub enum Policy {
    /// Scheduler of `usher serve` with this configuration; `None`: the built-in one.
    Configured(Option<Box<EndpointPickerConfig>>),
    /// Any server, each as probable as the others.
    Random,
    /// One server after the other.
    RoundRobin,
    /// The formula of another picker.
    Reference(Formula),
}

/// A policy at work.
#[derive(Debug)]
pub struct Picker(Kind);

#[derive(Debug)]
enum Kind {
    /// The plugins of a configuration.
    Configured(Box<dyn Configured>),
    /// Any of these servers.
    Random {
        /// Draws them.
        rng: Box<StdRng>,
        /// Their numbers.
        servers: Vec<usize>,
    },
    /// One of these servers after the other.
    RoundRobin {
        /// Position of the next.
        next: usize,
        /// Their numbers.
        servers: Vec<usize>,
    },
    /// The formula of another picker.
    Reference(Box<Reference>),
    /// The server of each request, and the one that computes its prompt, if another.
    Recorded(Arc<[(usize, Option<usize>)]>),
}

impl Picker {
    /// Picks that were recorded, by position.
    pub(super) fn recorded(picks: Arc<[(usize, Option<usize>)]>) -> Self {
        Self(Kind::Recorded(picks))
    }

    /// A picker with the plugins of a configuration.
    pub fn configured(configured: Box<dyn Configured>) -> Self {
        Self(Kind::Configured(configured))
    }

    /// Sets a policy to work over these servers, numbered from 0. Returns with it what the user
    /// should know.
    ///
    /// # Errors
    /// `BuildError` if a configuration can't be run.
    pub fn new(
        policy: &Policy,
        servers: &[Server],
        reading: Reading,
        seed: u64,
        build: &Build<'_>,
    ) -> Result<(Self, Vec<String>), BuildError> {
        let rng = StdRng::seed_from_u64(seed);
        let (kind, notes) = match policy {
            Policy::Random => {
                (Kind::Random { rng: Box::new(rng), servers: (0..servers.len()).collect() }, Vec::new())
            }
            Policy::RoundRobin => {
                (Kind::RoundRobin { next: 0, servers: (0..servers.len()).collect() }, Vec::new())
            }
            Policy::Reference(formula) => {
                (Kind::Reference(Box::new(Reference::new(*formula, servers.len(), rng))), Vec::new())
            }
            Policy::Configured(config) => {
                let (configured, notes) = build(config.as_deref(), servers, reading, rng)?;
                (Kind::Configured(configured), notes)
            }
        };
        Ok((Self(kind), notes))
    }

    /// Chooses a server for the request at this position, at this time since the start.
    pub(super) fn pick(
        &mut self,
        position: usize,
        requests: &Requests,
        engines: &[Engine],
        now: Duration,
    ) -> Result<Route, Rejection> {
        let server = match &mut self.0 {
            Kind::Configured(configured) => {
                return configured.pick(now, &mut |parsers| requests.read(position, parsers));
            }
            Kind::Recorded(picks) => {
                let (server, prefiller) = picks.get(position).copied().ok_or_else(Rejection::no_endpoints)?;
                return Ok(Route { server, prefiller, observer: None });
            }
            Kind::Random { servers, .. } if servers.is_empty() => None,
            Kind::Random { rng, servers } => servers.get(rng.random_range(0..servers.len())).copied(),
            Kind::RoundRobin { next, servers } => {
                let turn = *next % servers.len().max(1);
                *next = turn + 1;
                servers.get(turn).copied()
            }
            Kind::Reference(reference) => reference.pick(position, &requests.get(position), engines),
        };
        let server = server.ok_or_else(Rejection::no_endpoints)?;
        Ok(Route { server, prefiller: None, observer: None })
    }

    /// The first token of a request is there, for a policy that learns of it nowhere else.
    pub(super) fn first_token(&mut self, position: usize) {
        if let Kind::Reference(reference) = &mut self.0 {
            reference.first_token(position);
        }
    }

    /// A request has ended, however it did; likewise.
    pub(super) fn ended(&mut self, position: usize) {
        if let Kind::Reference(reference) = &mut self.0 {
            reference.ended(position);
        }
    }

    /// From now on there are these servers, each under its number.
    pub(super) fn set_servers(&mut self, servers: &[(usize, Server)]) {
        match &mut self.0 {
            Kind::Configured(configured) => configured.set_servers(servers),
            Kind::Random { servers: numbers, .. } | Kind::RoundRobin { servers: numbers, .. } => {
                *numbers = servers.iter().map(|(number, _)| *number).collect();
            }
            Kind::Reference(reference) => {
                reference.set_servers(servers.iter().map(|(number, _)| *number).collect());
            }
            Kind::Recorded(_) => {}
        }
    }

    /// Sets the time of everything that happens next.
    pub(super) fn set_clock(&self, now: Duration) {
        if let Kind::Configured(configured) = &self.0 {
            configured.set_clock(now);
        }
    }

    /// Time between two scrapes of a server; `None`: no scrapes.
    pub(super) fn scrape_interval(&self) -> Option<Duration> {
        match &self.0 {
            Kind::Configured(configured) => configured.scrape_interval(),
            _ => None,
        }
    }

    /// Time at which the server with this number is scraped first.
    pub(super) fn first_scrape(&self, number: usize) -> Duration {
        match &self.0 {
            Kind::Configured(configured) => configured.first_scrape(number),
            _ => Duration::ZERO,
        }
    }

    /// Reads what the server with this number says, now.
    pub(super) fn scrape(&self, number: usize, engine: &Engine) {
        if let Kind::Configured(configured) = &self.0 {
            configured.scrape(number, engine);
        }
    }

    /// Drops what is of no more use, as the server does now and then.
    pub(super) fn sweep(&self) {
        if let Kind::Configured(configured) = &self.0 {
            configured.sweep();
        }
    }

    /// The latency model, where the policy has one.
    pub(super) fn latency(&self) -> Option<Report> {
        match &self.0 {
            Kind::Configured(configured) => configured.latency(),
            _ => None,
        }
    }

    /// Plugins and profiles that can never act, in a sentence; see [`Configured::idle`].
    pub(super) fn idle(&self, servers: &[Server], has_targets: bool) -> Option<String> {
        match &self.0 {
            Kind::Configured(configured) => configured.idle(servers, has_targets),
            _ => None,
        }
    }

    /// `host:port` of the server with this number, for policies that learn who served.
    pub(super) fn address(&self, number: usize) -> String {
        match &self.0 {
            Kind::Configured(configured) => configured.address(number),
            _ => String::new(),
        }
    }
}
