//! The arguments of `usher replay`, and what they come to.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::recorded::{Fitted, Wanted};
use super::suite::{Suite, SuiteArgs};
use crate::cli::demo::TRACE;
use crate::cli::engine::EngineArgs;
use crate::cli::range::{scrape_interval, share};
use crate::load::trace::{self, Row};
use crate::replay::{
    Arrival, Fixed, Formula, Interconnect, LatencyClass, MOST_SERVERS, Policy, Server, Settings, Workload,
    classify, of_trace, parse_servers, repeat, speed_up, utilize,
};
use crate::sim::{Dialect, EngineConfig, KV_BYTES_PER_TOKEN, Links};
use usher_core::config::source::{read_file, unreadable};
use usher_core::config::units::parse_duration;
use usher_core::config::{ConfigError, EndpointPickerConfig};
use usher_terminal::Output;

/// Share of the servers' capacity that generated workloads ask for.
const UTILIZATION: f64 = 0.7;

/// Users of generated sessions.
const USERS: usize = 100;

/// Requests of generated workloads.
const REQUESTS: usize = 10_000;

/// Most requests that can be asked for; each takes some 100 bytes, and as many for every policy.
pub const MOST_REQUESTS: u64 = 1_000_000;

/// Error for `--rate`, which had another meaning than in `usher load`.
pub const NO_RATE: &str =
    "--rate is requests per second, of usher load; give --speed FACTOR for the trace so many times as fast";

/// Factor by which the slow server is slower.
const SLOWER: f64 = 3.0;

/// Arguments of `usher replay`.
#[derive(Debug, Clone, Args)]
#[command(arg_required_else_help = true)]
pub struct ReplayArgs {
    /// A configuration (EndpointPickerConfig). May be given several times; decisions are
    /// compared with those of the first. Its discovery plugins are ignored.
    #[arg(long = "config-file", alias = "config", value_name = "FILE")]
    pub config: Vec<PathBuf>,
    /// A policy without a configuration. May be given several times. round-robin is always included.
    #[arg(long, value_enum, value_name = "NAME")]
    pub baseline: Vec<Baseline>,
    /// Time between two scrapes of a server, where the configuration says nothing else. At
    /// least 50ms.
    #[arg(long = "refresh-metrics-interval", alias = "scrape-interval", value_name = "TIME", default_value = "50ms", value_parser = scrape_interval)]
    pub scrape_interval: Duration,
    /// Age from which a server's metrics no longer count.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    pub metrics_staleness_threshold: Duration,
    /// Latency of client, gateway and picker, added to that of the server. [default: 0, or fitted to a
    /// recording]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub gateway_delay: Option<Duration>,
    /// Limit on the time to the first token of a good response.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    pub ttft_limit: Duration,
    /// Limit on the mean time per output token of a good response.
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = parse_duration)]
    pub tpot_limit: Duration,
    /// Seed of all random values: texts, lengths, times, decisions, servers.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Format of the result.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,

    /// Requests of a trace. Lines of JSON as Mooncake's, or Azure's CSV.
    #[arg(long, value_name = "FILE", help_heading = "Requests")]
    pub trace: Option<PathBuf>,
    /// Generated requests.
    #[arg(long, value_enum, value_name = "NAME", help_heading = "Requests")]
    pub workload: Option<WorkloadName>,
    /// Requests and servers of a recording that usher serve --record wrote, with FILE.1 before it. May be
    /// given several times, for replicas. Simulated engines are fitted to the times that were measured.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["trace", "workload", "latency_class", "servers", "servers_file"], help_heading = "Requests")]
    pub recording: Vec<PathBuf>,
    /// Requests at most. Default: all of a trace or a recording; 10000 of a workload.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST_REQUESTS), help_heading = "Requests")]
    pub requests: Option<u64>,
    /// Users of conversations and agents; each waits for the response before the next request.
    #[arg(long, value_name = "N", default_value_t = USERS as u64, value_parser = clap::value_parser!(u64).range(1..=MOST_REQUESTS), help_heading = "Requests")]
    pub users: u64,
    /// Speed of the trace or the recording, as a multiple of the recorded one. Default: 1.
    #[arg(long, value_name = "FACTOR", value_parser = above_zero, conflicts_with_all = ["utilization", "workload"], help_heading = "Requests")]
    pub speed: Option<f64>,
    /// Refused: what --speed was called.
    #[arg(long, hide = true)]
    pub rate: Option<String>,
    /// Rate of requests, as a share of the servers' capacity without prefix cache hits. Default: 0.7
    /// with --workload.
    #[arg(long, value_name = "SHARE", value_parser = share, help_heading = "Requests")]
    pub utilization: Option<f64>,

    /// A latency class, such as 500ms/25ms: TTFT and TPOT that its requests name as their targets
    /// and are judged by. Given several times, each request is of one of them, all equally
    /// probable.
    #[arg(long, value_name = "TTFT/TPOT", value_parser = latency_class, help_heading = "Requests")]
    pub latency_class: Vec<LatencyClass>,
    /// Send requests without the targets of their class, and judge them by these.
    #[arg(long, requires = "latency_class", help_heading = "Requests")]
    pub hide_targets: bool,

    /// Simulated servers, all equal. Default: 8.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST_SERVERS as u64), conflicts_with = "servers_file", help_heading = "Servers")]
    pub servers: Option<u64>,
    /// Servers that differ, in YAML or JSON: `servers: [{count: 7}, {slower: 3}]`, with
    /// name, labels, and the flags below as prefillRate, decodeStep and so on.
    #[arg(long, value_name = "FILE", help_heading = "Servers")]
    pub servers_file: Option<PathBuf>,
    /// Speed of the servers.
    #[command(flatten, next_help_heading = "Servers")]
    pub engine: EngineArgs,
    /// Bytes per second between servers by what their labels share, such as host=200G,
    /// rack=50G,zone=12.5G,region=3.125G,none=1.25G, which are the defaults, for KV caches
    /// transferred from prefill to decode servers. 0: transfers cost nothing.
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "LINKS",
        help_heading = "Servers"
    )]
    pub links: Links,
    /// KV cache bytes per prompt token that is transferred.
    #[arg(long, default_value_t = KV_BYTES_PER_TOKEN, value_name = "BYTES", help_heading = "Servers")]
    pub kv_bytes_per_token: u64,
    /// All policies on all workloads.
    #[command(flatten)]
    pub suite: SuiteArgs,
}

/// A policy without a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Baseline {
    /// Any server.
    Random,
    /// One server after the other.
    RoundRobin,
    /// The shortest queue, as the servers report it.
    Queue,
    /// llm-d-router's built-in configuration.
    #[value(name = "llm-d-router-default", alias = "peer-default")]
    RouterDefault,
    /// Sticky until saturated: the servers that have the prefix in their caches, until they are full.
    Sticky,
    /// LMetric's product (arXiv 2603.15202), with perfect knowledge of caches and loads.
    Lmetric,
    /// The block cost of NVIDIA Dynamo's router, with perfect knowledge of caches and loads.
    BlockCost,
}

impl Baseline {
    /// The policy, under the name that it has on the command line.
    fn policy(self) -> Result<(String, Policy), String> {
        let name = self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        let configured = |text: &str| {
            let config = EndpointPickerConfig::parse(text).map_err(|error| error.to_string())?;
            Ok::<_, String>(Policy::Configured(Some(Box::new(config))))
        };
        let policy = match self {
            Self::Random => Policy::Random,
            Self::RoundRobin => Policy::RoundRobin,
            Self::Queue => configured(QUEUE)?,
            Self::RouterDefault => Policy::Configured(None),
            Self::Sticky => configured(STICKY)?,
            Self::Lmetric => Policy::Reference(Formula::Product),
            Self::BlockCost => Policy::Reference(Formula::BlockCost),
        };
        Ok((name, policy))
    }
}

/// The shortest queue.
const QUEUE: &str = "plugins: [{type: queue-scorer}]";

/// The configuration that the README recommends.
const RECOMMENDED: &str = include_str!("../../../../../deploy/config/expected-latency.yaml");

/// The configuration that ships as such.
const STICKY: &str = include_str!("../../../../../deploy/config/sticky-until-saturated.yaml");

/// Generated requests. Responses have 1 to 1,000 tokens, median 150. Lengths are log-normal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WorkloadName {
    /// Independent requests with a system prompt of 128 tokens that all share, and 16 to
    /// 16,000 tokens of their own, median 1,000
    Poisson,
    /// 64 times the same prompt of 1,024 tokens, all at one moment; the next 64, of another
    /// prompt, after 0.75 to 1.25 times the mean time
    Bursts,
    /// As bursts, but every prompt is another one
    DistinctBursts,
    /// Independent requests with one system prompt of 2,000 tokens and 32 to 400 of their
    /// own; responses of 300 to 2,000 tokens, median 800
    LongAnswers,
    /// Independent requests of 64 to 2,000 tokens that share nothing; responses of 500 to
    /// 8,000 tokens, median 2,000
    Reasoning,
    /// Independent questions about one of 900 documents of 4,000 to 12,000 tokens, more than
    /// all caches hold
    Documents,
    /// Users who talk in turns, each with all turns and responses before it; --users of them
    Conversations,
    /// Agents that plan, branch, call tools and join; --users of them
    Agents,
    /// Independent requests of 400 groups; a prompt's first half is its group's, of 128 to
    /// 8,000 tokens, median 1,000, its second half its own
    HalfShared,
    /// The trace, or the slice of Mooncake's conversations that comes with the program,
    /// again and again with other texts
    Chat,
    /// Independent requests with one of 20 system prompts of 1,000 tokens, and as many of
    /// their own as with poisson; the first server takes three times as long
    SlowServer,
}

impl WorkloadName {
    /// Workload to generate; `None`: the requests are the trace's.
    fn generated(self) -> Option<Workload> {
        match self {
            Self::Poisson => Some(Workload::Poisson),
            Self::Bursts => Some(Workload::Bursts),
            Self::HalfShared => Some(Workload::HalfShared),
            Self::SlowServer => Some(Workload::SlowServer),
            Self::DistinctBursts => Some(Workload::DistinctBursts),
            Self::LongAnswers => Some(Workload::LongAnswers),
            Self::Reasoning => Some(Workload::Reasoning),
            Self::Documents => Some(Workload::Documents),
            Self::Conversations => Some(Workload::Conversations),
            Self::Agents => Some(Workload::Agents),
            Self::Chat => None,
        }
    }

    /// Name on the command line.
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// A number above 0.
///
/// # Errors
/// A message if the text is no such number.
pub fn above_zero(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
        _ => Err("give a number above 0".to_owned()),
    }
}

fn latency_class(text: &str) -> Result<LatencyClass, String> {
    let (ttft, tpot) = text.split_once('/').ok_or("give two times, such as 500ms/25ms")?;
    let time = |text| match parse_duration(text)? {
        Duration::ZERO => Err("a target is longer than 0".to_owned()),
        time => Ok(time),
    };
    Ok(LatencyClass { ttft: time(ttft)?, tpot: time(tpot)?, is_named: true })
}

/// Settings of a replay, and the description of its requests for the report.
#[derive(Debug)]
pub struct Plan {
    /// Settings of the replay.
    pub settings: Settings,
    /// Source of the requests.
    pub source: String,
    /// Speed in multiples of the recording's; `None`: they were not recorded.
    pub speed: Option<f64>,
    /// Fit and outcomes of a recording; `None` without one.
    pub recorded: Option<Fitted>,
}

/// Servers and requests.
struct World {
    servers: Vec<Server>,
    arrivals: Vec<Arrival>,
    source: String,
    recorded: Option<Fitted>,
}

impl ReplayArgs {
    /// Plan that the arguments stand for, with the files read.
    ///
    /// # Errors
    /// One line that names arguments which don't fit together, or a file and its mistake.
    pub fn plan(&self) -> Result<Plan, String> {
        if self.rate.is_some() {
            return Err(NO_RATE.to_owned());
        }
        if self.config.is_empty() && self.baseline.is_empty() {
            return Err("no policy to replay; give --config-file FILE or --baseline NAME".to_owned());
        }
        let interconnect =
            Interconnect { links: self.links.clone(), kv_bytes_per_token: self.kv_bytes_per_token };
        let World { servers, mut arrivals, source, recorded } = self.world(&interconnect)?;
        let mut policies = self.policies()?;
        if !self.baseline.contains(&Baseline::RoundRobin) {
            policies.push(Baseline::RoundRobin.policy()?);
        }
        let closed = arrivals.iter().any(Arrival::follows);
        if closed && self.utilization.is_some() {
            return Err(
                "--utilization has no meaning where users wait for responses; give --users".to_owned()
            );
        }
        let share = self.utilization.or(self.workload.filter(|_| !closed).map(|_| UTILIZATION));
        let speed = match share {
            Some(share) => Some(utilize(&mut arrivals, &servers, share).ok_or(
                "--utilization can't be reached: the requests come all at once, or cost the servers nothing",
            )?),
            None => self.speed.inspect(|factor| speed_up(&mut arrivals, *factor)),
        };
        let classes: Vec<LatencyClass> = self
            .latency_class
            .iter()
            .map(|class| LatencyClass { is_named: !self.hide_targets, ..*class })
            .collect();
        if recorded.is_none() {
            classify(&mut arrivals, &classes, self.seed);
        }
        let fitted_delay = recorded.as_ref().map(Fitted::delay);
        let has_speed = !closed && self.workload.is_none_or(|workload| workload == WorkloadName::Chat);
        let settings = Settings {
            servers,
            interconnect,
            arrivals,
            policies,
            seed: self.seed,
            scrape_interval: self.scrape_interval,
            metrics_staleness: self.metrics_staleness_threshold,
            gateway_delay: self.gateway_delay.or(fitted_delay).unwrap_or_default(),
            ttft_limit: self.ttft_limit,
            tpot_limit: self.tpot_limit,
            streams: true,
            dialect: Dialect::default(),
        };
        Ok(Plan { settings, source, speed: has_speed.then_some(speed.unwrap_or(1.0)), recorded })
    }

    /// Servers, requests with their source, and with a recording what was measured.
    fn world(&self, interconnect: &Interconnect) -> Result<World, String> {
        if self.recording.is_empty() {
            let servers = self.read_servers()?;
            let (arrivals, source) = self.arrivals()?;
            return Ok(World { servers, arrivals, source, recorded: None });
        }
        let engine = EngineConfig { seed: self.seed, ..self.engine.config() };
        engine.validate().map_err(|error| error.to_string())?;
        let fixed = Fixed {
            prefill_rate: self.engine.prefill_rate.is_some(),
            decode_step: self.engine.decode_step.is_some(),
            batch_factor: self.engine.batch_factor.is_some(),
            delay: self.gateway_delay.is_some(),
        };
        let wanted = Wanted {
            files: &self.recording,
            limit: usize::try_from(self.requests.unwrap_or(MOST_REQUESTS)).unwrap_or(usize::MAX),
            engine: &engine,
            delay: self.gateway_delay.unwrap_or_default(),
            fixed,
            interconnect,
            seed: self.seed,
        };
        let (servers, arrivals, fitted) = wanted.read()?;
        let names: Vec<String> = self.recording.iter().map(|path| path.display().to_string()).collect();
        Ok(World { servers, arrivals, source: names.join(", "), recorded: Some(fitted) })
    }

    /// Settings of the suite: the policies that are given, or that of the README, and all
    /// baselines.
    pub(super) fn suite(&self) -> Result<Suite<'_>, String> {
        let mut policies = self.policies()?;
        if policies.is_empty() {
            let config = EndpointPickerConfig::parse(RECOMMENDED).map_err(|error| error.to_string())?;
            policies.push(("expected-latency".to_owned(), Policy::Configured(Some(Box::new(config)))));
        }
        for baseline in Baseline::value_variants() {
            if !self.baseline.contains(baseline) {
                policies.push(baseline.policy()?);
            }
        }
        let rows = trace::parse(TRACE, usize::MAX).map_err(|error| error.to_string())?;
        Ok(Suite { args: &self.suite, policies, rows, limits: (self.ttft_limit, self.tpot_limit) })
    }

    fn arrivals(&self) -> Result<(Vec<Arrival>, String), String> {
        let users = usize::try_from(self.users).unwrap_or(usize::MAX);
        let count = self.requests.map(|count| usize::try_from(count).unwrap_or(usize::MAX));
        match (self.workload, &self.trace) {
            (None, None) => {
                Err("there is no request; give --trace FILE, --workload NAME or --recording FILE".to_owned())
            }
            (None, Some(path)) => {
                let rows = rows(path, count.unwrap_or(usize::MAX))?;
                Ok((of_trace(&rows, self.seed), path.display().to_string()))
            }
            (Some(workload), trace) => {
                let name = workload.name();
                if let Some(generated) = workload.generated() {
                    if trace.is_some() {
                        return Err(format!(
                            "--workload {name} is generated; with --trace use --workload chat, or none"
                        ));
                    }
                    return Ok((generated.arrivals(count.unwrap_or(REQUESTS), users, self.seed), name));
                }
                let (rows, count) = match trace {
                    Some(path) => {
                        let rows = rows(path, usize::MAX)?;
                        let count = count.unwrap_or(rows.len());
                        (rows, count)
                    }
                    None => {
                        let rows = trace::parse(TRACE, usize::MAX).map_err(|error| error.to_string())?;
                        (rows, count.unwrap_or(REQUESTS))
                    }
                };
                Ok((repeat(&rows, count, self.seed), name))
            }
        }
    }

    fn read_servers(&self) -> Result<Vec<Server>, String> {
        let engine = EngineConfig { seed: self.seed, ..self.engine.config() };
        engine.validate().map_err(|error| error.to_string())?;
        let slow = self.workload == Some(WorkloadName::SlowServer);
        let Some(path) = &self.servers_file else {
            let count = self.servers.map_or(8, |count| usize::try_from(count).unwrap_or(usize::MAX));
            let mut servers = Server::equal(count, &engine);
            if slow && let Some(first) = servers.first_mut() {
                first.slow_down(SLOWER);
            }
            return Ok(servers);
        };
        if slow {
            return Err(
                "--workload slow-server slows one of equal servers down; with --servers-file say in the file which are slow, and use --workload poisson"
                    .to_owned(),
            );
        }
        let in_file = |error: ConfigError| error.in_file(&path.display().to_string());
        let text =
            std::fs::read_to_string(path).map_err(|error| in_file(unreadable("file of servers", &error)))?;
        parse_servers(&text, &engine).map_err(in_file)
    }

    fn policies(&self) -> Result<Vec<(String, Policy)>, String> {
        let mut policies = Vec::with_capacity(self.config.len() + self.baseline.len());
        for path in &self.config {
            let name = path.display().to_string();
            let config = read_file(path).and_then(|text| EndpointPickerConfig::parse_unless_empty(&text));
            let config = config.map_err(|error| error.in_file(&name))?;
            policies.push((name, Policy::Configured(config.map(Box::new))));
        }
        for baseline in &self.baseline {
            policies.push(baseline.policy()?);
        }
        Ok(policies)
    }
}

/// The first requests of a trace's file.
///
/// # Errors
/// One line that names the file and its mistake.
pub fn rows(path: &Path, limit: usize) -> Result<Vec<Row>, String> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| unreadable("trace", &error).in_file(&name))?;
    trace::parse(&text, limit).map_err(|error| format!("cannot use {name}: {error}"))
}
