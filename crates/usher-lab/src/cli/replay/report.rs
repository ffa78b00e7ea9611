//! Output of `usher replay`.

use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::recorded::Fitted;
use crate::replay::{ClassGoodput, Comparison, Latency, Note, Summary};
use usher_terminal::{Column, PAGE, grouped, line, paragraph, table};

/// Names of policies that are longer are cut, from their start: the end of a path says more.
/// With this, the table has 80 columns.
const LONGEST_NAME: usize = 24;

/// Titles above the columns of times.
const TTFT: &str = "TTFT, s";
const TPOT: &str = "TPOT, ms";
const E2E: &str = "E2E, s";

/// Times of the requests.
const TIMES: [Column<'_>; 8] = [
    Column::text(""),
    Column::number("p50").of(TTFT),
    Column::number("p90").of(TTFT),
    Column::number("p99").of(TTFT),
    Column::number("p50").of(TPOT),
    Column::number("p90").of(TPOT),
    Column::number("p99").of(TPOT),
    Column::number("p90").of(E2E),
];

/// Requests in time, and where requests went.
const REQUESTS: [Column<'_>; 7] = [
    Column::text(""),
    Column::number("good"),
    Column::number("per s"),
    Column::number("hits"),
    Column::number("busiest"),
    Column::number("differ"),
    Column::number("refused"),
];

/// The result and where its requests are from.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    pub(super) source: &'a str,
    /// Speed in multiples of the recording's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) speed: Option<f64>,
    pub(super) seed: u64,
    /// The fit to a recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) recording: Option<&'a Fitted>,
    #[serde(flatten)]
    pub(super) comparison: &'a Comparison,
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Comparison {
            requests,
            seconds,
            servers,
            utilization,
            ttft_limit_s,
            tpot_limit_ms,
            policies,
            notes,
            ..
        } = self.comparison;
        let speed = self.speed.filter(|speed| *speed != 1.0);
        let speed = speed.map_or_else(String::new, |speed| format!(", {speed:.2} times as fast"));
        line(
            f,
            "requests",
            format_args!("{}: {} in {seconds:.1} s{speed}", self.source, grouped(*requests)),
        )?;
        let share = utilization.map_or_else(String::new, |share| {
            format!(", asked for {:.0} % of what they can do without a cached prefix", share * 100.0)
        });
        line(f, "servers", format_args!("{servers}{share}"))?;
        if let Some(recording) = self.recording {
            write!(f, "{recording}")?;
        }
        let names = Names::of(policies);
        let width = Some(f.width().unwrap_or(PAGE));
        let rows = |cells: fn(&Summary) -> Vec<String>| -> Vec<Vec<String>> {
            let row = |summary: &Summary| [vec![names.shown(&summary.policy)], cells(summary)].concat();
            policies.iter().map(row).collect()
        };
        write!(f, "\n{}", table(&TIMES, &rows(times), width))?;
        write!(f, "\n{}\n", table(&REQUESTS, &rows(counts), width))?;
        paragraph(
            f,
            format_args!(
                "E2E: until the last token. good: TTFT of {ttft_limit_s} s or less and TPOT of {tpot_limit_ms} ms or \
                 less; per s: good ones. hits: prompt tokens that a server's prefix cache had. busiest: prompt \
                 tokens computed by the busiest server, by the mean. differ: requests sent elsewhere than by the \
                 first line."
            ),
        )?;
        classes(f, policies, &names, width)?;
        for summary in policies.iter().filter(|summary| summary.prefilled_elsewhere > 0.0) {
            let (share, refused) = (summary.prefilled_elsewhere * 100.0, summary.prefills_refused);
            let refused = match refused {
                0 => String::new(),
                refused => {
                    format!("; {} prefills were refused, and done where it is answered", grouped(refused))
                }
            };
            let name = names.shown(&summary.policy);
            writeln!(f)?;
            paragraph(f, format_args!("prefill elsewhere by {name}: {share:.1} % of requests{refused}"))?;
        }
        for summary in policies {
            for (text, count) in &summary.refusals {
                let name = names.shown(&summary.policy);
                writeln!(f)?;
                paragraph(f, format_args!("refused by {name}: {} × {text}", grouped(*count)))?;
            }
        }
        for Note { policies, text } in notes {
            let policies: Vec<String> = policies.iter().map(|name| names.shown(name)).collect();
            writeln!(f)?;
            paragraph(f, format_args!("note: {text} ({})", policies.join(", ")))?;
        }
        Ok(())
    }
}

/// Names of policies as they are shown: of a path, as much of its end as no other policy has.
struct Names<'a>(Vec<&'a str>);

impl<'a> Names<'a> {
    fn of(policies: &'a [Summary]) -> Self {
        Self(policies.iter().map(|summary| summary.policy.as_str()).collect())
    }

    fn shown(&self, name: &str) -> String {
        let path = Path::new(name);
        let parts: Vec<_> = path.iter().collect();
        let ends = (0..parts.len()).rev().map(|from| parts[from..].iter().collect::<PathBuf>());
        let is_unambiguous =
            |end: &PathBuf| self.0.iter().all(|other| *other == name || !Path::new(other).ends_with(end));
        let end = ends.into_iter().find(is_unambiguous).unwrap_or_else(|| path.to_owned());
        let fits = |text: &str| text.chars().count() <= LONGEST_NAME;
        let whole = end.display().to_string();
        if fits(&whole) {
            return whole;
        }
        let stem = end.with_extension("").display().to_string();
        if fits(&stem) {
            return stem;
        }
        let cut: String = whole.chars().skip(whole.chars().count() + 1 - LONGEST_NAME).collect();
        format!("…{cut}")
    }
}

/// Goodput of each latency class, where there are some.
fn classes(
    f: &mut Formatter<'_>,
    policies: &[Summary],
    names: &Names<'_>,
    width: Option<usize>,
) -> fmt::Result {
    let Some(first) = policies.first().filter(|summary| !summary.classes.is_empty()) else { return Ok(()) };
    let title = |class: &ClassGoodput| format!("{} s, {} ms", class.ttft_limit_s, class.tpot_limit_ms);
    let titles: Vec<String> = first.classes.iter().map(title).collect();
    let columns: Vec<Column<'_>> = std::iter::once(Column::text("good of the class of"))
        .chain(titles.iter().map(|title| Column::number(title)))
        .collect();
    let row = |summary: &Summary| -> Vec<String> {
        let shares = summary.classes.iter().map(|class| percent(class.share));
        std::iter::once(names.shown(&summary.policy)).chain(shares).collect()
    };
    let rows: Vec<Vec<String>> = policies.iter().map(row).collect();
    write!(f, "\n{}", table(&columns, &rows, width))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Seconds in six columns or fewer.
fn seconds(time: f64) -> String {
    if time < 100.0 { format!("{time:.3}") } else { format!("{time:.1}") }
}

fn times(summary: &Summary) -> Vec<String> {
    let Summary { ttft, tpot, e2e, .. } = summary;
    let first = |read: fn(&Latency) -> f64| ttft.as_ref().map(|latency| seconds(read(latency)));
    let each = |read: fn(&Latency) -> f64| tpot.as_ref().map(|latency| format!("{:.1}", read(latency) * 1e3));
    let cells = [
        first(|ttft| ttft.p50_s),
        first(|ttft| ttft.p90_s),
        first(|ttft| ttft.p99_s),
        each(|tpot| tpot.p50_s),
        each(|tpot| tpot.p90_s),
        each(|tpot| tpot.p99_s),
        e2e.as_ref().map(|e2e| seconds(e2e.p90_s)),
    ];
    cells.map(|cell| cell.unwrap_or_else(|| "-".to_owned())).to_vec()
}

fn counts(summary: &Summary) -> Vec<String> {
    vec![
        percent(summary.goodput.share),
        format!("{:.2}", summary.goodput.per_second),
        percent(summary.token_hits),
        format!("{:.2}", summary.busiest_by_mean),
        percent(summary.decisions_differ),
        grouped(summary.refused),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use usher_core::config::ConfigError;
    use usher_terminal::misfits;

    use super::*;
    use crate::replay::{
        Build, BuildError, Interconnect, LatencyClass, Policy, Server, Settings, Workload, classify, run,
    };
    use crate::sim::{Dialect, EngineConfig};

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn names_are_shortened_while_unambiguous() {
        let names = Names(vec![
            "deploy/config/a.yaml",
            "deploy/config/a.yaml",
            "one/b.yaml",
            "two/b.yaml",
            "deploy/config/sticky-until-saturated.yaml",
            "a/sticky-until-everything-is-saturated.yaml",
            "round-robin",
        ]);
        let shown: Vec<String> = names.0.iter().map(|name| names.shown(name)).collect();
        let expected = [
            "a.yaml",
            "a.yaml",
            "one/b.yaml",
            "two/b.yaml",
            "sticky-until-saturated",
            "…thing-is-saturated.yaml",
            "round-robin",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn report_fits_the_terminal_or_80_columns() {
        let mut arrivals = Workload::Bursts.arrivals(40, 1, 1);
        let class = |ttft: u32| LatencyClass { ttft: ttft * MS, tpot: 50 * MS, is_named: true };
        classify(&mut arrivals, &[class(100), class(5000)], 1);
        let name = "deploy/config/a-configuration-with-a-long-name.yaml";
        let settings = Settings {
            streams: true,
            dialect: Dialect::default(),
            servers: Server::equal(
                2,
                &EngineConfig { max_waiting: 1, max_running: 1, ..EngineConfig::default() },
            ),
            interconnect: Interconnect::default(),
            arrivals,
            policies: vec![(name.to_owned(), Policy::Random), ("round-robin".to_owned(), Policy::RoundRobin)],
            seed: 0,
            scrape_interval: 50 * MS,
            metrics_staleness: 2000 * MS,
            gateway_delay: Duration::ZERO,
            ttft_limit: 2000 * MS,
            tpot_limit: 50 * MS,
        };
        let no_build: &Build<'_> = &|_, _, _, _| Err(BuildError::Config(ConfigError::new("no")));
        let mut comparison = run(&settings, no_build, |_| ()).unwrap();
        let text =
            "a sentence about a configuration that is longer than a line of a narrow terminal".to_owned();
        comparison.notes.push(Note { policies: vec![name.to_owned()], text });
        let report =
            Report { source: "poisson", speed: None, seed: 0, recording: None, comparison: &comparison };
        assert_eq!(misfits(&report), Vec::<String>::new());
        let text = report.to_string();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("TTFT, s"), "{text}");
        assert!(text.contains("\nrefused by round-robin: "), "{text}");
        assert!(text.contains("\ngood of the class of "), "{text}");
    }
}
