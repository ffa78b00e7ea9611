//! Numbers that reports of several scenarios have.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use super::latency::percentile;
use super::replay::Outcome;
use usher_core::request::usage::Usage;
use usher_terminal::wrap;

/// Sums over responses.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Tokens {
    /// Responses with status 200.
    pub(super) requests: usize,
    /// Tokens of the prompts.
    pub(super) prompt: u64,
    /// Generated tokens.
    pub(super) completion: u64,
    /// Tokens of the prompts that were in the server's prefix cache.
    pub(super) cached: u64,
}

impl Tokens {
    /// Adds a response.
    pub(super) fn add(&mut self, usage: &Usage) {
        self.requests += 1;
        self.prompt += usage.prompt_tokens.unwrap_or(0);
        self.completion += usage.completion_tokens.unwrap_or(0);
        self.cached += usage.cached_tokens.unwrap_or(0);
    }

    /// Part of the prompts that was cached, in percent.
    pub(super) fn hit_percent(&self) -> f64 {
        if self.prompt == 0 { 0.0 } else { self.cached as f64 / self.prompt as f64 * 100.0 }
    }
}

/// A run of a scenario that has several, one beside the other.
pub(super) trait Side {
    /// Requests that were sent.
    fn requests(&self) -> usize;

    /// Number of these that did not end as they should.
    fn failed(&self) -> usize;
}

/// Requests of all runs.
pub(super) fn requests(runs: &[impl Side]) -> usize {
    runs.iter().map(Side::requests).sum()
}

/// Failed requests of all runs.
pub(super) fn failed(runs: &[impl Side]) -> usize {
    runs.iter().map(Side::failed).sum()
}

/// Columns of runs with their titles.
const WIDTH: usize = 60;
/// Columns of each cell of at most two runs, and of more.
pub(super) const CELL: usize = 16;
const NARROW_CELL: usize = 12;

/// Columns of titles and of cells, for so many runs.
fn columns(runs: usize) -> (usize, usize) {
    if runs > 2 { (WIDTH.saturating_sub(runs * NARROW_CELL), NARROW_CELL) } else { (WIDTH - 2 * CELL, CELL) }
}

/// A line with a cell for each run.
pub(super) fn row<R>(
    f: &mut Formatter<'_>,
    runs: &[R],
    title: &str,
    cell: impl Fn(&R) -> String,
) -> fmt::Result {
    let (titles, cells) = columns(runs.len());
    write!(f, "{title:<titles$}")?;
    runs.iter().try_for_each(|run| write!(f, "{:>cells$}", cell(run)))?;
    writeln!(f)
}

/// Ends a report with a sentence on what its numbers come to.
pub(super) fn verdict(f: &mut Formatter<'_>, text: &str) -> fmt::Result {
    const SIGN: &str = "=> ";
    // As wide as the tables above it.
    let width = f.width().unwrap_or(WIDTH).min(WIDTH) - SIGN.len();
    let signs = std::iter::once(SIGN).chain(std::iter::repeat("   "));
    writeln!(f)?;
    wrap(text, width).iter().zip(signs).try_for_each(|(line, sign)| writeln!(f, "{sign}{line}"))
}

/// Outcomes of requests.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Ends {
    /// Responses by status.
    pub(super) statuses: BTreeMap<u16, usize>,
    /// Requests without a whole response, by reason.
    pub(super) failures: BTreeMap<String, usize>,
}

impl Ends {
    pub(super) fn of<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> Self {
        let mut ends = Self::default();
        for outcome in outcomes {
            match &outcome.response {
                Ok(response) => *ends.statuses.entry(response.status).or_default() += 1,
                Err(reason) => *ends.failures.entry(reason.clone()).or_default() += 1,
            }
        }
        ends
    }

    /// Requests that did not end with status 200.
    pub(super) fn failed(&self) -> usize {
        let others = self.statuses.iter().filter(|(status, _)| **status != 200).map(|(_, count)| count);
        others.chain(self.failures.values()).sum()
    }
}

impl Display for Ends {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let statuses = self.statuses.iter().map(|(status, count)| format!("{count} × status {status}"));
        let failures = self.failures.iter().map(|(reason, count)| format!("{count} × {reason}"));
        f.write_str(&statuses.chain(failures).collect::<Vec<_>>().join(", "))
    }
}

/// Milliseconds; none without a sample.
#[derive(Debug, Default, Serialize)]
pub(super) struct Times {
    pub(super) mean: Option<f64>,
    pub(super) p50: Option<f64>,
    pub(super) p90: Option<f64>,
    pub(super) p99: Option<f64>,
}

impl Times {
    pub(super) fn of(samples: &[f64]) -> Self {
        let mean = (!samples.is_empty()).then(|| samples.iter().sum::<f64>() / samples.len() as f64);
        let [p50, p90, p99] = [50.0, 90.0, 99.0].map(|part| percentile(samples, part));
        Self { mean, p50, p90, p99 }
    }
}

/// A time with so many digits after the point.
pub(super) fn shown(time: Option<f64>, digits: usize) -> String {
    time.map_or_else(|| "no sample".to_owned(), |time| format!("{time:.digits$} ms"))
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

/// Note for readers of a report on its times.
pub(super) fn pace(speed: f64, output_divisor: u32) -> String {
    format!(
        "Trace and servers run {speed} times as fast as in reality; responses are {output_divisor} times shorter."
    )
}

impl Display for Percentiles {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (self.p50, self.p99) {
            (Some(p50), Some(p99)) => write!(f, "p50 {p50:.1} ms, p99 {p99:.1} ms"),
            _ => f.write_str("no sample"),
        }
    }
}
