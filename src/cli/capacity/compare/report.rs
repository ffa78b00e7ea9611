//! Output of `usher capacity compare`.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use crate::replay::{Latency, ScaleComparison, ScaleSummary};
use usher_terminal::{Column, grouped, line, paragraph, table};

/// Titles above columns.
const TTFT: &str = "TTFT, s";
const PODS: &str = "pods";

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
        let ScaleComparison { requests, seconds, start_s, ttft_limit_s, ways, notes } = &self.comparison;
        let speed =
            if self.speed == 1.0 { String::new() } else { format!(", {:.2} times as fast", self.speed) };
        line(
            f,
            "requests",
            format_args!("{}: {} in {seconds:.1} s{speed}", self.source, grouped(*requests)),
        )?;
        line(f, "pods", format_args!("serve {start_s} s after they are asked for"))?;
        let in_time = format!("≤ {ttft_limit_s} s");
        let columns = [
            Column::text(""),
            Column::number(&in_time).of(TTFT),
            Column::number("p50").of(TTFT),
            Column::number("p99").of(TTFT),
            Column::number("refused"),
            Column::number("pod-s"),
            Column::number("mean").of(PODS),
            Column::number("most").of(PODS),
            Column::number("changes").of(PODS),
            Column::number("back").of(PODS),
        ];
        let rows: Vec<Vec<String>> = ways.iter().map(|way| row(way, *seconds)).collect();
        writeln!(f, "\n{}", table(&columns, &rows, f.width()))?;
        paragraph(
            f,
            format_args!(
                "≤ {ttft_limit_s} s: requests with such a TTFT. pod-s: pod-seconds, from when a pod \
                 is asked for until it is gone. back: changes of the number of pods the other way than the one before."
            ),
        )?;
        for note in notes {
            writeln!(f)?;
            paragraph(f, format_args!("note: {note}"))?;
        }
        Ok(())
    }
}

fn row(way: &ScaleSummary, seconds: f64) -> Vec<String> {
    let time = |read: fn(&Latency) -> f64| {
        way.ttft.as_ref().map_or_else(|| "-".to_owned(), |ttft| format!("{:.2}", read(ttft)))
    };
    let mean = if seconds > 0.0 { format!("{:.2}", way.pod_seconds / seconds) } else { "-".to_owned() };
    vec![
        way.name.clone(),
        format!("{:.1} %", way.in_time.share * 100.0),
        time(|ttft| ttft.p50_s),
        time(|ttft| ttft.p99_s),
        grouped(way.refused),
        grouped(way.pod_seconds.round() as u64),
        mean,
        way.largest.to_string(),
        way.changes.to_string(),
        way.reversals.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use usher_terminal::misfits;

    use super::*;
    use crate::replay::Goodput;

    #[test]
    fn the_report_fits_the_terminal() {
        let way = |name: &str| ScaleSummary {
            name: name.to_owned(),
            refused: 1234,
            ttft: Some(Latency { mean_s: 17.0, p50_s: 17.09, p90_s: 50.0, p99_s: 160.0 }),
            in_time: Goodput { requests: 31, share: 0.062, per_second: 0.2 },
            pod_seconds: 24_311.0,
            largest: 20,
            changes: 116,
            reversals: 10,
        };
        let note = "policy chat and HPA never differed: a sentence that is longer than lines of narrow terminals are";
        let comparison = ScaleComparison {
            requests: 500,
            seconds: 165.0,
            start_s: 120.0,
            ttft_limit_s: 2.0,
            ways: vec![way("policy chat"), way("HPA")],
            notes: vec![note.to_owned()],
        };
        let report = Report { source: "tests/data/mooncake.jsonl", speed: 2.0, seed: 0, comparison };
        assert_eq!(misfits(&report), Vec::<String>::new());
        let wide = format!("{report:80}");
        assert!(wide.contains("TTFT, s") && wide.contains("\nHPA  "), "a table: {wide}");
    }
}
