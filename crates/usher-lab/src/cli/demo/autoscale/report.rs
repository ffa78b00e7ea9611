//! Report of the scenario: a line whenever something changes, and the outcomes of the requests.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use serde::Serialize;

use super::cluster::STARTUP;
use super::plan::CurrentPlan;
use crate::cli::demo::ports::Ports;
use crate::cli::demo::replay::Outcome;
use crate::cli::demo::report::{Ends, Percentiles, verdict};
use usher_capacity::Reason;
use usher_capacity::legend::meanings;
use usher_terminal::{Column, grouped, line, paragraph, table, terms};

/// Ticks are a second apart, but for those that a request brings about that finds no server.
const NEXT: Duration = Duration::from_millis(600);

/// A tick.
#[derive(Debug, Serialize)]
pub(super) struct Moment {
    /// Since the first request could come, give or take how long a look takes.
    seconds: f64,
    /// Requests per second.
    load: f64,
    /// Requests that waited in Usher.
    waiting: u64,
    /// Servers in the pool.
    pub(super) current: usize,
    /// Servers that start.
    starting: usize,
    /// Servers that Usher asks for.
    desired: usize,
    reasons: Vec<String>,
}

impl Moment {
    pub(super) fn new(after: Duration, load: f64, starting: usize, current_plan: &CurrentPlan) -> Self {
        let CurrentPlan { waiting, current, desired, reasons, .. } = current_plan;
        Self {
            seconds: after.as_secs_f64(),
            load,
            waiting: *waiting,
            current: *current,
            starting,
            desired: *desired,
            reasons: reasons.clone(),
        }
    }

    fn cells(&self) -> Vec<String> {
        let Self { seconds, load, waiting, current, starting, desired, reasons } = self;
        vec![
            format!("{seconds:.1}"),
            format!("{load:.0}"),
            waiting.to_string(),
            current.to_string(),
            starting.to_string(),
            desired.to_string(),
            reasons.join(", "),
        ]
    }

    /// Returns `true` if something is worth a line of its own: the load alone isn't.
    fn differs(&self, last: &Self) -> bool {
        let shown = |moment: &Self| {
            (moment.waiting, moment.current, moment.starting, moment.desired, moment.reasons.clone())
        };
        shown(self) != shown(last)
    }

    /// Returns `true` if this is another tick: two looks may see the same one, and don't know its
    /// time exactly.
    pub(super) fn is_later_than(&self, last: &Self) -> bool {
        let plan = |moment: &Self| (moment.waiting, moment.current, moment.desired);
        self.seconds > last.seconds + NEXT.as_secs_f64() || plan(self) != plan(last)
    }
}

/// Measurements of the scenario.
#[derive(Debug)]
pub(super) struct Measured {
    /// All requests.
    pub(super) outcomes: Vec<Outcome>,
    /// Until the last server was gone.
    pub(super) took: Duration,
    /// The ticks.
    pub(super) moments: Vec<Moment>,
    /// Servers that were started.
    pub(super) started: usize,
    /// Servers that were ended.
    pub(super) ended: usize,
}

/// Report of the demo.
#[derive(Debug, Serialize)]
pub(in crate::cli::demo) struct AutoscaleReport {
    /// Requests that were sent.
    pub(in crate::cli::demo) requests: usize,
    /// Until the last server was gone.
    seconds: f64,
    /// Speed of the servers, in multiples of reality.
    speed: f64,
    #[serde(flatten)]
    ends: Ends,
    /// Time from a request's due time to the end of its response.
    response_ms: Percentiles,
    /// Most servers in the pool.
    most_servers: usize,
    /// Servers that were started.
    started: usize,
    /// Servers that were ended.
    ended: usize,
    ticks: Vec<Moment>,
    /// Ports that everything listens on.
    ports: Ports,
}

impl AutoscaleReport {
    pub(super) fn new(measured: Measured, speed: f64, ports: Ports) -> Self {
        let Measured { outcomes, took, moments, started, ended } = measured;
        let times: Vec<f64> = outcomes.iter().map(|outcome| outcome.total.as_secs_f64() * 1e3).collect();
        Self {
            requests: outcomes.len(),
            seconds: took.as_secs_f64(),
            speed,
            ends: Ends::of(&outcomes),
            response_ms: Percentiles::of(&times),
            most_servers: moments.iter().map(|moment| moment.current).max().unwrap_or(0),
            started,
            ended,
            ticks: moments,
            ports,
        }
    }

    /// Requests that did not end with status 200.
    pub(in crate::cli::demo) fn failed(&self) -> usize {
        self.ends.failed()
    }

    /// Ticks that differ from those before them.
    fn rows(&self) -> Vec<Vec<String>> {
        let (mut rows, mut last) = (Vec::new(), None);
        for moment in &self.ticks {
            if last.is_none_or(|last| moment.differs(last)) {
                rows.push(moment.cells());
            }
            last = Some(moment);
        }
        rows
    }

    /// The reasons that occur, with their meanings.
    fn legend(&self) -> Vec<(String, String)> {
        let meanings = meanings::<Reason>();
        let reasons: BTreeSet<&String> = self.ticks.iter().flat_map(|moment| &moment.reasons).collect();
        let reasons = reasons.into_iter();
        reasons.map(|name| (name.clone(), meanings.get(name).cloned().unwrap_or_default())).collect()
    }

    /// Verdict on the numbers.
    fn verdict(&self) -> String {
        let Self { requests, most_servers, started, ended, .. } = self;
        let failed = self.failed();
        let answered = match failed {
            0 => format!("All {requests} requests were answered"),
            failed => format!("{failed} of {requests} requests failed"),
        };
        match started.saturating_sub(*ended) {
            0 if *started > 0 => format!(
                "{answered}: as many servers as the load needed came, {most_servers} at most, and all of them left."
            ),
            0 => format!("{answered}, and Usher never asked for a server."),
            left => format!("{answered}, and {left} of {started} servers were not ended."),
        }
    }
}

impl Display for AutoscaleReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        paragraph(
            f,
            format_args!(
                "Requests through Envoy and Usher, which says how many servers there should be. The demo starts and \
                 ends simulated ones as a cluster would; one is ready {} s after its start.",
                STARTUP.as_secs()
            ),
        )?;
        writeln!(f)?;
        line(
            f,
            "requests",
            format_args!("{} in {:.1} s: {}", grouped(self.requests as u64), self.seconds, self.ends),
        )?;
        line(f, "response", format_args!("{}", self.response_ms))?;
        line(
            f,
            "servers",
            format_args!("{} at most; {} started, {} ended", self.most_servers, self.started, self.ended),
        )?;
        let numbers = ["seconds", "load/s", "waiting", "servers", "starting", "desired"].map(Column::number);
        let columns: Vec<Column<'_>> = numbers.into_iter().chain([Column::text("why")]).collect();
        write!(f, "\n{}", table(&columns, &self.rows(), f.width()))?;
        let legend = self.legend();
        if !legend.is_empty() {
            write!(f, "\n{}", terms(&legend, f.width()))?;
        }
        verdict(f, &self.verdict())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::demo::client::Response;
    use usher_core::request::usage::Usage;
    use usher_terminal::misfits;

    const TABLE: &str = "\
Requests through Envoy and Usher, which says how many servers there should be.
The demo starts and ends simulated ones as a cluster would; one is ready 2 s
after its start.

requests       2 in 44.0 s: 1 × status 200, 1 × status 503
response       p50 400.0 ms, p99 2500.0 ms
servers        3 at most; 4 started, 4 ended

seconds  load/s  waiting  servers  starting  desired  why
    0.1       6        0        0         0        0
    1.1       6       12        0         2        2  Metric, UpLimit
   20.1      57        0        3         0        2  Metric

Metric   A metric asks for another size of the group.
UpLimit  Scale-up capped by its limit per period.

=> 1 of 2 requests failed: as many servers as the load
   needed came, 3 at most, and all of them left.
";

    #[test]
    fn table_matches_the_expected_text() {
        let moment = |seconds: f64, load, (waiting, current, starting, desired), reasons: &[&str]| {
            let current_plan = CurrentPlan {
                age: Duration::ZERO,
                waiting,
                current,
                desired,
                reasons: reasons.iter().map(|reason| (*reason).to_owned()).collect(),
            };
            Moment::new(Duration::from_secs_f64(seconds), load, starting, &current_plan)
        };
        let outcome = |status, total| Outcome {
            due: Duration::ZERO,
            first: None,
            total: Duration::from_millis(total),
            response: Ok(Response {
                status,
                pod: None,
                first: None,
                usage: Usage::default(),
                reason: String::new(),
            }),
        };
        let measured = Measured {
            outcomes: vec![outcome(200, 400), outcome(503, 2500)],
            took: Duration::from_secs(44),
            moments: vec![
                moment(0.1, 5.7, (0, 0, 0, 0), &[]),
                moment(1.1, 5.7, (12, 0, 2, 2), &["Metric", "UpLimit"]),
                moment(2.1, 8.2, (12, 0, 2, 2), &["Metric", "UpLimit"]),
                moment(20.1, 57.4, (0, 3, 0, 2), &["Metric"]),
                moment(21.1, 57.4, (0, 3, 0, 2), &["Metric"]),
            ],
            started: 4,
            ended: 4,
        };
        let [first, second, ..] = &measured.moments[..] else { panic!("two") };
        assert!(second.is_later_than(first) && !first.is_later_than(first));
        let report = AutoscaleReport::new(measured, 1.0, Ports::from_first(8081, 4).unwrap());
        assert_eq!(report.to_string(), TABLE);
        assert_eq!(misfits(&report), Vec::<String>::new());
        assert_eq!(report.failed(), 1);
        let left = AutoscaleReport { ended: 3, ends: Ends::default(), ..report };
        assert_eq!(left.verdict(), "All 2 requests were answered, and 1 of 4 servers were not ended.");
        let report = AutoscaleReport { ended: 4, ..left };
        let json = serde_json::to_value(report).unwrap();
        assert_eq!((&json["ticks"][1]["desired"], &json["most_servers"]), (&2.into(), &3.into()));
    }
}
