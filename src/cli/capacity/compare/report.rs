//! Output of `usher capacity compare`.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use crate::replay::{Latency, ScaleComparison, ScaleSummary};
use usher_terminal::{grouped, line};

/// Narrowest column of names.
const NARROWEST: usize = 16;

/// The result and where its requests are from.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    pub(super) source: &'a str,
    /// Speed in multiples of the recording's.
    pub(super) speed: f64,
    pub(super) seed: u64,
    #[serde(flatten)]
    pub(super) comparison: ScaleComparison,
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let ScaleComparison { requests, seconds, start_s, ttft_limit_s, ways } = &self.comparison;
        let speed =
            if self.speed == 1.0 { String::new() } else { format!(", {:.2} times as fast", self.speed) };
        line(
            f,
            "requests",
            format_args!("{}: {} in {seconds:.1} s{speed}", self.source, grouped(*requests)),
        )?;
        line(f, "pods", format_args!("serve {start_s} s after they are asked for"))?;
        let width = ways.iter().map(|way| way.name.chars().count()).max().unwrap_or(0).max(NARROWEST);
        writeln!(
            f,
            "\n{:width$}  {:>8} {:>8} {:>8} {:>8}  {:>11} {:>6} {:>5}  {:>7} {:>9}",
            "",
            format!("≤ {ttft_limit_s} s"),
            "p50, s",
            "p99, s",
            "refused",
            "pod-seconds",
            "mean",
            "most",
            "changes",
            "reversals",
        )?;
        ways.iter().try_for_each(|way| row(f, way, *seconds, width))?;
        writeln!(
            f,
            "\n≤ {ttft_limit_s} s: requests whose first token came in this time. pod-seconds: from when a pod is \
             asked for\nuntil it is gone; mean, most: pods. reversals: changes the other way than the one before."
        )
    }
}

fn row(f: &mut Formatter<'_>, way: &ScaleSummary, seconds: f64, width: usize) -> fmt::Result {
    let time = |read: fn(&Latency) -> f64| {
        way.ttft.as_ref().map_or_else(|| "-".to_owned(), |ttft| format!("{:.2}", read(ttft)))
    };
    let mean = if seconds > 0.0 { format!("{:.2}", way.pod_seconds / seconds) } else { "-".to_owned() };
    writeln!(
        f,
        "{:width$}  {:>8} {:>8} {:>8} {:>8}  {:>11} {mean:>6} {:>5}  {:>7} {:>9}",
        way.name,
        format!("{:.1} %", way.in_time.share * 100.0),
        time(|ttft| ttft.p50_s),
        time(|ttft| ttft.p99_s),
        grouped(way.refused),
        grouped(way.pod_seconds.round() as u64),
        way.largest,
        way.changes,
        way.reversals,
    )
}
