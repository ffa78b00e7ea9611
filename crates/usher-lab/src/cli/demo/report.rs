//! Numbers that reports of several scenarios have.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use super::latency::percentile;
use usher_core::request::usage::Usage;

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

/// Outcomes of requests, for a line of a report.
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

impl Display for Percentiles {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (self.p50, self.p99) {
            (Some(p50), Some(p99)) => write!(f, "p50 {p50:.1} ms, p99 {p99:.1} ms"),
            _ => f.write_str("no sample"),
        }
    }
}
