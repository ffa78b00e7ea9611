//! Hits, TTFT and load of the servers, side by side, and a replica that was away.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use serde::Serialize;

use super::staleness::Staleness;
use super::traffic::{Exchange, Kind, Pace};
use crate::cli::demo::ports::Ports;
use crate::cli::demo::report::{Ends, Side, Times, Tokens, failed, requests, row, shown, verdict};
use usher_terminal::{grouped, paragraph};

/// Time after a kill in which requests may still be sent to the replica: until a connection has failed.
const GRACE: Duration = Duration::from_secs(1);

/// Percents of hits that make no difference.
const EQUAL: f64 = 2.0;

/// Results of the runs.
#[derive(Debug, Serialize)]
pub(in crate::cli::demo) struct ReplicasReport {
    /// Speed of the servers and of the requests, in multiples of reality.
    speed: f64,
    /// One for each way to run replicas.
    pub(super) runs: Vec<Run>,
    /// Times until the others knew of a request; `None` if requests failed before.
    pub(super) staleness: Option<Staleness>,
    /// The replica that was killed; `None` if requests failed before.
    pub(super) kill: Option<Kill>,
    /// Ports of all processes, but for that of the store.
    ports: Ports,
}

/// The numbers of one of them.
#[derive(Debug, Serialize)]
pub(super) struct Run {
    name: &'static str,
    replicas: usize,
    requests: usize,
    #[serde(flatten)]
    ends: Ends,
    /// Tokens of the conversations.
    tokens: Tokens,
    hit_percent: f64,
    /// Time to the first token of requests of conversations, in real time.
    ttft_ms: Times,
    bursts: usize,
    /// Requests under way at the server that has the most, over the mean of all, while bursts came: the mean.
    max_over_mean: Option<f64>,
}

impl Run {
    /// Adds up what became of the requests.
    pub(super) fn new(name: &'static str, replicas: usize, exchanges: &[Exchange], pace: Pace) -> Self {
        let (mut tokens, mut ttft) = (Tokens::default(), Vec::new());
        for Exchange { kind, outcome } in exchanges {
            let served = outcome.response.as_ref().ok().filter(|response| response.status == 200);
            let Some(response) = served.filter(|_| *kind == Kind::Turn) else { continue };
            tokens.add(&response.usage);
            ttft.extend(outcome.first.map(|first| first.as_secs_f64() * 1e3 * pace.speed));
        }
        let bursts = bursts(exchanges);
        let ratios: Vec<f64> =
            bursts.values().flat_map(|sent| max_over_mean(exchanges, sent, pace.servers)).collect();
        Self {
            name,
            replicas,
            requests: exchanges.len(),
            ends: Ends::of(exchanges.iter().map(|exchange| &exchange.outcome)),
            hit_percent: tokens.hit_percent(),
            tokens,
            ttft_ms: Times::of(&ttft),
            bursts: bursts.len(),
            max_over_mean: (!ratios.is_empty()).then(|| ratios.iter().sum::<f64>() / ratios.len() as f64),
        }
    }
}

/// Times at which the requests of each burst were sent.
fn bursts(exchanges: &[Exchange]) -> BTreeMap<usize, Vec<Duration>> {
    let mut bursts: BTreeMap<usize, Vec<Duration>> = BTreeMap::new();
    for Exchange { kind, outcome } in exchanges {
        if let Kind::Burst(number) = kind {
            bursts.entry(*number).or_default().push(outcome.due);
        }
    }
    bursts
}

/// Most requests under way at a server over the mean, as each request of a burst's second half is sent.
fn max_over_mean(exchanges: &[Exchange], sent: &[Duration], servers: usize) -> Vec<f64> {
    let mut sent = sent.to_vec();
    sent.sort_unstable();
    let at = |moment: &Duration| {
        let mut pods: BTreeMap<&str, usize> = BTreeMap::new();
        for Exchange { outcome, .. } in exchanges {
            let is_open = outcome.due <= *moment && *moment < outcome.due + outcome.total;
            let pod = outcome.response.as_ref().ok().and_then(|response| response.pod.as_deref());
            if let Some(pod) = pod.filter(|_| is_open) {
                *pods.entry(pod).or_default() += 1;
            }
        }
        let (all, most) = (pods.values().sum::<usize>(), pods.values().max()?);
        Some(*most as f64 * servers as f64 / all as f64)
    };
    sent.iter().skip(sent.len() / 2).filter_map(at).collect()
}

/// A replica that was killed and came back.
#[derive(Debug, Default, Serialize)]
pub(super) struct Kill {
    requests: usize,
    /// Requests that it had under way.
    held: i64,
    /// Failed requests among those that were under way or sent within a second.
    lost: usize,
    /// Other failed requests.
    failed: usize,
    /// Reasons of all failed requests.
    reasons: BTreeMap<String, usize>,
    /// Time from the kill until the others no longer counted its requests.
    pub(super) counted_seconds: f64,
    /// Time from its start until Envoy sent it requests again.
    pub(super) back_seconds: f64,
    /// Time from then until its responses had 98 % of the others' hits; `None` if they never had.
    pub(super) caught_up_seconds: Option<f64>,
    /// Cached part of the prompts that it served after it was back.
    pub(super) hit_percent: f64,
    /// Cached part of the prompts that the other replicas served since its start.
    pub(super) hit_percent_of_others: f64,
}

impl Kill {
    /// Counts what became of the requests. `killed`: time of the kill since the first.
    pub(super) fn new(held: i64, killed: Duration, exchanges: &[Exchange]) -> Self {
        let mut kill = Self { requests: exchanges.len(), held, ..Self::default() };
        for Exchange { outcome, .. } in exchanges {
            let reason = match &outcome.response {
                Ok(response) if response.status == 200 => continue,
                Ok(response) => format!("status {}", response.status),
                Err(reason) => reason.clone(),
            };
            *kill.reasons.entry(reason).or_default() += 1;
            let is_lost = outcome.due + outcome.total >= killed && outcome.due <= killed + GRACE;
            *if is_lost { &mut kill.lost } else { &mut kill.failed } += 1;
        }
        kill
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

impl ReplicasReport {
    /// A report without runs.
    pub(super) fn new(speed: f64, ports: Ports) -> Self {
        Self { speed, runs: Vec::new(), staleness: None, kill: None, ports }
    }

    /// Requests of all runs.
    pub(in crate::cli::demo) fn requests(&self) -> usize {
        requests(&self.runs) + self.kill.as_ref().map_or(0, |kill| kill.requests)
    }

    /// Failed requests that the kill doesn't explain.
    pub(in crate::cli::demo) fn failed(&self) -> usize {
        failed(&self.runs) + self.kill.as_ref().map_or(0, |kill| kill.failed)
    }

    /// Verdict on the runs.
    fn verdict(&self) -> String {
        if self.failed() > 0 {
            let (failed, all) = (self.failed(), self.requests());
            return format!("{failed} of {all} requests failed that no kill explains.");
        }
        let ([one, alone, sharing], Some(kill)) = (&self.runs[..], &self.kill) else {
            return "Not all was shown, so there is nothing to compare.".to_owned();
        };
        let [one, alone, sharing] = [one, alone, sharing].map(|run| run.hit_percent);
        let hits = if sharing <= alone {
            format!(
                "Sharing did not help here: three that share found {sharing:.1} % of the prompts in caches, three alone {alone:.1} %."
            )
        } else if sharing + EQUAL >= one {
            format!(
                "Three replicas that share found as much of the prompts in caches as one, {sharing:.1} and {one:.1} %; three alone {alone:.1} %."
            )
        } else {
            format!(
                "Three replicas that share found {sharing:.1} % of the prompts in caches, one {one:.1} %, and three alone {alone:.1} %."
            )
        };
        let back = match kill.caught_up_seconds {
            Some(time) => format!("and, back, had its share of hits {time:.1} s after its first requests"),
            None => "and, back, did not reach the others' hits".to_owned(),
        };
        format!("{hits} One that was killed counted for {:.1} s more, {back}.", kill.counted_seconds)
    }
}

impl Display for ReplicasReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (requests, servers) = (self.runs.first().map_or(0, |run| run.requests), self.ports.servers.len());
        paragraph(
            f,
            format_args!(
                "{requests} requests through Envoy, which spreads them over replicas of Usher, to {servers} simulated \
                 servers: conversations whose prompts begin alike, and bursts. Three replicas know only their own \
                 requests, or share load and prefixes through a store."
            ),
        )?;
        writeln!(f)?;
        let runs = &self.runs;
        row(f, runs, "", |run| run.name.to_owned())?;
        row(f, runs, "prompt tokens in caches", |run| format!("{:.1} %", run.hit_percent))?;
        row(f, runs, "TTFT p50", |run| shown(run.ttft_ms.p50, 0))?;
        row(f, runs, "TTFT p90", |run| shown(run.ttft_ms.p90, 0))?;
        let ratio =
            |run: &Run| run.max_over_mean.map_or("no burst".to_owned(), |ratio| format!("{ratio:.2}"));
        row(f, runs, "server load, max/mean", ratio)?;
        row(f, runs, "failed requests", |run| grouped(run.failed() as u64))?;
        for run in runs.iter().filter(|run| run.failed() > 0) {
            paragraph(f, format_args!("{}: {}", run.name, run.ends))?;
        }
        if let Some(staleness) = &self.staleness {
            write!(f, "\n{staleness}")?;
        }
        if let Some(kill) = &self.kill {
            write!(f, "\n{kill}")?;
        }
        verdict(f, &self.verdict())
    }
}

/// A line of one number.
fn line(f: &mut Formatter<'_>, title: &str, value: &str) -> fmt::Result {
    writeln!(f, "{title:<46}{value:>14}")
}

impl Display for Staleness {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        line(f, "others count a request of one after, p99", &shown(self.load_ms.p99, 0))?;
        line(f, "they know its prompt after, p99", &shown(self.prefixes_ms.p99, 0))
    }
}

impl Display for Kill {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut line = |title: &str, value: String| line(f, title, &value);
        line("one that shares is killed; requests it held", self.held.to_string())?;
        line("failed requests", self.lost.to_string())?;
        line("the others counted its requests for", format!("{:.2} s", self.counted_seconds))?;
        line("started again, it got requests after", format!("{:.2} s", self.back_seconds))?;
        let time = self.caught_up_seconds.map_or("never".to_owned(), |time| format!("{time:.2} s"));
        line("98 % of the others' hits after", time)?;
        line("its prompt tokens in caches", format!("{:.1} %", self.hit_percent))?;
        line("the others'", format!("{:.1} %", self.hit_percent_of_others))?;
        if self.failed > 0 {
            let reasons = self.reasons.iter().map(|(reason, count)| format!("{count} × {reason}"));
            paragraph(f, format_args!("{}", reasons.collect::<Vec<_>>().join(", ")))?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
