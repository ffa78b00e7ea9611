//! Settings of a replay.

use std::time::Duration;

use super::policy::Policy;
use super::servers::Server;
use super::workload::Arrival;
use super::world::Interconnect;
use crate::sim::Dialect;

/// A replay.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The servers, of which every policy gets its own.
    pub servers: Vec<Server>,
    /// Links that prompts move over.
    pub interconnect: Interconnect,
    /// The requests, in order of arrival.
    pub arrivals: Vec<Arrival>,
    /// Names that the user gave, and policies that decide. Decisions are compared with those of
    /// the first.
    pub policies: Vec<(String, Policy)>,
    /// Seed of everything random, except for the arrivals and the servers.
    pub seed: u64,
    /// Responses are streams; `false`: they come whole.
    pub streams: bool,
    /// Kind of server whose histograms are read.
    pub dialect: Dialect,
    /// Time between two scrapes of a server, where a configuration says nothing else.
    /// Less than 50 ms counts as that, as in the server.
    pub scrape_interval: Duration,
    /// Age from which metrics count as missing.
    pub metrics_staleness: Duration,
    /// Time that a request and its response take between client, gateway, picker and server,
    /// together: clients see it on top of what a server takes.
    pub gateway_delay: Duration,
    /// Until then a first token is in time.
    pub ttft_limit: Duration,
    /// Mean time between two tokens of a response up to which it is fast enough.
    pub tpot_limit: Duration,
}

impl Settings {
    /// Speeds up servers and clients by `times`, above 0, and shortens the limits accordingly. Intervals
    /// of pickers stay: so a picker sees servers that run `times` as fast as they would.
    pub fn accelerate(&mut self, times: f64) {
        let faster = |time: &mut Duration| {
            *time = Duration::try_from_secs_f64(time.as_secs_f64() / times).unwrap_or(Duration::MAX);
        };
        for server in &mut self.servers {
            server.slow_down(1.0 / times);
            faster(&mut server.joins);
            server.leaves.iter_mut().for_each(faster);
        }
        for arrival in &mut self.arrivals {
            faster(&mut arrival.at);
            if let Some(class) = &mut arrival.class {
                faster(&mut class.ttft);
                faster(&mut class.tpot);
            }
        }
        faster(&mut self.gateway_delay);
        faster(&mut self.ttft_limit);
        faster(&mut self.tpot_limit);
        // Rounds to whole bytes.
        let bytes = self.interconnect.kv_bytes_per_token as f64 / times;
        self.interconnect.kv_bytes_per_token = bytes.round() as u64;
    }
}
