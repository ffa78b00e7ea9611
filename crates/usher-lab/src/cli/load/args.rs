//! The arguments of `usher load`, and what they come to.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use http::{HeaderName, HeaderValue};

use crate::load::settings::{Api, Arrivals, Pace, Process, Prompts, Settings, Target, TlsMode};
use usher_core::config::units::parse_duration;
use usher_terminal::{Output, split_header};

/// Duration of a run without a flag for it.
const DURATION: Duration = Duration::from_secs(10);

/// Most tokens of all prompts together, which are kept in memory, 4 bytes each.
const MOST_TOKENS: usize = 1 << 28;

/// Heading of flags that have no meaning for a gateway.
const DIRECT: &str = "Without a gateway";

/// Arguments of `usher load`.
#[derive(Debug, Clone, Args)]
#[command(arg_required_else_help = true)]
pub struct LoadArgs {
    /// HOST:PORT of an ext_proc server, spoken to directly as Envoy does; or
    /// http://HOST:PORT of a gateway.
    #[arg(long, value_name = "TARGET")]
    pub target: String,
    /// Direct: use of TLS. The certificate is not verified. Default: if the server supports it.
    #[arg(long, value_enum, value_name = "MODE", help_heading = DIRECT)]
    pub tls: Option<Tls>,
    /// Direct: initial connections. Default: 1. Another is opened when all are at the server's limit of
    /// streams, as a gateway does.
    #[arg(long, value_name = "N", value_parser = positive, help_heading = DIRECT)]
    pub connections: Option<usize>,

    /// Open loop: requests per second, independent of responses.
    #[arg(long, value_name = "R", value_parser = above_zero, conflicts_with_all = ["concurrency", "idle", "speed"])]
    pub rate: Option<f64>,
    /// With --rate: distribution of the times between requests: even, or a Poisson process. Default:
    /// even.
    #[arg(long, value_enum, value_name = "HOW", requires = "rate")]
    pub arrivals: Option<Spread>,
    /// Closed loop: requests at a time. Default: 1, if nothing else sets the pace.
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with_all = ["idle", "speed"])]
    pub concurrency: Option<usize>,
    /// Direct: number of streams to open and to keep idle after their decisions.
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with_all = ["requests", "warm_up", "speed", "output_tokens", "chunk_interval", "stream"], help_heading = DIRECT)]
    pub idle: Option<usize>,
    /// Open loop: maximum of open requests; requests due beyond it are not sent and count as failed.
    /// Default: 20000.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub max_in_flight: Option<usize>,

    /// Duration of the measurement, such as 30s. Default: 10s; until the last request with --requests
    /// or --speed.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub duration: Option<Duration>,
    /// Duration of the same load before the measurement.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = pause)]
    pub warm_up: Duration,
    /// Number of measured requests after which to end.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub requests: Option<u64>,
    /// Seed of texts, arrivals and prefixes.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,

    /// Tokens of a prompt, 4 characters each. Default: 200.
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with = "trace")]
    pub tokens: Option<usize>,
    /// Requests of a trace: lines of JSON as Mooncake's, or Azure's CSV.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prefix_groups", "prefix_tokens"])]
    pub trace: Option<PathBuf>,
    /// Speed of the trace, as a multiple of the recorded one.
    #[arg(long, alias = "trace-speed", value_name = "FACTOR", value_parser = above_zero, requires = "trace")]
    pub speed: Option<f64>,
    /// Number of shared prefixes; each prompt begins with one.
    #[arg(long, value_name = "G", value_parser = positive, requires = "prefix_tokens")]
    pub prefix_groups: Option<usize>,
    /// Tokens of a shared prefix; they are part of --tokens.
    #[arg(long, value_name = "T", value_parser = positive, requires = "prefix_groups")]
    pub prefix_tokens: Option<usize>,
    /// API of the requests.
    #[arg(long, value_enum, default_value_t = ApiName::Chat)]
    pub api: ApiName,
    /// The model to ask for.
    #[arg(long, value_name = "NAME", default_value = "meta-llama/Llama-3.1-8B-Instruct")]
    pub model: String,
    /// Header of each request, "NAME: VALUE". May be given several times.
    #[arg(long, value_name = "HEADER", value_parser = header)]
    pub header: Vec<(String, String)>,
    /// Direct: only these endpoints may be picked, separated by commas.
    #[arg(long, value_name = "LIST", help_heading = DIRECT)]
    pub subset: Option<String>,

    /// Stream responses as server-sent events.
    #[arg(long)]
    pub stream: bool,
    /// Tokens of a response. Direct: the generator responds in place of a model server, with a chunk
    /// per token of a stream. Default: those of the trace, or 16.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub output_tokens: Option<usize>,
    /// Direct: time between two chunks of a streamed response. Default: 0.
    #[arg(long, value_name = "TIME", value_parser = pause, requires = "stream", help_heading = DIRECT)]
    pub chunk_interval: Option<Duration>,

    /// Report CPU and memory of this process over the measured time. May be given several
    /// times.
    #[arg(long, value_name = "[NAME=]PID", value_parser = process)]
    pub pid: Vec<Process>,
    /// Format of the result.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// Encryption of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Tls {
    /// If the server can.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// Distribution of an open loop's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Spread {
    /// Equal times between them.
    Even,
    /// As of independent users.
    Poisson,
}

/// An API of OpenAI's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ApiName {
    /// /v1/chat/completions
    Chat,
    /// /v1/completions
    Completions,
}

/// Most of anything that is counted: tokens, connections, requests at a time.
const MOST: usize = 10_000_000;

/// Longest time: a month.
const LONGEST: Duration = Duration::from_secs(720 * 3600);

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("give at least 1".to_owned()),
        Ok(number) if number > MOST => Err(format!("give at most {MOST}")),
        Ok(number) => Ok(number),
        Err(_) => Err(format!("{text:?} is no whole number")),
    }
}

fn above_zero(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
        _ => Err("give a number above 0".to_owned()),
    }
}

fn time(text: &str) -> Result<Duration, String> {
    match pause(text)? {
        Duration::ZERO => Err("give a time above 0".to_owned()),
        duration => Ok(duration),
    }
}

fn pause(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text)?;
    if duration > LONGEST { Err("give a time of at most 720h".to_owned()) } else { Ok(duration) }
}

/// A header as it is written.
///
/// # Errors
/// A message if the text is no header.
pub(in crate::cli) fn header(text: &str) -> Result<(String, String), String> {
    let refuse = || format!("{text:?} is no header; write for example \"x-tenant: blue\"");
    let (name, value) = split_header(text).ok_or_else(refuse)?;
    let name: HeaderName = name.parse().map_err(|_| refuse())?;
    let _: HeaderValue = value.parse().map_err(|_| refuse())?;
    Ok((name.to_string(), value.to_owned()))
}

fn process(text: &str) -> Result<Process, String> {
    let (name, pid) = text.rsplit_once('=').unwrap_or((text, text));
    let pid = pid.parse().map_err(|_| format!("{pid:?} is no process id"))?;
    Ok(Process { name: name.to_owned(), pid })
}

impl LoadArgs {
    /// Settings that the arguments stand for.
    ///
    /// # Errors
    /// A message that names arguments which don't fit together.
    pub fn settings(self) -> Result<Settings, String> {
        let pace = match (self.rate, self.concurrency, self.idle, self.speed) {
            (Some(per_second), ..) => Pace::Rate { per_second, arrivals: self.arrivals() },
            (_, _, Some(count), _) => Pace::Idle(count),
            (.., Some(speed)) => Pace::Trace(speed),
            (_, count, ..) => Pace::Concurrency(count.unwrap_or(1)),
        };
        if self.max_in_flight.is_some() && !matches!(pace, Pace::Rate { .. } | Pace::Trace(_)) {
            return Err("--max-in-flight bounds an open loop; it needs --rate or --speed".to_owned());
        }
        let by_itself = self.requests.is_some() || matches!(pace, Pace::Trace(_));
        Ok(Settings {
            target: self.target()?,
            pace,
            duration: self.duration.or((!by_itself).then_some(DURATION)),
            warm_up: self.warm_up,
            requests: self.requests,
            max_in_flight: self.max_in_flight.unwrap_or(20_000),
            seed: self.seed,
            prompts: self.prompts()?,
            api: match self.api {
                ApiName::Chat => Api::Chat,
                ApiName::Completions => Api::Completions,
            },
            model: self.model,
            stream: self.stream,
            output_tokens: self.output_tokens,
            headers: self.header,
            processes: self.pid,
        })
    }

    fn arrivals(&self) -> Arrivals {
        match self.arrivals {
            Some(Spread::Poisson) => Arrivals::Poisson,
            Some(Spread::Even) | None => Arrivals::Even,
        }
    }

    fn target(&self) -> Result<Target, String> {
        let target = &self.target;
        if target.starts_with("http://") {
            let direct_only = [
                ("--tls", self.tls.is_some()),
                ("--connections", self.connections.is_some()),
                ("--subset", self.subset.is_some()),
                ("--chunk-interval", self.chunk_interval.is_some()),
                ("--idle", self.idle.is_some()),
            ];
            return match direct_only.iter().find(|(_, given)| *given) {
                Some((flag, _)) => Err(format!("{flag} is for an ext_proc server; give --target HOST:PORT")),
                None => Ok(Target::Http { url: target.clone() }),
            };
        }
        let port = target.rsplit_once(':').and_then(|(host, port)| {
            (!host.is_empty() && !host.contains('/')).then(|| port.parse::<u16>().ok())?
        });
        if port.is_none() {
            return Err(format!("--target {target:?} is neither HOST:PORT nor http://HOST:PORT"));
        }
        Ok(Target::ExtProc {
            address: target.clone(),
            tls: match self.tls {
                Some(Tls::On) => TlsMode::On,
                Some(Tls::Off) => TlsMode::Off,
                Some(Tls::Auto) | None => TlsMode::Auto,
            },
            connections: self.connections.unwrap_or(1),
            subset: self.subset.clone(),
            chunk_interval: self.chunk_interval.unwrap_or_default(),
        })
    }

    fn prompts(&self) -> Result<Prompts, String> {
        if let Some(path) = &self.trace {
            return Ok(Prompts::Trace(path.clone()));
        }
        let tokens = self.tokens.unwrap_or(200);
        let (groups, prefix) = (self.prefix_groups.unwrap_or(0), self.prefix_tokens.unwrap_or(0));
        if prefix > tokens {
            return Err(format!("--prefix-tokens {prefix} are more than the {tokens} of --tokens"));
        }
        // At least one prompt of each group is kept in memory.
        let most = MOST_TOKENS / tokens;
        if groups.max(8) > most {
            let what = if groups == 0 { "prompts" } else { "--prefix-groups" };
            return Err(format!("{what} of {tokens} tokens take too much memory; at most {most} fit"));
        }
        Ok(Prompts::Tokens { tokens, groups, prefix })
    }
}
