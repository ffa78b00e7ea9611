//! Workloads that are measured, and the budget of each. Data only.

use super::metric::Metric;

/// Way of requests to the picker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The generator speaks ext_proc, as a gateway does.
    Direct,
    /// The generator speaks HTTP, to Envoy.
    Envoy,
}

/// Bound of a metric: at most or at least a value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// At most so many times that of the limit.
    Times(f64),
    /// At least this share of that of the limit.
    Share(f64),
    /// Memory: at most so many MiB and so many times the bodies in flight.
    MibAndBodies(f64, f64),
    /// At most this, in the metric's unit.
    AtMost(f64),
}

/// A line of the budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Check {
    /// Metric that is checked.
    pub metric: Metric,
    /// Bound that it has to keep.
    pub bound: Bound,
}

/// A load and its budget.
#[derive(Debug)]
pub struct Workload {
    /// For `--only`, and of its plot.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// Way of requests to the picker.
    pub way: Way,
    /// Worker threads of Envoy.
    pub envoy_threads: u16,
    /// Servers that the picker knows, and scrapes every 50 ms.
    pub pods: u16,
    /// Arguments of `usher load` that make it this workload.
    pub load: &'static [&'static str],
    /// Measured time of a run, in seconds.
    pub seconds: u32,
    /// Time before that under the same load, in seconds; 0 for none.
    pub warm_up: u32,
    /// `true` if the same load also goes straight to a server, for the latency that is added.
    pub straight: bool,
    /// Budget of the workload.
    pub checks: &'static [Check],
    /// Metric that the plot shows.
    pub plotted: Metric,
    /// Other metrics that the report shows.
    pub also: &'static [Metric],
}

impl Workload {
    /// Requests per second, where that is given.
    pub fn rate(&self) -> Option<f64> {
        let at = self.load.iter().position(|word| *word == "--rate")?;
        self.load.get(at + 1)?.parse().ok()
    }

    /// Returns `true` if its streams carry nothing, so that processor time is looked at apart.
    pub fn is_idle(&self) -> bool {
        self.load.contains(&"--idle")
    }
}

const fn check(metric: Metric, bound: Bound) -> Check {
    Check { metric, bound }
}

/// Defaults, as most workloads have them.
const USUAL: Workload = Workload {
    name: "",
    title: "",
    way: Way::Direct,
    envoy_threads: 1,
    // The least between which something is to be decided: how requests are handled is
    // looked at here, and scraping where it says so.
    pods: 2,
    load: &[],
    seconds: 10,
    warm_up: 2,
    straight: false,
    checks: &[],
    plotted: Metric::CpuPerRequest,
    also: &[],
};

/// All of them, in the order in which they run.
pub const WORKLOADS: &[Workload] = &[
    Workload {
        name: "small-envoy",
        title: "200-token bodies, 500 per second, through Envoy, 10 pods",
        way: Way::Envoy,
        pods: 10,
        load: &["--tokens", "200", "--rate", "500"],
        seconds: 20,
        straight: true,
        checks: &[
            check(Metric::CpuPerRequest, Bound::Times(1.5)),
            check(Metric::AddedP99, Bound::Times(1.5)),
        ],
        also: &[
            Metric::CpuBeyondIdle,
            Metric::AddedP50,
            Metric::P99,
            Metric::StraightP99,
            Metric::EnvoyCpuPerRequest,
            Metric::PeakMemory,
        ],
        ..USUAL
    },
    Workload {
        name: "wide-envoy",
        title: "200-token bodies, 400 at a time, through two threads of Envoy, 2 pods",
        way: Way::Envoy,
        envoy_threads: 2,
        load: &["--tokens", "200", "--concurrency", "400"],
        checks: &[
            check(Metric::CpuPerRequest, Bound::Times(1.5)),
            check(Metric::Throughput, Bound::Share(0.85)),
        ],
        also: &[Metric::P50, Metric::P99, Metric::PeakMemory, Metric::EnvoyCpuPerRequest],
        ..USUAL
    },
    Workload {
        name: "small-direct",
        title: "200-token bodies, 32 at a time, direct, 2 pods",
        load: &["--tokens", "200", "--concurrency", "32"],
        checks: &[
            check(Metric::CpuPerRequest, Bound::Times(1.6)),
            check(Metric::Throughput, Bound::Share(0.6)),
        ],
        also: &[Metric::P50, Metric::P99, Metric::PeakMemory],
        ..USUAL
    },
    Workload {
        name: "long-direct",
        title: "100k-token bodies, 10 per second, streamed responses, direct, 2 pods",
        ..LONG
    },
    Workload {
        name: "long-direct-10",
        title: "100k-token bodies, 10 per second, streamed responses, direct, 10 pods",
        pods: 10,
        ..LONG
    },
    Workload {
        name: "long-envoy",
        title: "100k-token bodies, 10 per second, streamed responses, through Envoy, 2 pods",
        way: Way::Envoy,
        // What of a body is at the picker, only Envoy knows: memory is judged directly.
        checks: &[check(Metric::CpuPerRequest, Bound::Times(1.5))],
        also: &[
            Metric::CpuBeyondIdle,
            Metric::PeakMemory,
            Metric::P50,
            Metric::P99,
            Metric::EnvoyCpuPerRequest,
        ],
        ..LONG
    },
    Workload {
        name: "bodies-envoy",
        title: "220 KB bodies, 100 at a time, streamed responses, through Envoy, 2 pods",
        way: Way::Envoy,
        load: &["--tokens", "55000", "--concurrency", "100", "--stream", "--output-tokens", "20"],
        checks: &[
            check(Metric::CpuPerRequest, Bound::Times(1.5)),
            check(Metric::Throughput, Bound::Share(0.85)),
        ],
        also: &[Metric::P50, Metric::P99, Metric::PeakMemory, Metric::EnvoyCpuPerRequest],
        ..USUAL
    },
    Workload {
        name: "chunks-direct",
        title: "response chunks, 20,000 per second on 200 streams, direct, 2 pods",
        ..CHUNKS
    },
    Workload {
        name: "chunks-direct-10",
        title: "response chunks, 20,000 per second on 200 streams, direct, 10 pods",
        pods: 10,
        ..CHUNKS
    },
    Workload {
        name: "idle-direct",
        title: "10,000 idle streams, direct, 10 pods",
        pods: 10,
        load: &["--tokens", "20", "--idle", "10000"],
        warm_up: 0,
        checks: &[
            check(Metric::Memory, Bound::Times(1.5)),
            check(Metric::MemoryPerStream, Bound::Times(1.5)),
            // What the same process used before may differ by this from one time to the next.
            check(Metric::IdleCpu, Bound::AtMost(0.002)),
        ],
        plotted: Metric::CpuWithStreams,
        also: &[Metric::CpuWithStreams, Metric::CpuWithoutStreams],
        ..USUAL
    },
];

/// Bodies of 100k tokens, and responses as long as those of a chat. Twice a body in memory,
/// and what a picker needs without one.
const LONG: Workload = Workload {
    load: &["--tokens", "100000", "--rate", "10", "--stream", "--output-tokens", "200"],
    checks: &[
        check(Metric::CpuPerRequest, Bound::Times(1.5)),
        check(Metric::PeakMemory, Bound::MibAndBodies(40.0, 2.0)),
    ],
    also: &[Metric::CpuBeyondIdle, Metric::BodiesInFlight, Metric::P50, Metric::P99],
    ..USUAL
};

/// Small requests with long responses, which come a token at a time.
const CHUNKS: Workload = Workload {
    // 100 responses start per second and take 2 s each.
    load: &[
        "--tokens",
        "20",
        "--rate",
        "100",
        "--stream",
        "--output-tokens",
        "200",
        "--chunk-interval",
        "10ms",
    ],
    warm_up: 3,
    checks: &[check(Metric::CpuPerChunk, Bound::Times(1.3))],
    plotted: Metric::CpuPerChunk,
    also: &[Metric::ChunksPerSecond, Metric::ChunkP99, Metric::PeakMemory],
    ..USUAL
};
