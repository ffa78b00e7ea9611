//! The numbers of each policy, side by side.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use serde::Serialize;

use crate::cli::demo::latency::{Added, METHOD};
use crate::cli::demo::ports::Ports;
use crate::cli::demo::replay::Outcome;
use crate::cli::demo::report::{CELL, Ends, Side, Times, Tokens, failed, requests, row, shown, verdict};
use crate::cli::demo::trace::OUTPUT_DIVISOR;
use crate::load::process::Usage;
use usher_terminal::{grouped, paragraph};

/// A good response has its first token within this time, as in reality.
const TTFT_MS: f64 = 2000.0;

/// Longest mean time per output token of a good response.
const TPOT_MS: f64 = 50.0;

/// Columns of the number behind a bar, with the space before it.
const COUNT: usize = 5;

/// Policies whose goodput differs by fewer percent did equally well.
const EQUAL: f64 = 1.0;

/// Widest bar: a space is before it.
const BAR: usize = CELL - COUNT - 1;

/// Results of the runs. Times of responses are what was measured, as many times as long as the demo is
/// faster than reality.
#[derive(Debug, Serialize)]
pub(in crate::cli::demo) struct PlainReport {
    /// Speed of trace and servers, in multiples of reality.
    speed: f64,
    /// Responses are so many times shorter than in the trace.
    output_divisor: u32,
    /// Bounds of a good response.
    ttft_limit_ms: f64,
    tpot_limit_ms: f64,
    /// `true` if Usher is optimised as in a release.
    is_optimised: bool,
    /// One for each policy.
    pub(super) runs: Vec<Run>,
    /// Ports of all processes.
    ports: Ports,
}

/// The numbers of one policy.
#[derive(Debug, Serialize)]
pub(super) struct Run {
    policy: &'static str,
    /// Requests of the trace that were sent.
    requests: usize,
    /// From the first request to the end of the last response, by the clock.
    seconds: f64,
    #[serde(flatten)]
    ends: Ends,
    /// Tokens of all responses.
    tokens: Tokens,
    /// Time from a request's due time to the first byte of its response.
    ttft_ms: Times,
    /// For each token after the first.
    tpot_ms: Times,
    /// Time from a request's due time to the end of its response.
    latency_ms: Times,
    /// Requests within both bounds, in percent.
    good_percent: f64,
    /// Time that Envoy and Usher add to a request, by the clock.
    added_ms: AddedReport,
    /// CPU time and memory that Usher used during the replay, where the system reports them.
    usher: Option<UsherReport>,
    /// Each server, by name.
    pods: BTreeMap<String, Tokens>,
}

/// Time that Envoy and Usher add to a request, in milliseconds.
#[derive(Debug, Serialize)]
struct AddedReport {
    #[serde(flatten)]
    times: Times,
    samples: usize,
    failed: usize,
    method: &'static str,
}

/// CPU time and memory that Usher used during the replay, scraping included.
#[derive(Debug, Serialize)]
struct UsherReport {
    cpu_seconds: f64,
    /// Requests that it decided: those of the trace, and those that measure latency.
    decided: usize,
    /// For each of those.
    cpu_ms_per_request: f64,
    peak_memory_bytes: u64,
}

/// Measurements of a replay.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) outcomes: Vec<Outcome>,
    pub(super) added: Added,
    /// Duration of the replay.
    pub(super) took: Duration,
    /// Usher before and after the replay.
    pub(super) usher: Option<(Usage, Usage)>,
}

impl Run {
    /// Adds up what was measured at this speed. `pods` are the names of all servers, so that one without a request
    /// shows too.
    pub(super) fn new(policy: &'static str, measured: &Measured, speed: f64, pods: Vec<String>) -> Self {
        let Measured { outcomes, added, took, usher } = measured;
        let mut pods: BTreeMap<String, Tokens> =
            pods.into_iter().map(|name| (name, Tokens::default())).collect();
        let (mut tokens, mut good) = (Tokens::default(), 0usize);
        let (mut ttft, mut tpot, mut latency) = (Vec::new(), Vec::new(), Vec::new());
        for outcome in outcomes {
            let Some(response) = outcome.response.as_ref().ok().filter(|response| response.status == 200)
            else {
                continue;
            };
            let real = |time: Duration| time.as_secs_f64() * 1e3 * speed;
            let later = response.usage.completion_tokens.unwrap_or(0).saturating_sub(1);
            let first = outcome.first.map(real);
            let each = first.filter(|_| later > 0).map(|first| (real(outcome.total) - first) / later as f64);
            let is_good = first.is_some_and(|first| first <= TTFT_MS) && each.unwrap_or(0.0) <= TPOT_MS;
            good += usize::from(is_good);
            ttft.extend(first);
            tpot.extend(each);
            latency.push(real(outcome.total));
            let pod = response.pod.clone().unwrap_or_else(|| "(unnamed)".to_owned());
            tokens.add(&response.usage);
            pods.entry(pod).or_default().add(&response.usage);
        }
        Self {
            policy,
            requests: outcomes.len(),
            seconds: took.as_secs_f64(),
            ends: Ends::of(outcomes),
            tokens,
            ttft_ms: Times::of(&ttft),
            tpot_ms: Times::of(&tpot),
            latency_ms: Times::of(&latency),
            good_percent: good as f64 / outcomes.len().max(1) as f64 * 100.0,
            added_ms: AddedReport {
                times: Times::of(&added.samples),
                samples: added.samples.len(),
                failed: added.failed,
                method: METHOD,
            },
            usher: usher.map(|(before, after)| {
                let cpu = after.cpu.saturating_sub(before.cpu).as_secs_f64();
                let decided = outcomes.len() + added.samples.len() + added.failed;
                UsherReport {
                    cpu_seconds: cpu,
                    decided,
                    cpu_ms_per_request: cpu * 1e3 / decided.max(1) as f64,
                    peak_memory_bytes: after.peak_memory,
                }
            }),
            pods,
        }
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

impl PlainReport {
    /// A report without runs.
    pub(super) fn new(speed: f64, ports: Ports) -> Self {
        Self {
            speed,
            output_divisor: OUTPUT_DIVISOR,
            ttft_limit_ms: TTFT_MS,
            tpot_limit_ms: TPOT_MS,
            is_optimised: env!("USHER_OPT_LEVEL") == "3",
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
            return format!("{failed} of {all} requests failed, so the policies can't be compared.");
        }
        let [default, own] = &self.runs[..] else {
            return "One policy alone ran, so there is nothing to compare.".to_owned();
        };
        let (default, own) = (default.good_percent, own.good_percent);
        let both = format!(
            "{default:.0} % of requests were good with llm-d-router's default policy, and {own:.0} % with Usher's"
        );
        if own >= default + EQUAL {
            format!("On the same servers, {both}, which has no weights to tune.")
        } else if default >= own + EQUAL {
            format!("On these servers Usher's policy did worse: {both}.")
        } else {
            format!("On these servers the policies did equally well: {both}.")
        }
    }

    /// Requests of each pod, as numbers and as bars of one scale.
    fn pods(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let counts = self.runs.iter().flat_map(|run| run.pods.values()).map(|pod| pod.requests);
        let most = counts.max().unwrap_or(0).max(1);
        row(f, &self.runs, "requests per pod", |run| run.policy.to_owned())?;
        for name in self.runs.first().into_iter().flat_map(|run| run.pods.keys()) {
            row(f, &self.runs, name, |run| {
                let requests = run.pods.get(name).map_or(0, |pod| pod.requests);
                let bar = "█".repeat((requests * BAR).div_ceil(most));
                format!("{bar}{requests:>COUNT$}")
            })?;
        }
        Ok(())
    }
}

impl Display for PlainReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let requests = self.runs.first().map_or(0, |run| run.requests);
        let servers = self.ports.servers.len();
        writeln!(f, "{requests} requests of a chat trace, through Envoy and Usher to")?;
        writeln!(f, "{servers} simulated servers: with llm-d-router's default policy, and")?;
        writeln!(f, "with Usher's own (expected-latency-scorer).")?;
        writeln!(f, "Trace and servers run {} times as fast as in reality, and", self.speed)?;
        writeln!(f, "responses are {} times shorter; times are scaled back.\n", self.output_divisor)?;

        let runs = &self.runs;
        row(f, runs, "policy", |run| run.policy.to_owned())?;
        row(f, runs, "TTFT mean", |run| shown(run.ttft_ms.mean, 0))?;
        row(f, runs, "TTFT p50", |run| shown(run.ttft_ms.p50, 0))?;
        row(f, runs, "TTFT p90", |run| shown(run.ttft_ms.p90, 0))?;
        row(f, runs, "TPOT p90", |run| shown(run.tpot_ms.p90, 1))?;
        row(f, runs, "goodput", |run| format!("{:.1} %", run.good_percent))?;
        row(f, runs, "prompt tokens in caches", |run| format!("{:.1} %", run.tokens.hit_percent()))?;
        row(f, runs, "failed requests", |run| grouped(run.failed() as u64))?;
        row(f, runs, "Usher: CPU per request", |run| {
            run.usher.as_ref().map_or("unknown".to_owned(), |of| format!("{:.2} ms", of.cpu_ms_per_request))
        })?;
        row(f, runs, "Usher: peak memory", |run| {
            run.usher
                .as_ref()
                .map_or("unknown".to_owned(), |of| format!("{} MiB", of.peak_memory_bytes >> 20))
        })?;
        row(f, runs, "Usher and Envoy add, p50", |run| shown(run.added_ms.times.p50, 1))?;
        writeln!(f)?;
        self.pods(f)?;
        writeln!(
            f,
            "\nGoodput: TTFT of {} s or less and TPOT of {} ms or less.\nMetrics are {} times as old as in reality, which favours\nUsher's policy. CPU and added time are not scaled.",
            TTFT_MS / 1e3,
            TPOT_MS,
            self.speed
        )?;
        if !self.is_optimised {
            writeln!(f, "This build is not optimised; a release takes less CPU.")?;
        }
        for run in self.runs.iter().filter(|run| run.failed() > 0) {
            paragraph(f, format_args!("{}: {}", run.policy, run.ends))?;
        }
        if let [only] = &self.runs[..] {
            writeln!(f, "After {} policy the rest was left out.", only.policy)?;
        }
        verdict(f, &self.verdict())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::demo::client::Response;
    use usher_core::request::usage::Usage as TokenUsage;

    const TABLE: &str = "\
4 requests of a chat trace, through Envoy and Usher to
3 simulated servers: with llm-d-router's default policy, and
with Usher's own (expected-latency-scorer).
Trace and servers run 12 times as fast as in reality, and
responses are 8 times shorter; times are scaled back.

policy                        llm-d-router's         Usher's
TTFT mean                             240 ms          240 ms
TTFT p50                              240 ms          240 ms
TTFT p90                              240 ms          240 ms
TPOT p90                             26.7 ms         26.7 ms
goodput                               50.0 %         100.0 %
prompt tokens in caches               50.0 %          50.0 %
failed requests                            2               0
Usher: CPU per request              10.00 ms         unknown
Usher: peak memory                    20 MiB         unknown
Usher and Envoy add, p50              2.0 ms       no sample

requests per pod              llm-d-router's         Usher's
sim-0                        ██████████    2 ██████████    2
sim-1                                      0               0
sim-2                                      0               0

Goodput: TTFT of 2 s or less and TPOT of 50 ms or less.
Metrics are 12 times as old as in reality, which favours
Usher's policy. CPU and added time are not scaled.
This build is not optimised; a release takes less CPU.
llm-d-router's: 2 × status 200, 1 × status 503, 1 × the response broke off

=> 2 of 6 requests failed, so the policies can't be
   compared.
";

    fn outcome(pod: &str, status: u16, prompt: u64, cached: u64) -> Outcome {
        let usage = TokenUsage {
            prompt_tokens: Some(prompt),
            completion_tokens: Some(10),
            cached_tokens: Some(cached),
        };
        let reason = String::new();
        Outcome {
            due: Duration::ZERO,
            first: Some(Duration::from_millis(20)),
            total: Duration::from_millis(40),
            response: Ok(Response { status, pod: Some(pod.to_owned()), first: None, usage, reason }),
        }
    }

    fn report() -> PlainReport {
        let failed = Outcome {
            due: Duration::ZERO,
            first: None,
            total: Duration::from_secs(60),
            response: Err("the response broke off".to_owned()),
        };
        let usage = |cpu, memory| Usage { cpu: Duration::from_millis(cpu), memory, peak_memory: memory };
        let whole = || vec![outcome("sim-0", 200, 1500, 500), outcome("sim-0", 200, 500, 500)];
        let mut broken = whole();
        broken.extend([outcome("sim-1", 503, 7, 0), failed]);
        let first = Measured {
            outcomes: broken,
            added: Added { samples: vec![2.0, -1.0, 3.0], failed: 1 },
            took: Duration::from_secs(4),
            usher: Some((usage(500, 1 << 20), usage(580, 20 << 20))),
        };
        let second = Measured {
            outcomes: whole(),
            added: Added { samples: Vec::new(), failed: 0 },
            took: Duration::from_secs(4),
            usher: None,
        };
        let names = || ["sim-0", "sim-1", "sim-2"].map(str::to_owned).to_vec();
        let mut report = PlainReport::new(12.0, Ports::from_first(8081, 3).unwrap());
        report.is_optimised = false;
        report.runs.push(Run::new("llm-d-router's", &first, 12.0, names()));
        report.runs.push(Run::new("Usher's", &second, 12.0, names()));
        report
    }

    #[test]
    fn table_matches_the_expected_text_in_60_columns() {
        assert_eq!(report().to_string(), TABLE);
        let wide: Vec<&str> = TABLE.lines().filter(|line| line.chars().count() > 60).collect();
        assert_eq!(wide, ["llm-d-router's: 2 × status 200, 1 × status 503, 1 × the response broke off"]);
    }

    #[test]
    fn verdict_matches_the_numbers() {
        let mut report = report();
        report.runs[0].ends = Ends::default();
        let mut says = |default: f64, own: f64| {
            (report.runs[0].good_percent, report.runs[1].good_percent) = (default, own);
            let text = report.to_string();
            text.rsplit_once("\n\n").unwrap().1.to_owned()
        };
        let expected = "=> On the same servers, 50 % of requests were good with\n   llm-d-router's default policy, \
                        and 100 % with Usher's,\n   which has no weights to tune.\n";
        assert_eq!(says(50.0, 100.0), expected);
        assert!(says(99.0, 80.0).starts_with("=> On these servers Usher's policy did worse: 99 % of"));
        assert!(says(99.2, 99.0).starts_with("=> On these servers the policies did equally well: 99 %"));
        report.runs.pop();
        assert!(
            report.to_string().ends_with("\n\n=> One policy alone ran, so there is nothing to compare.\n")
        );
    }

    #[test]
    fn sums_are_over_good_responses_and_all_pods_show() {
        let report = report();
        assert_eq!((report.requests(), report.failed()), (6, 2));
        let run = &report.runs[0];
        assert_eq!(run.ends.statuses, BTreeMap::from([(200, 2), (503, 1)]));
        assert_eq!(run.ends.failures["the response broke off"], 1);
        assert_eq!(run.pods["sim-0"], Tokens { requests: 2, prompt: 2000, completion: 20, cached: 1000 });
        assert_eq!((&run.tokens, &run.pods["sim-1"]), (&run.pods["sim-0"], &Tokens::default()));
        assert_eq!(run.pods.len(), 3);
    }

    #[test]
    fn json_has_the_numbers() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["runs"][0]["added_ms"]["p50"], 2.0);
        assert_eq!(json["runs"][0]["usher"]["cpu_ms_per_request"], 10.0);
        assert_eq!(json["runs"][0]["statuses"]["503"], 1);
        assert_eq!(json["runs"][0]["ttft_ms"]["p99"], 240.0);
        assert_eq!((&json["ports"]["envoy"], &json["ttft_limit_ms"]), (&8081.into(), &2000.0.into()));
    }
}
