//! Every policy on every workload, engine model, utilization and seed.

use std::time::Duration;

use super::demand::{Demand, rate_of_user};
use super::generate::Workload;
use super::policy::Policy;
use super::servers::Server;
use super::settings::Settings;
use super::workload::{Arrival, repeat, speed_up};
use super::world::Interconnect;
use crate::load::trace::Row;
use crate::sim::{Dialect, EngineConfig, KV_BYTES_PER_TOKEN, Links, ModelKind};
use usher_core::config::{ConfigError, EndpointPickerConfig};
use usher_core::endpoints::ROLE_LABEL;
use usher_core::random::mix;

/// Times that slow servers take longer.
const SLOWER: f64 = 3.0;

/// Share of all caches that counts as one: nobody distributes perfectly.
const CACHE: f64 = 0.7;

/// Requests and users of the sample that says how much a request asks for and how many
/// requests a user makes.
const SAMPLE: (usize, usize) = (2000, 32);

/// Requests of a user, so that sessions get on, and most of all users.
const OF_USER: f64 = 7.0;
const MOST_OF_USERS: f64 = 9000.0;

/// The label of a server's accelerator.
const ACCELERATOR: &str = "llm-d.ai/accelerator";

/// Size of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// Number of servers.
    pub servers: usize,
    /// Seconds for which requests come, about.
    pub seconds: f64,
    /// Fewest and most requests, but for those of many users.
    pub requests: (f64, f64),
}

impl Default for Size {
    /// Size of the suite's runs.
    fn default() -> Self {
        Self { servers: 8, seconds: 80.0, requests: (600.0, 6000.0) }
    }
}

/// The labels of its rack and its zone.
const RACK: &str = "topology.kubernetes.io/rack";
const ZONE: &str = "topology.kubernetes.io/zone";

/// Policies that know roles, by name.
const PAIRS: [(&str, &str); 2] = [
    ("pairs", include_str!("../../../../deploy/replay/pairs.yaml")),
    ("pairs-llm-d-router-default", include_str!("../../../../deploy/replay/pd-llm-d-router-default.yaml")),
];

/// Requests of a case, and the servers that they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// Generated requests for equal servers.
    Equal(Workload),
    /// Requests of a trace, again and again with other texts, for equal servers.
    Trace,
    /// Conversations for servers of two accelerators of which one is 2.5 times slower, and a
    /// cold one of the faster joins after a third of the time.
    MixedFleet,
    /// Prompts that share nothing, for the same servers.
    MixedPrompts,
    /// Prompts whose first half others share, for servers of which one takes three times as
    /// long and has the same labels as the others.
    SlowServer,
    /// Prompts whose first half others share, for servers of which half are there to compute
    /// prompts and half to decode, in two racks. A KV cache is faster within a rack, and those
    /// that a server receives share its link. Policies that know no roles use all servers alike.
    Pairs,
}

impl Case {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Equal(Workload::Conversations),
        Self::Equal(Workload::Agents),
        Self::Equal(Workload::LongAnswers),
        Self::Equal(Workload::Reasoning),
        Self::Equal(Workload::Documents),
        Self::Equal(Workload::HalfShared),
        Self::Equal(Workload::Poisson),
        Self::Trace,
        Self::MixedFleet,
        Self::MixedPrompts,
        Self::SlowServer,
        Self::Equal(Workload::Bursts),
        Self::Equal(Workload::DistinctBursts),
        Self::Pairs,
    ];

    /// Name in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Equal(workload) => workload.name(),
            Self::Trace => "chat-trace",
            Self::MixedFleet => "mixed-fleet",
            Self::MixedPrompts => "mixed-prompts",
            Self::SlowServer => "slow-server",
            Self::Pairs => "pairs",
        }
    }

    /// Returns `true` if requests wait for the responses of others.
    pub fn is_closed(self) -> bool {
        self.workload().is_some_and(Workload::is_closed)
    }

    fn workload(self) -> Option<Workload> {
        match self {
            Self::Equal(workload) => Some(workload),
            Self::MixedFleet => Some(Workload::Conversations),
            Self::MixedPrompts => Some(Workload::Poisson),
            Self::SlowServer | Self::Pairs => Some(Workload::HalfShared),
            Self::Trace => None,
        }
    }

    fn servers(self, count: usize, engine: ModelKind, seed: u64) -> Vec<Server> {
        let drawn = EngineConfig::drawn(engine, seed);
        let mut servers = Server::equal(count, &EngineConfig { seed, ..drawn });
        match self {
            Self::MixedFleet | Self::MixedPrompts => {
                for (number, server) in servers.iter_mut().enumerate() {
                    let slow = number % 2 == 1;
                    if slow {
                        server.slow_down(2.5);
                    }
                    let name = if slow { "slow" } else { "fast" };
                    server.labels.insert(ACCELERATOR.to_owned(), name.to_owned());
                }
            }
            Self::SlowServer => servers.iter_mut().take(1).for_each(|first| first.slow_down(SLOWER)),
            Self::Pairs => {
                for (number, server) in servers.iter_mut().enumerate() {
                    server.engine.shared_link = true;
                    let role = if number < count / 2 { "prefill" } else { "decode" };
                    let rack = if number % 2 == 0 { "a" } else { "b" };
                    let labels = [(ROLE_LABEL, role), (RACK, rack), (ZONE, "z")];
                    server.labels.extend(labels.map(|(label, value)| (label.to_owned(), value.to_owned())));
                }
            }
            Self::Equal(_) | Self::Trace => {}
        }
        servers
    }

    /// Policies that only this case has.
    ///
    /// # Errors
    /// `ConfigError` for a configuration that isn't valid.
    pub fn policies(self) -> Result<Vec<(String, Policy)>, ConfigError> {
        if self != Self::Pairs {
            return Ok(Vec::new());
        }
        let parse = |(name, text): (&str, &str)| {
            let config = EndpointPickerConfig::parse(text)?;
            Ok((name.to_owned(), Policy::Configured(Some(Box::new(config)))))
        };
        PAIRS.into_iter().map(parse).collect()
    }

    fn interconnect(self) -> Interconnect {
        match self {
            Self::Pairs => Interconnect { links: Links::default(), kv_bytes_per_token: KV_BYTES_PER_TOKEN },
            _ => Interconnect::default(),
        }
    }
}

/// One run of all policies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Requests and servers.
    pub case: Case,
    /// Model of the servers' engines.
    pub engine: ModelKind,
    /// Share of what the servers can do with good caches that is asked for.
    pub utilization: f64,
    /// Seed of everything random, the constants of the engines included.
    pub seed: u64,
}

impl Cell {
    /// Settings of the run. `rows`: the trace; `limits`: of a good first token and of a good time per
    /// token.
    pub fn settings(
        &self,
        policies: Vec<(String, Policy)>,
        rows: &[Row],
        limits: (Duration, Duration),
    ) -> Settings {
        self.settings_of(Size::default(), policies, rows, limits)
    }

    /// Seed of the engines' constants, and of the first server's jitter.
    pub fn engine_seed(&self) -> u64 {
        mix(self.seed)
    }

    /// [`settings`](Self::settings) of a run of another size than the suite's.
    pub fn settings_of(
        &self,
        size: Size,
        policies: Vec<(String, Policy)>,
        rows: &[Row],
        limits: (Duration, Duration),
    ) -> Settings {
        let seed = self.engine_seed();
        let mut servers = self.case.servers(size.servers, self.engine, seed);
        let cache: f64 = servers.iter().map(Server::cache_tokens).sum::<f64>() * CACHE;
        let (sampled, users) = SAMPLE;
        let generate = |count: usize, users: usize| match self.case.workload() {
            Some(workload) => workload.arrivals(count, users, seed),
            None => repeat(rows, count, seed),
        };
        let sample = generate(sampled, users);
        let wanted = self.utilization * Demand::of(&sample, cache).capacity(&servers);
        let (fewest, most) = size.requests;
        let count = (wanted * size.seconds).max(fewest).min(most) as usize;
        let mut arrivals: Vec<Arrival>;
        if self.case.is_closed() {
            let users = (wanted / rate_of_user(&sample, users)).round().max(1.0);
            let count = (users * OF_USER).max(count as f64).min(MOST_OF_USERS.max(count as f64));
            arrivals = generate(count as usize, users as usize);
        } else {
            arrivals = generate(count, 1);
            if let Some(offered) = super::capacity::offered_rate(&arrivals) {
                speed_up(&mut arrivals, wanted / offered);
            }
        }
        if matches!(self.case, Case::MixedFleet | Case::MixedPrompts)
            && let Some(cold) = servers.first_mut()
        {
            cold.joins = Duration::try_from_secs_f64(size.seconds / 3.0).unwrap_or_default();
        }
        let (ttft_limit, tpot_limit) = limits;
        Settings {
            servers,
            interconnect: self.case.interconnect(),
            arrivals,
            policies,
            seed,
            scrape_interval: Duration::from_millis(50),
            metrics_staleness: Duration::from_secs(2),
            gateway_delay: Duration::ZERO,
            ttft_limit,
            tpot_limit,
            streams: true,
            dialect: Dialect::default(),
        }
    }
}
