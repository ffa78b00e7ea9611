//! The figures of runs, live and in replay, side by side.

use std::fmt::Write as _;
use std::time::Duration;

use usher::replay::{Latency, Summary};

use super::metrics::Load;

/// Live and replay agree within this share of the replay's figure.
pub const EQUAL: f64 = 0.1;

/// Share of the machine from which what is measured may be the machine.
pub const BUSY: f64 = 0.9;

/// Share of the time in which a process of the run waits for a core, up to which others that
/// keep the machine busy are not in its way: they have a lower priority.
pub const WAITS: f64 = 0.01;

/// A figure by which policies are compared.
#[derive(Debug)]
pub struct Figure {
    /// Name of the figure.
    pub name: &'static str,
    read: fn(&Summary) -> Option<f64>,
    /// `true` if it is a time, which passes faster live.
    is_time: bool,
    shown: fn(f64) -> String,
}

fn ttft(summary: &Summary, read: fn(&Latency) -> f64) -> Option<f64> {
    summary.ttft.as_ref().map(read)
}

fn tpot(summary: &Summary, read: fn(&Latency) -> f64) -> Option<f64> {
    summary.tpot.as_ref().map(|latency| read(latency) * 1e3)
}

fn seconds(value: f64) -> String {
    format!("{value:.3}")
}

fn one_digit(value: f64) -> String {
    format!("{value:.1}")
}

fn percent(value: f64) -> String {
    format!("{:.1} %", value * 100.0)
}

/// The figures of the replay's table.
pub const FIGURES: [Figure; 8] = [
    Figure { name: "TTFT p50, s", read: |s| ttft(s, |l| l.p50_s), is_time: true, shown: seconds },
    Figure { name: "TTFT p90, s", read: |s| ttft(s, |l| l.p90_s), is_time: true, shown: seconds },
    Figure { name: "TPOT p50, ms", read: |s| tpot(s, |l| l.p50_s), is_time: true, shown: one_digit },
    Figure { name: "TPOT p90, ms", read: |s| tpot(s, |l| l.p90_s), is_time: true, shown: one_digit },
    Figure { name: "TPOT p99, ms", read: |s| tpot(s, |l| l.p99_s), is_time: true, shown: one_digit },
    Figure {
        name: "all p90, s",
        read: |s| s.e2e.as_ref().map(|latency| latency.p90_s),
        is_time: true,
        shown: seconds,
    },
    Figure { name: "good", read: |s| Some(s.goodput.share), is_time: false, shown: percent },
    Figure { name: "hits", read: |s| Some(s.token_hits), is_time: false, shown: percent },
];

impl Figure {
    /// Value in simulated time.
    pub fn of(&self, summary: &Summary, time_scale: f64) -> Option<f64> {
        (self.read)(summary).map(|value| if self.is_time { value * time_scale } else { value })
    }
}

/// A policy's run, live and in replay. Summaries are in the time of the picker.
#[derive(Debug)]
pub struct Run {
    /// Policy that decided.
    pub policy: &'static str,
    /// Figures measured by the client.
    pub live: Summary,
    /// Replays that differ in what is random.
    pub replays: Vec<Summary>,
    /// Mean real time to a first token of the client, less that of the engines, which the replays
    /// had as the delay of their gateway.
    pub delay: Duration,
    /// Use of the machine.
    pub load: Load,
    /// Number of failed requests, and the failure of the first one.
    pub failures: (usize, Option<String>),
}

/// A figure of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Live.
    pub live: f64,
    /// The replays' lowest, median and highest.
    pub replays: [f64; 3],
}

impl Row {
    /// The figure of these summaries; `None` where nothing was answered.
    pub fn new(figure: &Figure, run: &Run, time_scale: f64) -> Option<Self> {
        let mut all: Vec<f64> =
            run.replays.iter().filter_map(|summary| figure.of(summary, time_scale)).collect();
        all.sort_by(f64::total_cmp);
        let middle = all.len() / 2;
        let median = if all.len().is_multiple_of(2) && middle > 0 {
            (all[middle - 1] + all[middle]) / 2.0
        } else {
            *all.get(middle)?
        };
        let live = figure.of(&run.live, time_scale)?;
        Some(Self { live, replays: [*all.first()?, median, *all.last()?] })
    }

    /// Live by replay; 1 where both are nothing.
    pub fn ratio(&self) -> f64 {
        if self.live == self.replays[1] { 1.0 } else { self.live / self.replays[1] }
    }

    /// Returns `true` if they agree.
    pub fn agrees(&self) -> bool {
        (self.ratio() - 1.0).abs() <= EQUAL
    }
}

impl Run {
    /// The lines of its table. Writing to a String can't fail.
    pub fn table(&self, time_scale: f64) -> String {
        let mut out = String::new();
        let head = format!(
            "{:<18} {:>10} {:>10}   {:^21} {:>8}",
            self.policy, "live", "replay", "of all replays", "ratio"
        );
        let _ = writeln!(out, "{head}");
        for figure in &FIGURES {
            let Some(row) = Row::new(figure, self, time_scale) else {
                let _ = writeln!(out, "  {:<16} nothing was answered", figure.name);
                continue;
            };
            let [low, median, high] = row.replays.map(figure.shown);
            let _ = writeln!(
                out,
                "  {:<16} {:>10} {median:>10}   {low:>9} – {high:<9} {:>8.2}{}",
                figure.name,
                (figure.shown)(row.live),
                row.ratio(),
                if row.agrees() { "" } else { "  differs" },
            );
        }
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let Load { machine, processes, late: (median, p99) } = &self.load;
        let _ = writeln!(
            out,
            "  real time: {:.1} ms between client and engine, also in replay; sent late by {:.1} ms (p99 {:.1} ms)",
            ms(self.delay),
            ms(*median),
            ms(*p99),
        );
        let cores: Vec<String> =
            processes.iter().map(|process| format!("{} {:.2}", process.name, process.cores)).collect();
        let _ = writeln!(
            out,
            "  cores: {}; waited for one at most {:.2} % of the time; machine {} busy",
            cores.join(", "),
            self.load.waited() * 100.0,
            machine.map_or_else(|| "?".to_owned(), |share| format!("{:.0} %", share * 100.0)),
        );
        if let (count @ 1.., Some(first)) = &self.failures {
            let _ = writeln!(out, "  {count} requests failed, the first one so: {first}");
        }
        if self.is_disturbed() {
            let _ = writeln!(
                out,
                "  NOT VALID: the machine was more than {:.0} % busy and processes waited for it, so times may be \
                 the machine's",
                BUSY * 100.0
            );
        }
        out
    }

    /// Returns `true` if the machine had too much to do, and let the run wait.
    pub fn is_disturbed(&self) -> bool {
        self.load.machine.is_none_or(|share| share > BUSY) && self.load.waited() > WAITS
    }

    /// Names of the figures that differ, with their ratios.
    pub fn differing(&self, time_scale: f64) -> Vec<String> {
        let rows = FIGURES.iter().map(|figure| (figure.name, Row::new(figure, self, time_scale)));
        rows.filter_map(|(name, row)| match row {
            None => Some(format!("{name} (nothing answered)")),
            Some(row) => (!row.agrees()).then(|| format!("{name} ({:.2})", row.ratio())),
        })
        .collect()
    }
}
