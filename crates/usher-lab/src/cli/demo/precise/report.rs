//! Hits that were predicted and hits that happened, side by side.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use super::page::Hits;
use crate::cli::demo::ports::Ports;
use crate::cli::demo::replay::Outcome;
use crate::cli::demo::report::{Ends, Side, Tokens, failed, requests, row, verdict};
use usher_terminal::{grouped, paragraph};

/// Report of the runs.
#[derive(Debug, Serialize)]
pub(in crate::cli::demo) struct PreciseReport {
    /// Speed of the servers, in multiples of reality.
    speed: f64,
    /// One for each way to know what engines hold.
    pub(super) runs: Vec<Run>,
    /// Ports of all processes, but for that of events.
    ports: Ports,
}

/// Hits of a part of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Part {
    #[serde(flatten)]
    hits: Hits,
    /// Tokens that were predicted and not cached, or cached and not predicted.
    off: f64,
}

impl Part {
    /// Adds the hits of a few requests.
    pub(super) fn add(&mut self, hits: Hits) {
        self.hits.predicted += hits.predicted;
        self.hits.cached += hits.cached;
        self.off += (hits.predicted - hits.cached).abs();
    }

    /// Tokens that were predicted wrongly, in percent of those that were cached.
    fn off_percent(&self) -> f64 {
        self.off / self.hits.cached.max(1.0) * 100.0
    }
}

/// The numbers of one of them.
#[derive(Debug, Serialize)]
pub(super) struct Run {
    policy: &'static str,
    requests: usize,
    #[serde(skip)]
    pub(super) outcomes: Vec<Outcome>,
    #[serde(flatten)]
    ends: Ends,
    /// Tokens of all responses.
    tokens: Tokens,
    /// While blocks are evicted.
    pub(super) evictions: Part,
    /// After half of the servers restarted.
    pub(super) restart: Part,
    /// Tokens that were predicted wrongly in either part, in percent of those that were cached.
    off_percent: f64,
}

impl Run {
    pub(super) fn new(policy: &'static str) -> Self {
        Self {
            policy,
            requests: 0,
            outcomes: Vec::new(),
            ends: Ends::default(),
            tokens: Tokens::default(),
            evictions: Part::default(),
            restart: Part::default(),
            off_percent: 0.0,
        }
    }

    /// Adds up what was measured.
    pub(super) fn sum(&mut self) {
        self.requests = self.outcomes.len();
        self.ends = Ends::of(&self.outcomes);
        let responses = self.outcomes.iter().filter_map(|outcome| outcome.response.as_ref().ok());
        responses
            .filter(|response| response.status == 200)
            .for_each(|response| self.tokens.add(&response.usage));
        let mut both = self.evictions;
        both.hits.predicted += self.restart.hits.predicted;
        both.hits.cached += self.restart.hits.cached;
        both.off += self.restart.off;
        self.off_percent = both.off_percent();
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

impl PreciseReport {
    /// A report without runs.
    pub(super) fn new(speed: f64, ports: Ports) -> Self {
        Self { speed, runs: Vec::new(), ports }
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
            return format!("{failed} of {all} requests failed, so the predictions can't be compared.");
        }
        let [approximate, precise] = &self.runs[..] else {
            return "One run alone ended, so there is nothing to compare.".to_owned();
        };
        let (approximate, precise) = (approximate.off_percent, precise.off_percent);
        if precise < approximate {
            format!(
                "Over evictions and a restart, what engines publish was {precise:.1} % off the hits that happened, \
                 and Usher's estimate {approximate:.1} %."
            )
        } else {
            format!(
                "On these servers Usher's estimate did no worse than what engines publish: it was \
                 {approximate:.1} % off the hits that happened, and they {precise:.1} %."
            )
        }
    }
}

/// Thousands of tokens.
fn tokens(count: f64) -> String {
    grouped((count / 1e3).round().max(0.0) as u64)
}

impl Display for PreciseReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let requests = self.runs.first().map_or(0, |run| run.requests);
        let servers = self.ports.servers.len();
        writeln!(f, "{requests} requests that share long beginnings, through Envoy and")?;
        writeln!(f, "Usher to {servers} simulated servers whose KV caches are too")?;
        writeln!(f, "small for all. After half of the requests, half of the")?;
        writeln!(f, "servers restart. Prefix caches are once estimated from")?;
        writeln!(f, "decisions, and once known from the servers' KV events.\n")?;

        let runs = &self.runs;
        row(f, runs, "thousands of tokens", |run| run.policy.to_owned())?;
        row(f, runs, "with evictions: predicted", |run| tokens(run.evictions.hits.predicted))?;
        row(f, runs, "  cached", |run| tokens(run.evictions.hits.cached))?;
        row(f, runs, "  off by", |run| format!("{:.1} %", run.evictions.off_percent()))?;
        row(f, runs, "with restarts: predicted", |run| tokens(run.restart.hits.predicted))?;
        row(f, runs, "  cached", |run| tokens(run.restart.hits.cached))?;
        row(f, runs, "  off by", |run| format!("{:.1} %", run.restart.off_percent()))?;
        row(f, runs, "prompt tokens in caches", |run| format!("{:.1} %", run.tokens.hit_percent()))?;
        row(f, runs, "failed requests", |run| grouped(run.failed() as u64))?;
        for run in self.runs.iter().filter(|run| run.failed() > 0) {
            paragraph(f, format_args!("{}: {}", run.policy, run.ends))?;
        }
        verdict(f, &self.verdict())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cli::demo::client::Response;
    use usher_core::request::usage::Usage;

    const TABLE: &str = "\
2 requests that share long beginnings, through Envoy and
Usher to 3 simulated servers whose KV caches are too
small for all. After half of the requests, half of the
servers restart. Prefix caches are once estimated from
decisions, and once known from the servers' KV events.

thousands of tokens              approximate         precise
with evictions: predicted              1,000           1,000
  cached                                 900           1,000
  off by                              11.1 %           0.0 %
with restarts: predicted                 600             401
  cached                                 400             400
  off by                              50.0 %           0.2 %
prompt tokens in caches               50.0 %          50.0 %
failed requests                            0               0

=> Over evictions and a restart, what engines publish was
   0.1 % off the hits that happened, and Usher's estimate
   23.1 %.
";

    fn outcomes(statuses: [u16; 2]) -> Vec<Outcome> {
        let usage = Usage { prompt_tokens: Some(100), completion_tokens: Some(8), cached_tokens: Some(50) };
        let response = |status| Response { status, pod: None, first: None, usage, reason: String::new() };
        let outcome = |status| Outcome {
            due: Duration::ZERO,
            first: None,
            total: Duration::ZERO,
            response: Ok(response(status)),
        };
        statuses.map(outcome).into()
    }

    fn report(statuses: [u16; 2]) -> PreciseReport {
        let run = |policy, parts: [(f64, f64); 2]| {
            let mut run = Run::new(policy);
            run.outcomes = outcomes(statuses);
            let [evictions, restart] = parts.map(|(predicted, cached)| Hits { predicted, cached });
            run.evictions.add(evictions);
            run.restart.add(restart);
            run.sum();
            run
        };
        let mut report = PreciseReport::new(12.0, Ports::from_first(8081, 3).unwrap());
        report.runs.push(run("approximate", [(1e6, 9e5), (6e5, 4e5)]));
        report.runs.push(run("precise", [(1e6, 1e6), (4.01e5, 4e5)]));
        report
    }

    #[test]
    fn table_matches_the_expected_text_in_60_columns() {
        let text = report([200, 200]).to_string();
        assert_eq!(text, TABLE);
        assert!(text.lines().all(|line| line.chars().count() <= 60));
    }

    #[test]
    fn verdict_matches_the_numbers() {
        let mut alike = report([200, 200]);
        alike.runs[1].off_percent = 50.0;
        assert!(alike.verdict().starts_with("On these servers Usher's estimate did no worse"));
        alike.runs.pop();
        assert_eq!(alike.verdict(), "One run alone ended, so there is nothing to compare.");
        assert!(report([200, 503]).verdict().starts_with("2 of 4 requests failed"));
    }
}
