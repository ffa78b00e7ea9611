//! Results of a run of a workload, as numbers.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Output of `usher load --output json`, as far as it is used here.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct LoadReport {
    /// Measured time.
    pub seconds: f64,
    /// Counts of requests.
    pub requests: Requests,
    /// Requests completed per second.
    pub requests_per_second: f64,
    /// Response chunks, if there were any.
    pub chunks: Option<Chunks>,
    /// Times from when something was due.
    pub latency_ms: Latencies,
    /// Number of failures, by kind.
    pub errors: BTreeMap<String, u64>,
    /// Message of the first failure of each kind.
    pub reasons: BTreeMap<String, String>,
    /// Requests that the generator was too slow to send when they were due.
    pub late: Option<Late>,
    /// The most bytes of request bodies that were under way; without a gateway only.
    pub peak_body_bytes_in_flight: Option<f64>,
    /// The part of a core that the generator itself used, 0 to 1.
    pub generator_cpu_share: Option<f64>,
    /// Resources that the watched processes used.
    pub processes: Vec<Process>,
}

/// Counts of requests.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Requests {
    /// Answered as they should be.
    pub completed: u64,
    /// Failed.
    pub failed: u64,
}

/// Response chunks.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Chunks {
    /// Chunks that came back, per second.
    pub per_second: f64,
}

/// Times from when something was due.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Latencies {
    /// Until the picker named a server.
    pub decision: Option<Latency>,
    /// Until the response was complete.
    pub total: Option<Latency>,
    /// From a response chunk to its reply.
    pub chunk: Option<Latency>,
}

/// A distribution, in milliseconds.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// Half of them were faster.
    pub p50: f64,
    /// All but one in a hundred.
    pub p99: f64,
}

/// Requests that the generator sent later than they were due.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Late {
    /// Their share of all, 0 to 1.
    pub share: f64,
    /// Lateness in milliseconds, 99th percentile.
    pub p99_ms: f64,
}

/// Resources that a process used while it was measured.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Process {
    /// Value of `--pid`.
    pub name: String,
    /// Processor time.
    pub cpu_seconds: f64,
    /// Processor time per request, in milliseconds.
    pub cpu_ms_per_request: Option<f64>,
    /// Processor time per response chunk, in microseconds.
    pub cpu_us_per_chunk: Option<f64>,
    /// Resident memory before the first request.
    pub rss_before_mib: f64,
    /// Resident memory at the end.
    pub rss_mib: f64,
    /// The most resident memory since the process started.
    pub peak_rss_mib: f64,
}

/// Name of Envoy among the processes.
pub const ENVOY: &str = "envoy";

/// One run of a workload with one picker.
#[derive(Debug, Clone)]
pub struct Run {
    /// The picker.
    pub picker: String,
    /// Number of the round, from 1.
    pub round: usize,
    /// Results of the generator.
    pub load: LoadReport,
    /// The same load without gateway and picker, in the same round.
    pub straight: Option<LoadReport>,
    /// Cores that the picker used before there was any stream: scraping, mostly.
    pub cores_before: Option<f64>,
}

impl Run {
    fn process(&self, name: &str) -> Option<&Process> {
        self.load.processes.iter().find(|process| process.name == name)
    }

    fn picker(&self) -> Option<&Process> {
        self.process(&self.picker)
    }

    /// Through a gateway the whole request, directly the decision alone.
    fn latency(&self) -> Option<&Latency> {
        self.load.latency_ms.decision.as_ref().or(self.load.latency_ms.total.as_ref())
    }

    fn straight(&self) -> Option<&Latency> {
        self.straight.as_ref()?.latency_ms.total.as_ref()
    }

    fn added(&self, of: impl Fn(&Latency) -> f64) -> Option<f64> {
        Some(of(self.load.latency_ms.total.as_ref()?) - of(self.straight()?))
    }

    fn cores(&self) -> Option<f64> {
        (self.load.seconds > 0.0).then_some(self.picker()?.cpu_seconds / self.load.seconds)
    }
}

/// A number that a run has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Processor time of the picker per request.
    CpuPerRequest,
    /// The same, less what the picker uses without any request.
    CpuBeyondIdle,
    /// Processor time of the picker per response chunk.
    CpuPerChunk,
    /// Processor time of Envoy per request.
    EnvoyCpuPerRequest,
    /// Requests completed.
    Throughput,
    /// Response chunks that came back.
    ChunksPerSecond,
    /// Latency of the decision, or through Envoy of the whole request: the median.
    P50,
    /// The same, 99th percentile.
    P99,
    /// Latency through Envoy less that without it: the medians.
    AddedP50,
    /// The same, 99th percentiles.
    AddedP99,
    /// Latency of the same load without Envoy and picker, 99th percentile.
    StraightP99,
    /// From a response chunk to its reply.
    ChunkP99,
    /// The most resident memory of the picker.
    PeakMemory,
    /// Resident memory at the end.
    Memory,
    /// The most bytes of bodies under way.
    BodiesInFlight,
    /// Growth of resident memory per stream.
    MemoryPerStream,
    /// Cores used with idle streams, less those without.
    IdleCpu,
    /// Cores used with idle streams.
    CpuWithStreams,
    /// Cores used before there was any stream.
    CpuWithoutStreams,
}

const KIB_PER_MIB: f64 = 1024.0;
const BYTES_PER_MIB: f64 = 1024.0 * 1024.0;

impl Metric {
    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::CpuPerRequest => "CPU per request",
            Self::CpuBeyondIdle => "of it, without what idling costs",
            Self::CpuPerChunk => "CPU per chunk",
            Self::EnvoyCpuPerRequest => "Envoy's CPU per request",
            Self::Throughput => "requests per second",
            Self::ChunksPerSecond => "chunks per second",
            Self::P50 => "latency p50",
            Self::P99 => "latency p99",
            Self::AddedP50 => "added latency p50",
            Self::AddedP99 => "added latency p99",
            Self::StraightP99 => "latency p99 straight to a server",
            Self::ChunkP99 => "latency of a chunk p99",
            Self::PeakMemory => "peak memory",
            Self::Memory => "memory",
            Self::BodiesInFlight => "bodies in flight, at most",
            Self::MemoryPerStream => "memory per stream",
            Self::IdleCpu => "CPU for idle streams",
            Self::CpuWithStreams => "CPU with streams",
            Self::CpuWithoutStreams => "CPU without streams",
        }
    }

    /// Unit of a value; empty where the metric's name has it.
    pub fn unit(self) -> &'static str {
        match self {
            Self::CpuPerRequest | Self::CpuBeyondIdle | Self::EnvoyCpuPerRequest => "ms",
            Self::P50 | Self::P99 | Self::StraightP99 | Self::ChunkP99 => "ms",
            Self::AddedP50 | Self::AddedP99 => "ms",
            Self::CpuPerChunk => "µs",
            Self::Throughput | Self::ChunksPerSecond => "",
            Self::PeakMemory | Self::Memory | Self::BodiesInFlight => "MiB",
            Self::MemoryPerStream => "KiB",
            Self::IdleCpu | Self::CpuWithStreams | Self::CpuWithoutStreams => "cores",
        }
    }

    /// The value in a run; `None` if the run doesn't have it.
    pub fn of(self, run: &Run) -> Option<f64> {
        let load = &run.load;
        let value = match self {
            Self::CpuPerRequest => run.picker()?.cpu_ms_per_request?,
            Self::CpuBeyondIdle => {
                let (all, cores) = (run.picker()?.cpu_ms_per_request?, run.cores()?);
                // Of all the processor time this part came with requests.
                all * (cores - run.cores_before?) / cores
            }
            Self::CpuPerChunk => run.picker()?.cpu_us_per_chunk?,
            Self::EnvoyCpuPerRequest => run.process(ENVOY)?.cpu_ms_per_request?,
            Self::Throughput => load.requests_per_second,
            Self::ChunksPerSecond => load.chunks.as_ref()?.per_second,
            Self::P50 => run.latency()?.p50,
            Self::P99 => run.latency()?.p99,
            Self::AddedP50 => run.added(|latency| latency.p50)?,
            Self::AddedP99 => run.added(|latency| latency.p99)?,
            Self::StraightP99 => run.straight()?.p99,
            Self::ChunkP99 => load.latency_ms.chunk.as_ref()?.p99,
            Self::PeakMemory => run.picker()?.peak_rss_mib,
            Self::Memory => run.picker()?.rss_mib,
            Self::BodiesInFlight => load.peak_body_bytes_in_flight? / BYTES_PER_MIB,
            Self::MemoryPerStream => {
                let picker = run.picker()?;
                (picker.rss_mib - picker.rss_before_mib) * KIB_PER_MIB / load.requests.completed as f64
            }
            Self::IdleCpu => run.cores()? - run.cores_before?,
            Self::CpuWithStreams => run.cores()?,
            Self::CpuWithoutStreams => run.cores_before?,
        };
        value.is_finite().then_some(value)
    }
}
