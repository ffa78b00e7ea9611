//! Settings of a run, as plain values.

use std::path::PathBuf;
use std::time::Duration;

/// A run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Target of the requests.
    pub target: Target,
    /// Pace of the requests.
    pub pace: Pace,
    /// Measured time; `None` with arrivals of a trace: until its end.
    pub duration: Option<Duration>,
    /// Time under load before the measurement.
    pub warm_up: Duration,
    /// Ends after so many measured requests.
    pub requests: Option<u64>,
    /// Open exchanges that an open loop may have.
    pub max_in_flight: usize,
    /// Seed of all randomness: texts, arrivals, request ids.
    pub seed: u64,
    /// Prompts of the requests.
    pub prompts: Prompts,
    /// API of the bodies.
    pub api: Api,
    /// The model that requests ask for.
    pub model: String,
    /// Stream responses as server-sent events.
    pub stream: bool,
    /// Tokens of a response; `None`: as the trace says, or 16.
    pub output_tokens: Option<usize>,
    /// Headers of requests, besides those that a client sends anyway. Names in lower case.
    pub headers: Vec<(String, String)>,
    /// Processes whose use of the machine is reported.
    pub processes: Vec<Process>,
}

/// Target of a run, and how it is reached.
#[derive(Clone, Debug)]
pub enum Target {
    /// An ext_proc server, spoken to as a gateway does.
    ExtProc {
        /// `HOST:PORT`.
        address: String,
        /// Encryption of connections.
        tls: TlsMode,
        /// Connections at first, over which requests are spread in turn; at least 1.
        connections: usize,
        /// The hint that only these endpoints may be picked.
        subset: Option<String>,
        /// Time between two chunks of a streamed response; zero: as fast as they go.
        chunk_interval: Duration,
    },
    /// A gateway.
    Http {
        /// `http://HOST:PORT`, and a path before the API's if there is one.
        url: String,
    },
}

/// Encryption of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsMode {
    /// If the server can.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// Pace of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Closed loop: number of concurrent requests.
    Concurrency(usize),
    /// Open loop: requests per second, independent of responses.
    Rate {
        /// Requests per second; above 0.
        per_second: f64,
        /// Distribution of their arrivals.
        arrivals: Arrivals,
    },
    /// Speed of the trace, as a multiple of the recorded one.
    Trace(f64),
    /// Number of idle streams, held open without a byte; direct only.
    Idle(usize),
}

/// Distribution of an open loop's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// Equal times between them.
    Even,
    /// Independent of each other: exponential times between them.
    Poisson,
}

/// Prompts of a run.
#[derive(Clone, Debug)]
pub enum Prompts {
    /// Prompts of one length.
    Tokens {
        /// Tokens of a prompt, those of its prefix included.
        tokens: usize,
        /// Prefixes that prompts share; zero: none.
        groups: usize,
        /// Tokens of a prefix.
        prefix: usize,
    },
    /// The requests of a trace, again from its start when it is over.
    Trace(PathBuf),
}

/// An API of OpenAI's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// Chat completions.
    Chat,
    /// Completions.
    Completions,
}

impl Api {
    /// Path of the API.
    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
        }
    }
}

/// A process that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Name in the report.
    pub name: String,
    /// Process id.
    pub pid: u32,
}
