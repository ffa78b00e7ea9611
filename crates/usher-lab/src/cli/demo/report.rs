//! The numbers of a run, as a table and as JSON.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use serde::Serialize;

use super::latency::{Added, METHOD, percentile};
use super::ports::Ports;
use super::replay::Outcome;
use super::trace::OUTPUT_DIVISOR;
use crate::load::process::Usage;
use usher_terminal::{grouped, line};

/// Everything that is told about a run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Requests of the trace that were sent.
    pub(super) requests: usize,
    /// From the first request to the last answer.
    pub(super) seconds: f64,
    /// How many times as fast as the trace, servers included.
    pub(super) speed: f64,
    /// Answers are so many times shorter than in the trace.
    pub(super) output_divisor: u32,
    /// Answers by status.
    pub(super) statuses: BTreeMap<u16, usize>,
    /// Requests without a whole answer, by reason.
    pub(super) failures: BTreeMap<String, usize>,
    /// Tokens of all answers.
    pub(super) tokens: Tokens,
    /// From when a request was due to the first byte of its answer.
    pub(super) first_token_ms: Percentiles,
    /// From when a request was due to the end of its answer.
    pub(super) answer_ms: Percentiles,
    /// Time that Envoy and Usher add to a request.
    pub(super) added_ms: AddedReport,
    /// CPU time and memory that Usher used during the replay, where the system reports them.
    pub(super) usher: Option<UsherReport>,
    /// Each server, by name.
    pub(super) pods: BTreeMap<String, Tokens>,
    /// Where everything listens.
    pub(super) ports: Ports,
}

/// Sums over answers.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Tokens {
    /// Answers with status 200.
    pub(super) requests: usize,
    /// Tokens of the prompts.
    pub(super) prompt: u64,
    /// Generated tokens.
    pub(super) completion: u64,
    /// Tokens of the prompts that were in the server's prefix cache.
    pub(super) cached: u64,
}

impl Tokens {
    /// Part of the prompts that was cached, in percent.
    fn hit_percent(&self) -> f64 {
        if self.prompt == 0 { 0.0 } else { self.cached as f64 / self.prompt as f64 * 100.0 }
    }
}

/// Two exact percentiles; none without a sample.
#[derive(Debug, Default, Serialize)]
pub(super) struct Percentiles {
    p50: Option<f64>,
    p99: Option<f64>,
}

impl Percentiles {
    pub(super) fn of(samples: &[f64]) -> Self {
        Self { p50: percentile(samples, 50.0), p99: percentile(samples, 99.0) }
    }
}

/// Time that Envoy and Usher add to a request, in milliseconds.
#[derive(Debug, Serialize)]
pub(super) struct AddedReport {
    #[serde(flatten)]
    percentiles: Percentiles,
    samples: usize,
    failed: usize,
    method: &'static str,
}

/// CPU time and memory that Usher used during the replay, scraping included.
#[derive(Debug, Serialize)]
pub(super) struct UsherReport {
    cpu_seconds: f64,
    /// Of one core.
    cpu_percent: f64,
    /// Requests that it decided: those of the trace, and those that measure latency.
    decided: usize,
    /// For each of those.
    cpu_ms_per_request: f64,
    memory_bytes: u64,
    peak_memory_bytes: u64,
}

/// Measurements of a replay.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) outcomes: Vec<Outcome>,
    pub(super) added: Added,
    /// How long the replay took.
    pub(super) took: Duration,
    /// Usher before and after the replay.
    pub(super) usher: Option<(Usage, Usage)>,
}

impl Report {
    /// Adds up what was measured. `pods` are the names of all servers, so that one
    /// without a request shows too.
    pub(super) fn new(measured: &Measured, speed: f64, ports: Ports, pods: Vec<String>) -> Self {
        let Measured { outcomes, added, took, usher } = measured;
        let mut report = Self {
            requests: outcomes.len(),
            seconds: took.as_secs_f64(),
            speed,
            output_divisor: OUTPUT_DIVISOR,
            statuses: BTreeMap::new(),
            failures: BTreeMap::new(),
            tokens: Tokens::default(),
            first_token_ms: Percentiles::default(),
            answer_ms: Percentiles::default(),
            added_ms: AddedReport {
                percentiles: Percentiles::of(&added.samples),
                samples: added.samples.len(),
                failed: added.failed,
                method: METHOD,
            },
            usher: usher.map(|(before, after)| {
                let cpu = after.cpu.saturating_sub(before.cpu).as_secs_f64();
                let decided = outcomes.len() + added.samples.len() + added.failed;
                UsherReport {
                    cpu_seconds: cpu,
                    cpu_percent: cpu / took.as_secs_f64().max(1e-3) * 100.0,
                    decided,
                    cpu_ms_per_request: cpu * 1e3 / decided.max(1) as f64,
                    memory_bytes: after.memory,
                    peak_memory_bytes: after.peak_memory,
                }
            }),
            pods: pods.into_iter().map(|name| (name, Tokens::default())).collect(),
            ports,
        };
        report.add_up(outcomes);
        report
    }

    fn add_up(&mut self, outcomes: &[Outcome]) {
        let (mut first, mut total) = (Vec::new(), Vec::new());
        for outcome in outcomes {
            let answer = match &outcome.answer {
                Ok(answer) => answer,
                Err(reason) => {
                    *self.failures.entry(reason.clone()).or_default() += 1;
                    continue;
                }
            };
            *self.statuses.entry(answer.status).or_default() += 1;
            if answer.status != 200 {
                continue;
            }
            first.extend(outcome.first.map(milliseconds));
            total.push(milliseconds(outcome.total));
            let pod = answer.pod.clone().unwrap_or_else(|| "(unnamed)".to_owned());
            for sum in [&mut self.tokens, self.pods.entry(pod).or_default()] {
                sum.requests += 1;
                sum.prompt += answer.usage.prompt_tokens.unwrap_or(0);
                sum.completion += answer.usage.completion_tokens.unwrap_or(0);
                sum.cached += answer.usage.cached_tokens.unwrap_or(0);
            }
        }
        self.first_token_ms = Percentiles::of(&first);
        self.answer_ms = Percentiles::of(&total);
    }

    /// Requests that did not end with status 200.
    pub(super) fn failed(&self) -> usize {
        self.requests - self.tokens.requests
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// How requests ended, for a line of a report.
pub(super) fn ends(statuses: &BTreeMap<u16, usize>, failures: &BTreeMap<String, usize>) -> String {
    let statuses = statuses.iter().map(|(status, count)| format!("{count} × status {status}"));
    let failures = failures.iter().map(|(reason, count)| format!("{count} × {reason}"));
    statuses.chain(failures).collect::<Vec<_>>().join(", ")
}

/// Note for readers of a report on its times.
pub(super) fn pace(speed: f64, output_divisor: u32) -> String {
    format!(
        "Trace and servers run {speed} times as fast as in reality; answers are {output_divisor} times shorter."
    )
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { speed, output_divisor, pods, tokens, .. } = self;
        writeln!(f, "A trace, replayed through Envoy and Usher to {} simulated servers.", pods.len())?;
        writeln!(f, "{}\n", pace(*speed, *output_divisor))?;

        let ends = ends(&self.statuses, &self.failures);
        line(f, "requests", format_args!("{} in {:.1} s: {ends}", self.requests, self.seconds))?;
        let (prompt, completion) = (grouped(tokens.prompt), grouped(tokens.completion));
        let (cached, hits) = (grouped(tokens.cached), tokens.hit_percent());
        line(
            f,
            "tokens",
            format_args!(
                "prompt {prompt}, completion {completion}, cached {cached} ({hits:.1} % of the prompts)"
            ),
        )?;
        line(f, "first token", format_args!("{} from when the request was due", self.first_token_ms))?;
        line(f, "whole answer", format_args!("{} from when the request was due", self.answer_ms))?;

        let AddedReport { percentiles, samples, failed, method } = &self.added_ms;
        let failed = if *failed == 0 { String::new() } else { format!(", {failed} more failed") };
        line(f, "added latency", format_args!("{percentiles} by Envoy and Usher together"))?;
        line(f, "", format_args!("{samples} samples{failed}: {method}"))?;

        match &self.usher {
            None => line(f, "Usher", format_args!("CPU and memory are only known on Linux"))?,
            Some(usher) => {
                let UsherReport { cpu_seconds, cpu_percent, cpu_ms_per_request, decided, .. } = usher;
                let (memory, peak) = (usher.memory_bytes >> 20, usher.peak_memory_bytes >> 20);
                line(
                    f,
                    "Usher",
                    format_args!(
                        "CPU {cpu_seconds:.2} s: {cpu_percent:.1} % of a core, {cpu_ms_per_request:.2} ms for each of {decided} requests, scraping included"
                    ),
                )?;
                line(f, "", format_args!("memory {memory} MiB, at most {peak} MiB"))?;
            }
        }

        writeln!(
            f,
            "\n{:<12}{:>10}{:>16}{:>16}{:>14}",
            "pod", "requests", "prompt tokens", "cached tokens", "prefix hits"
        )?;
        for (name, pod) in pods {
            let (requests, prompt, cached) = (pod.requests, grouped(pod.prompt), grouped(pod.cached));
            writeln!(f, "{name:<12}{requests:>10}{prompt:>16}{cached:>16}{:>12.1} %", pod.hit_percent())?;
        }
        Ok(())
    }
}

impl Display for Percentiles {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (self.p50, self.p99) {
            (Some(p50), Some(p99)) => write!(f, "p50 {p50:.1} ms, p99 {p99:.1} ms"),
            _ => f.write_str("no sample"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::client::Answer;
    use super::*;
    use usher_core::request::usage::Usage as TokenUsage;

    const TABLE: &str = "\
A trace, replayed through Envoy and Usher to 3 simulated servers.
Trace and servers run 12 times as fast as in reality; answers are 8 times shorter.

requests       4 in 4.0 s: 2 × status 200, 1 × status 503, 1 × the answer broke off
tokens         prompt 2,000, completion 20, cached 1,000 (50.0 % of the prompts)
first token    p50 20.0 ms, p99 20.0 ms from when the request was due
whole answer   p50 40.0 ms, p99 40.0 ms from when the request was due
added latency  p50 2.0 ms, p99 3.0 ms by Envoy and Usher together
               3 samples, 1 more failed: a request through Envoy minus the same one straight to a server
Usher          CPU 0.08 s: 2.0 % of a core, 10.00 ms for each of 8 requests, scraping included
               memory 20 MiB, at most 20 MiB

pod           requests   prompt tokens   cached tokens   prefix hits
sim-0                2           2,000           1,000        50.0 %
sim-1                0               0               0         0.0 %
sim-2                0               0               0         0.0 %
";

    fn outcome(pod: &str, status: u16, prompt: u64, cached: u64) -> Outcome {
        let usage = TokenUsage {
            prompt_tokens: Some(prompt),
            completion_tokens: Some(10),
            cached_tokens: Some(cached),
        };
        Outcome {
            due: Duration::ZERO,
            first: Some(Duration::from_millis(20)),
            total: Duration::from_millis(40),
            answer: Ok(Answer {
                status,
                pod: Some(pod.to_owned()),
                first: None,
                usage,
                reason: String::new(),
            }),
        }
    }

    fn report() -> Report {
        let failed = Outcome {
            due: Duration::ZERO,
            first: None,
            total: Duration::from_secs(60),
            answer: Err("the answer broke off".to_owned()),
        };
        let usage = |cpu, memory| Usage { cpu: Duration::from_millis(cpu), memory, peak_memory: memory };
        let measured = Measured {
            outcomes: vec![
                outcome("sim-0", 200, 1500, 500),
                outcome("sim-0", 200, 500, 500),
                outcome("sim-1", 503, 7, 0),
                failed,
            ],
            added: Added { samples: vec![2.0, -1.0, 3.0], failed: 1 },
            took: Duration::from_secs(4),
            usher: Some((usage(500, 1 << 20), usage(580, 20 << 20))),
        };
        let names = ["sim-0", "sim-1", "sim-2"].map(str::to_owned).to_vec();
        Report::new(&measured, 12.0, Ports::from_first(8081, 3).unwrap(), names)
    }

    #[test]
    fn sums_are_over_good_answers_and_all_pods_show() {
        let report = report();
        assert_eq!(report.failed(), 2);
        assert_eq!(report.statuses, BTreeMap::from([(200, 2), (503, 1)]));
        assert_eq!(report.failures["the answer broke off"], 1);
        assert_eq!(report.pods["sim-0"], Tokens { requests: 2, prompt: 2000, completion: 20, cached: 1000 });
        assert_eq!(report.tokens, report.pods["sim-0"]);
        assert_eq!(report.pods["sim-1"], Tokens::default());
        assert_eq!(report.pods.len(), 3);
    }

    #[test]
    fn the_table_reads_like_this() {
        assert_eq!(report().to_string(), TABLE);
    }

    #[test]
    fn json_has_the_numbers() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["added_ms"]["p50"], 2.0);
        assert_eq!(json["added_ms"]["p99"], 3.0);
        assert_eq!(json["added_ms"]["samples"], 3);
        assert_eq!(json["usher"]["cpu_ms_per_request"], 10.0);
        assert_eq!(json["usher"]["cpu_percent"], 2.0);
        assert_eq!(json["statuses"]["503"], 1);
        assert_eq!(json["first_token_ms"]["p99"], 20.0);
        assert_eq!(json["ports"]["envoy"], 8081);
    }
}
