//! The numbers of each pairing, side by side.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;

use super::layout::LINKS;
use crate::cli::demo::ports::Ports;
use crate::cli::demo::replay::Outcome;
use crate::cli::demo::report::{Ends, Side, Times, failed, requests, row, shown, verdict};
use crate::cli::demo::trace::OUTPUT_DIVISOR;
use crate::sim::{KV_BYTES_PER_TOKEN, Layer};
use usher_terminal::{grouped, paragraph};

/// Means that differ by less than this share are taken for equal.
const EQUAL: f64 = 0.02;

/// Report of the runs.
#[derive(Debug, Serialize)]
pub(in crate::cli::demo) struct PdReport {
    /// Speed in multiples of the trace's, servers included.
    speed: f64,
    /// Responses are so many times shorter than in the trace.
    output_divisor: u32,
    kv_bytes_per_token: u64,
    /// Bytes per second by layer.
    links: BTreeMap<&'static str, u64>,
    /// One for each pairing.
    pub(super) runs: Vec<Run>,
    /// Ports that everything listens on.
    ports: Ports,
}

/// The numbers of one pairing.
#[derive(Debug, Serialize)]
pub(super) struct Run {
    pairing: &'static str,
    /// Requests of the trace that were sent.
    requests: usize,
    /// From the first request to the last response.
    seconds: f64,
    #[serde(flatten)]
    ends: Ends,
    /// Time from a request's due time to the first byte of its response.
    first_token_ms: Times,
    /// Time from a request's due time to the end of its response.
    response_ms: Times,
    /// Prompts that another server computed than the one that decoded.
    remote_prefills: u64,
    /// Prompts that the server computed that decoded.
    own_prefills: u64,
    /// Tokens of prompts that were in the prefix cache of the server that computed them.
    cached_tokens: u64,
    /// Bytes of keys and values that moved, by what the two servers shared.
    moved_bytes: BTreeMap<&'static str, u64>,
}

/// Counters that a server reports about a run.
#[derive(Debug, Default)]
pub(super) struct Server {
    finished: u64,
    prefilled: u64,
    received: u64,
    cached_tokens: u64,
    bytes: [u64; 5],
}

impl Server {
    /// Reads its `/admin/state`.
    ///
    /// # Errors
    /// Returns an error that names the number that is not there.
    pub(super) fn read(state: &Value) -> anyhow::Result<Self> {
        let number = |pointer: &str| {
            state.pointer(pointer).and_then(Value::as_u64).with_context(|| format!("there is no {pointer}"))
        };
        let mut bytes = [0; 5];
        for (bytes, layer) in bytes.iter_mut().zip(Layer::ALL) {
            *bytes = number(&format!("/disaggregation/received_bytes/{layer}"))?;
        }
        let prefilled = number("/disaggregation/prefilled")?;
        let received = number("/disaggregation/received")?;
        Ok(Self {
            finished: number("/finished")?,
            prefilled,
            received,
            // What a decoder has already did not have to be computed there, but was elsewhere.
            cached_tokens: if received == 0 { number("/cached_tokens")? } else { 0 },
            bytes,
        })
    }
}

impl Run {
    /// Adds up what became of the requests, and what the servers say.
    pub(super) fn new(
        pairing: &'static str,
        outcomes: &[Outcome],
        took: Duration,
        servers: &[Server],
    ) -> Self {
        let is_good =
            |outcome: &&Outcome| outcome.response.as_ref().is_ok_and(|response| response.status == 200);
        let good = || outcomes.iter().filter(is_good);
        let first: Vec<f64> = good().filter_map(|outcome| outcome.first).map(milliseconds).collect();
        let total: Vec<f64> = good().map(|outcome| milliseconds(outcome.total)).collect();
        let sum = |of: &dyn Fn(&Server) -> u64| servers.iter().map(of).sum::<u64>();
        let moved = |layer: Layer| sum(&|server| server.bytes.get(layer as usize).copied().unwrap_or(0));
        Self {
            pairing,
            requests: outcomes.len(),
            seconds: took.as_secs_f64(),
            ends: Ends::of(outcomes),
            first_token_ms: Times::of(&first),
            response_ms: Times::of(&total),
            remote_prefills: sum(&|server| server.received),
            own_prefills: sum(&|server| server.finished.saturating_sub(server.prefilled + server.received)),
            cached_tokens: sum(&|server| server.cached_tokens),
            moved_bytes: Layer::ALL.into_iter().map(|layer| (layer.name(), moved(layer))).collect(),
        }
    }

    fn moved(&self, layer: &str) -> u64 {
        self.moved_bytes.get(layer).copied().unwrap_or(0)
    }
}

impl Side for Run {
    fn requests(&self) -> usize {
        self.requests
    }

    fn failed(&self) -> usize {
        self.ends.failed()
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl PdReport {
    /// A report without runs.
    pub(super) fn new(speed: f64, ports: Ports) -> Self {
        Self {
            speed,
            output_divisor: OUTPUT_DIVISOR,
            kv_bytes_per_token: KV_BYTES_PER_TOKEN,
            links: LINKS.into_iter().map(|(layer, _, speed)| (layer, speed)).collect(),
            runs: Vec::new(),
            ports,
        }
    }

    /// Requests of all runs.
    pub(in crate::cli::demo) fn requests(&self) -> usize {
        requests(&self.runs)
    }

    /// Number of these that did not end with status 200.
    pub(in crate::cli::demo) fn failed(&self) -> usize {
        failed(&self.runs)
    }

    /// Verdict on the runs.
    fn verdict(&self) -> String {
        if self.failed() > 0 {
            let (failed, all) = (self.failed(), self.requests());
            return format!("{failed} of {all} requests failed, so the ways to pair can't be compared.");
        }
        let mean = |run: &Run| run.first_token_ms.mean;
        let [apart, joint] = &self.runs[..] else { return "One way alone ran.".to_owned() };
        let Some((before, after)) = mean(apart).zip(mean(joint)) else {
            return "There was no request, so there is nothing to compare.".to_owned();
        };
        let far = |run: &Run| LINKS.last().map_or(0, |(layer, ..)| run.moved(layer)) as f64 / 1e9;
        let moved = format!("{:.1} GB moved between racks instead of {:.1} GB", far(joint), far(apart));
        let first = format!("mean TTFT was {after:.1} ms instead of {before:.1} ms");
        if after < before * (1.0 - EQUAL) {
            format!("With joint pairs {first}, and {moved}.")
        } else if after > before * (1.0 + EQUAL) {
            format!("Joint pairs did worse here: {first}, and {moved}.")
        } else {
            format!("Joint pairs made no difference to mean TTFT here; {moved}.")
        }
    }
}

impl Display for PdReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (speed, shorter, half) = (self.speed, self.output_divisor, self.ports.servers.len() / 2);
        let links: Vec<String> =
            LINKS.iter().map(|(_, at, speed)| format!("{} GB/s {at}", speed / 1_000_000_000)).collect();
        let token = self.kv_bytes_per_token >> 10;
        paragraph(
            f,
            format_args!(
                "A trace, replayed through Envoy and Usher once for each way to pair {half} simulated servers that \
                 compute prompts with {half} that decode. Trace and servers run {speed} times as fast as in reality; \
                 responses are {shorter} times shorter. A token of a prompt that moves has {token} KiB; links take {}.",
                links.join(", ")
            ),
        )?;
        writeln!(f)?;

        let runs = &self.runs;
        row(f, runs, "pairing", |run| run.pairing.to_owned())?;
        row(f, runs, "requests", |run| grouped(run.requests as u64))?;
        row(f, runs, "not answered with 200", |run| grouped(run.failed() as u64))?;
        row(f, runs, "TTFT mean", |run| shown(run.first_token_ms.mean, 1))?;
        row(f, runs, "TTFT p50", |run| shown(run.first_token_ms.p50, 1))?;
        row(f, runs, "TTFT p99", |run| shown(run.first_token_ms.p99, 1))?;
        row(f, runs, "E2E latency p50", |run| shown(run.response_ms.p50, 1))?;
        row(f, runs, "E2E latency p99", |run| shown(run.response_ms.p99, 1))?;
        row(f, runs, "prompts computed elsewhere", |run| grouped(run.remote_prefills))?;
        row(f, runs, "prompts computed in place", |run| grouped(run.own_prefills))?;
        row(f, runs, "cached tokens of prompts", |run| grouped(run.cached_tokens))?;
        let gigabytes = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
        for (layer, at, _) in LINKS {
            row(f, runs, &format!("moved {at}"), |run| gigabytes(run.moved(layer)))?;
        }
        row(f, runs, "moved in all", |run| gigabytes(run.moved_bytes.values().sum()))?;

        for run in runs.iter().filter(|run| run.failed() > 0) {
            paragraph(f, format_args!("{}: {}", run.pairing, run.ends))?;
        }
        verdict(f, &self.verdict())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::demo::client::Response;
    use usher_core::request::usage::Usage;
    use usher_terminal::misfits;

    fn outcome(response: Result<u16, &str>, first: u64) -> Outcome {
        let reason = String::new();
        Outcome {
            due: Duration::ZERO,
            first: Some(Duration::from_millis(first)),
            total: Duration::from_millis(first * 10),
            response: response.map_err(str::to_owned).map(|status| Response {
                status,
                pod: None,
                first: None,
                usage: Usage::default(),
                reason,
            }),
        }
    }

    fn state(finished: u64, prefilled: u64, received: u64, rack: u64) -> Value {
        json!({
            "finished": finished,
            "cached_tokens": 100,
            "disaggregation": {
                "prefilled": prefilled,
                "received": received,
                "received_bytes": {"host": 5, "rack": rack, "zone": 0, "region": 0, "none": 0},
            },
        })
    }

    fn report() -> PdReport {
        let servers =
            [state(3, 3, 0, 0), state(4, 0, 3, 2_000_000_000)].map(|state| Server::read(&state).unwrap());
        let outcomes = [
            outcome(Ok(200), 10),
            outcome(Ok(200), 30),
            outcome(Ok(503), 1),
            outcome(Err("the response broke off"), 1),
        ];
        let took = Duration::from_secs(2);
        let mut report = PdReport::new(12.0, Ports::from_first(8081, 4).unwrap());
        report.runs.push(Run::new("independent", &outcomes, took, &servers));
        report.runs.push(Run::new("joint", &outcomes[..2], took, &servers));
        report
    }

    #[test]
    fn table_matches_the_expected_text() {
        let want = "\
A trace, replayed through Envoy and Usher once for each way to pair 2 simulated
servers that compute prompts with 2 that decode. Trace and servers run 12 times
as fast as in reality; responses are 8 times shorter. A token of a prompt that
moves has 256 KiB; links take 200 GB/s on a host, 50 GB/s in a rack, 5 GB/s
between racks.

pairing                          independent           joint
requests                                   4               2
not answered with 200                      2               0
TTFT mean                            20.0 ms         20.0 ms
TTFT p50                             10.0 ms         10.0 ms
TTFT p99                             30.0 ms         30.0 ms
E2E latency p50                     100.0 ms        100.0 ms
E2E latency p99                     300.0 ms        300.0 ms
prompts computed elsewhere                 3               3
prompts computed in place                  1               1
cached tokens of prompts                 100             100
moved on a host                       0.0 GB          0.0 GB
moved in a rack                       2.0 GB          2.0 GB
moved between racks                   0.0 GB          0.0 GB
moved in all                          2.0 GB          2.0 GB
independent: 2 × status 200, 1 × status 503, 1 × the response broke off

=> 2 of 6 requests failed, so the ways to pair can't be
   compared.
";
        assert_eq!(report().to_string(), want);
    }

    #[test]
    fn verdict_matches_the_numbers() {
        let mut report = report();
        report.runs[0].ends = Ends::default();
        report.runs[1].moved_bytes.clear();
        let mut says = |before, after| {
            report.runs[0].first_token_ms.mean = Some(before);
            report.runs[1].first_token_ms.mean = Some(after);
            assert_eq!(misfits(&report), Vec::<String>::new());
            report.verdict()
        };
        let expected = "With joint pairs mean TTFT was 128.6 ms instead of 205.4 ms, and \
                        0.0 GB moved between racks instead of 0.0 GB.";
        assert_eq!(says(205.4, 128.6), expected);
        assert!(says(100.0, 200.0).starts_with("Joint pairs did worse here: mean TTFT was 200.0 ms"));
        assert!(says(100.0, 101.0).starts_with("Joint pairs made no difference to mean TTFT here; "));
    }

    #[test]
    fn json_has_the_numbers() {
        let report = report();
        assert_eq!((report.requests(), report.failed()), (6, 2));
        let json = serde_json::to_value(report).unwrap();
        let run = &json["runs"][0];
        assert_eq!(run["first_token_ms"], json!({"mean": 20.0, "p50": 10.0, "p90": 30.0, "p99": 30.0}));
        assert_eq!((&run["remote_prefills"], &run["own_prefills"]), (&json!(3), &json!(1)));
        assert_eq!(run["moved_bytes"]["host"], 10);
        assert_eq!(json["links"]["zone"], 5_000_000_000_u64);
    }

    #[test]
    fn missing_number_in_the_state_is_named() {
        let mut state = state(1, 1, 1, 1);
        state["disaggregation"]["received_bytes"]["zone"] = Value::Null;
        let error = Server::read(&state).unwrap_err().to_string();
        assert!(error.contains("/disaggregation/received_bytes/zone"), "{error}");
    }
}
