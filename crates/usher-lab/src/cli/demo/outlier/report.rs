//! Report of the requests that a broken server drew, with outlier detection and without.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use serde::Serialize;

use super::traffic::{Outcome, Phase};
use crate::cli::demo::ports::Ports;
use crate::cli::demo::report::{Side, failed, requests, row, verdict};
use usher_terminal::{grouped, paragraph};

/// Report of the runs.
#[derive(Debug, Serialize)]
pub(in crate::cli::demo) struct OutlierReport {
    /// Speed of the servers, in multiples of reality.
    speed: f64,
    requests_per_second: u32,
    /// One without the detection, one with it.
    pub(super) runs: Vec<Run>,
    /// Ports that everything listens on.
    ports: Ports,
}

/// The numbers of one run.
#[derive(Debug, Serialize)]
pub(super) struct Run {
    detection: bool,
    /// Requests in all.
    requests: usize,
    /// While all servers worked.
    well: Part,
    /// While one was broken.
    broken: Part,
    /// Time from the repair until Usher treated the server as any other, milliseconds; `None` if it was
    /// never ejected.
    recovery_ms: Option<f64>,
    /// While Usher did not yet know that it worked again.
    repaired: Part,
    /// After that.
    recovered: Part,
    /// Other ends than a response with 200, or the broken server's 503.
    unexpected: BTreeMap<String, usize>,
}

/// Requests that were sent in a part of a run.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize)]
struct Part {
    requests: usize,
    /// Answered by the server that breaks.
    to_one: usize,
    /// The share of these.
    share: f64,
    /// Answered by a status other than 200, or not at all.
    failed: usize,
}

impl Part {
    fn of<'a>(outcomes: impl Iterator<Item = &'a Outcome>, one: &str) -> Self {
        let mut part = Self::default();
        for outcome in outcomes {
            part.requests += 1;
            let (status, pod) =
                outcome.response.as_ref().map_or((0, None), |(status, pod)| (*status, pod.as_deref()));
            part.to_one += usize::from(pod == Some(one));
            part.failed += usize::from(status != 200);
        }
        part.share = part.to_one as f64 / part.requests.max(1) as f64;
        part
    }
}

impl Run {
    /// Counts what became of the requests. `one`: the name of the server that was broken.
    pub(super) fn new(detection: bool, one: &str, outcomes: &[Outcome], recovered: Option<Duration>) -> Self {
        let part = |phase| Part::of(outcomes.iter().filter(|outcome| outcome.phase == phase), one);
        let mut unexpected: BTreeMap<String, usize> = BTreeMap::new();
        for Outcome { phase, response } in outcomes {
            let end = match response {
                Ok((200, _)) => continue,
                // What was sent a moment before it was broken or repaired may find it so.
                Ok((503, Some(pod))) if pod == one && *phase != Phase::Recovered => continue,
                Ok((status, _)) => format!("status {status}"),
                Err(reason) => reason.clone(),
            };
            *unexpected.entry(end).or_default() += 1;
        }
        Self {
            detection,
            requests: outcomes.len(),
            well: part(Phase::Well),
            broken: part(Phase::Broken),
            recovery_ms: recovered.map(|time| time.as_secs_f64() * 1e3),
            repaired: part(Phase::Repaired),
            recovered: part(Phase::Recovered),
            unexpected,
        }
    }
}

impl Side for Run {
    fn requests(&self) -> usize {
        self.requests
    }

    /// Requests that failed for another reason than the broken server.
    fn failed(&self) -> usize {
        self.unexpected.values().sum()
    }
}

impl OutlierReport {
    /// A report without runs.
    pub(super) fn new(speed: f64, requests_per_second: u32, ports: Ports) -> Self {
        Self { speed, requests_per_second, runs: Vec::new(), ports }
    }

    /// Requests of all runs.
    pub(in crate::cli::demo) fn requests(&self) -> usize {
        requests(&self.runs)
    }

    /// Number of these that ended in a way that the broken server doesn't explain.
    pub(in crate::cli::demo) fn failed(&self) -> usize {
        failed(&self.runs)
    }

    /// Verdict on the runs.
    fn verdict(&self) -> String {
        if self.failed() > 0 {
            let (failed, all) = (self.failed(), self.requests());
            return format!(
                "{failed} of {all} requests ended in a way that the broken server doesn't explain."
            );
        }
        let [off, on] = &self.runs[..] else { return "One run alone was made.".to_owned() };
        let (without, with) = (off.broken.failed, on.broken.failed);
        if with >= without {
            return format!(
                "Outlier ejection did not help here: while one server was broken, {with} requests failed with it and \
                 {without} without it."
            );
        }
        let again = on.recovery_ms.map_or_else(String::new, |ms| {
            format!(" After its repair the server was as good as any other within {:.1} s.", ms / 1e3)
        });
        format!(
            "While one server was broken, {with} of {} requests failed with outlier ejection, and {without} of {} \
             without it.{again}",
            on.broken.requests, off.broken.requests
        )
    }
}

impl Display for OutlierReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (rate, servers) = (self.requests_per_second, self.ports.servers.len());
        paragraph(
            f,
            format_args!(
                "{rate} requests per second through Envoy and Usher to {servers} simulated servers. One of them \
                 responds with 503 within a millisecond for a while, and then works again."
            ),
        )?;
        writeln!(f)?;
        let runs = &self.runs;
        let share = |part: Part| format!("{:.2} %", part.share * 100.0);
        let count = |number: usize| grouped(number as u64);
        row(f, runs, "outlier ejection", |run| if run.detection { "on" } else { "off" }.to_owned())?;
        row(f, runs, "its share while all work", |run| share(run.well))?;
        row(f, runs, "requests while it is broken", |run| count(run.broken.requests))?;
        row(f, runs, "of these it got", |run| count(run.broken.to_one))?;
        row(f, runs, "its share while it is broken", |run| share(run.broken))?;
        row(f, runs, "requests that failed", |run| count(run.broken.failed))?;
        let recovery =
            |run: &Run| run.recovery_ms.map_or("never ejected".to_owned(), |ms| format!("{:.2} s", ms / 1e3));
        row(f, runs, "recovered after its repair", recovery)?;
        row(f, runs, "its share after that", |run| share(run.recovered))?;
        let ends = self.runs.iter().flat_map(|run| &run.unexpected);
        ends.into_iter().try_for_each(|(end, count)| paragraph(f, format_args!("{count} × {end}")))?;
        verdict(f, &self.verdict())
    }
}

#[cfg(test)]
mod tests {
    use usher_terminal::misfits;

    use super::*;

    fn outcome(phase: Phase, status: u16, pod: &str) -> Outcome {
        Outcome { phase, response: Ok((status, Some(pod.to_owned()))) }
    }

    fn report() -> OutlierReport {
        let outcomes = [
            outcome(Phase::Well, 200, "sim-0"),
            outcome(Phase::Well, 200, "sim-1"),
            outcome(Phase::Broken, 503, "sim-0"),
            outcome(Phase::Broken, 200, "sim-1"),
            outcome(Phase::Broken, 200, "sim-1"),
            outcome(Phase::Broken, 200, "sim-2"),
            outcome(Phase::Repaired, 200, "sim-0"),
            outcome(Phase::Recovered, 200, "sim-0"),
            outcome(Phase::Recovered, 503, "sim-0"),
            Outcome { phase: Phase::Recovered, response: Err("the response broke off".to_owned()) },
        ];
        let mut report = OutlierReport::new(12.0, 200, Ports::from_first(8081, 3).unwrap());
        report.runs.push(Run::new(false, "sim-0", &outcomes[..6], None));
        report.runs.push(Run::new(true, "sim-0", &outcomes, Some(Duration::from_millis(3456))));
        report
    }

    #[test]
    fn table_matches_the_expected_text() {
        let want = "\
200 requests per second through Envoy and Usher to 3 simulated servers. One of
them responds with 503 within a millisecond for a while, and then works again.

outlier ejection                         off              on
its share while all work             50.00 %         50.00 %
requests while it is broken                4               4
of these it got                            1               1
its share while it is broken         25.00 %         25.00 %
requests that failed                       1               1
recovered after its repair     never ejected          3.46 s
its share after that                  0.00 %         66.67 %
1 × status 503
1 × the response broke off

=> 2 of 16 requests ended in a way that the broken server
   doesn't explain.
";
        assert_eq!(report().to_string(), want);
    }

    #[test]
    fn verdict_matches_the_numbers() {
        let mut report = report();
        report.runs[1].unexpected.clear();
        let mut says = |without, with| {
            (report.runs[0].broken.failed, report.runs[1].broken.failed) = (without, with);
            assert_eq!(misfits(&report), Vec::<String>::new());
            report.verdict()
        };
        let expected = "While one server was broken, 1 of 4 requests failed with outlier ejection, and 3 of 4 without \
                        it. After its repair the server was as good as any other within 3.5 s.";
        assert_eq!(says(3, 1), expected);
        assert!(
            says(1, 1)
                .starts_with("Outlier ejection did not help here: while one server was broken, 1 requests")
        );
    }

    #[test]
    fn json_counts_unexpected_ends_as_failures() {
        let report = report();
        assert_eq!((report.requests(), report.failed()), (16, 2));
        let json = serde_json::to_value(report).unwrap();
        assert_eq!(json["runs"][0]["recovery_ms"], serde_json::Value::Null);
        assert_eq!(json["runs"][1]["recovery_ms"], 3456.0);
        assert_eq!(json["runs"][1]["broken"]["share"], 0.25);
        assert_eq!(json["runs"][1]["recovered"]["failed"], 2);
    }
}
