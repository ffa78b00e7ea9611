//! Output of `usher replay`.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use crate::replay::{ClassGoodput, Comparison, Latency, Summary};
use usher_terminal::{grouped, line};

/// Names of policies that are longer are cut, from their start: the end of a path says more.
const LONGEST_NAME: usize = 40;

/// The result and where its requests are from.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    pub(super) source: &'a str,
    /// Speed in multiples of the recording's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) speed: Option<f64>,
    pub(super) seed: u64,
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
        let width = policies.iter().map(|summary| shown(&summary.policy).chars().count()).max().unwrap_or(0);
        writeln!(
            f,
            "\n{:width$}  {:>26}  {:>23}  {:>8}",
            "",
            "first token, s",
            "per output token, ms",
            "all, s",
            width = width.max(22),
        )?;
        writeln!(
            f,
            "{:width$}  {:>8} {:>8} {:>8}  {:>7} {:>7} {:>7}  {:>8}  {:>7} {:>8}  {:>7} {:>8} {:>7} {:>8}",
            "",
            "p50",
            "p90",
            "p99",
            "p50",
            "p90",
            "p99",
            "p90",
            "good",
            "per s",
            "hits",
            "busiest",
            "differ",
            "refused",
            width = width.max(22),
        )?;
        for summary in policies {
            row(f, summary, width.max(22))?;
        }
        writeln!(
            f,
            "\ngood: first token within {ttft_limit_s} s and at most {tpot_limit_ms} ms per token after it.\n\
             hits: prompt tokens that a server's prefix cache had. busiest: prompt tokens computed by the\n\
             busiest server, by the mean. differ: requests sent elsewhere than by the first line."
        )?;
        classes(f, policies, width.max(22))?;
        for summary in policies.iter().filter(|summary| summary.prefilled_elsewhere > 0.0) {
            let (share, refused) = (summary.prefilled_elsewhere * 100.0, summary.prefills_refused);
            write!(f, "\nprefill elsewhere by {}: {share:.1} % of requests", summary.policy)?;
            match refused {
                0 => writeln!(f)?,
                refused => writeln!(
                    f,
                    "; {} prefills were refused, and done where it is answered",
                    grouped(refused)
                )?,
            }
        }
        for summary in policies {
            for (text, count) in &summary.refusals {
                writeln!(f, "\nrefused by {}: {} × {text}", summary.policy, grouped(*count))?;
            }
        }
        for note in notes {
            writeln!(f, "\nnote: {} ({})", note.text, note.policies.join(", "))?;
        }
        Ok(())
    }
}

/// Goodput of each latency class, where there are some.
fn classes(f: &mut Formatter<'_>, policies: &[Summary], width: usize) -> fmt::Result {
    let Some(first) = policies.first().filter(|summary| !summary.classes.is_empty()) else { return Ok(()) };
    write!(f, "\n{:width$}", "good of the class of")?;
    for ClassGoodput { ttft_limit_s, tpot_limit_ms, .. } in &first.classes {
        write!(f, "  {:>18}", format!("{ttft_limit_s} s, {tpot_limit_ms} ms"))?;
    }
    for summary in policies {
        write!(f, "\n{:width$}", shown(&summary.policy))?;
        for class in &summary.classes {
            write!(f, "  {:>18}", format!("{:.1} %", class.share * 100.0))?;
        }
    }
    writeln!(f)
}

fn row(f: &mut Formatter<'_>, summary: &Summary, width: usize) -> fmt::Result {
    let time = |latency: &Option<Latency>, read: fn(&Latency) -> f64| {
        latency.as_ref().map_or_else(|| "-".to_owned(), |latency| format!("{:.3}", read(latency)))
    };
    let per_token = |read: fn(&Latency) -> f64| {
        summary.tpot.as_ref().map_or_else(|| "-".to_owned(), |tpot| format!("{:.1}", read(tpot) * 1e3))
    };
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    writeln!(
        f,
        "{:width$}  {:>8} {:>8} {:>8}  {:>7} {:>7} {:>7}  {:>8}  {:>7} {:>8.2}  {:>7} {:>8.2} {:>7} {:>8}",
        shown(&summary.policy),
        time(&summary.ttft, |ttft| ttft.p50_s),
        time(&summary.ttft, |ttft| ttft.p90_s),
        time(&summary.ttft, |ttft| ttft.p99_s),
        per_token(|tpot| tpot.p50_s),
        per_token(|tpot| tpot.p90_s),
        per_token(|tpot| tpot.p99_s),
        time(&summary.e2e, |e2e| e2e.p90_s),
        percent(summary.goodput.share),
        summary.goodput.per_second,
        percent(summary.token_hits),
        summary.busiest_by_mean,
        percent(summary.decisions_differ),
        grouped(summary.refused),
    )
}

fn shown(name: &str) -> String {
    let count = name.chars().count();
    if count <= LONGEST_NAME {
        return name.to_owned();
    }
    let end: String = name.chars().skip(count + 1 - LONGEST_NAME).collect();
    format!("…{end}")
}
