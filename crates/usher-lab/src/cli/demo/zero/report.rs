//! Report of the scenario: outcomes of the requests, and how they waited for servers.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use serde::Serialize;

use super::page::Waited;
use crate::cli::demo::ports::Ports;
use crate::cli::demo::replay::Outcome;
use crate::cli::demo::report::{Ends, Percentiles, pace, verdict};
use crate::cli::demo::trace::OUTPUT_DIVISOR;
use usher_terminal::{Column, line, paragraph, table};

/// The first servers are started so long after the first request.
pub(super) const COLD: Duration = Duration::from_secs(3);

/// Between two lines of the table of what waits.
const STEP: Duration = Duration::from_millis(500);

/// Servers and waiting requests at a moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// From the start of the replay.
    pub(super) after: Duration,
    /// Servers in the pool.
    pub(super) servers: f64,
    /// Requests that wait.
    pub(super) waiting: f64,
}

/// Measurements of the scenario.
#[derive(Debug)]
pub(super) struct Measured {
    /// All requests.
    pub(super) outcomes: Vec<Outcome>,
    /// From the first request to the last response.
    pub(super) took: Duration,
    /// In the order of time.
    pub(super) samples: Vec<Sample>,
    /// Waiting as Usher measured it.
    pub(super) waited: Waited,
}

/// Report of the demo.
#[derive(Debug, Serialize)]
pub(in crate::cli::demo) struct ZeroReport {
    /// Requests that were sent.
    pub(in crate::cli::demo) requests: usize,
    /// From the first request to the last response.
    seconds: f64,
    /// Speed in multiples of the trace's, servers included.
    speed: f64,
    /// Responses are so many times shorter than in the trace.
    output_divisor: u32,
    #[serde(flatten)]
    ends: Ends,
    /// From the first request until servers were in the pool; none: they never were.
    servers_after_seconds: Option<f64>,
    /// Time from then until no request waited any more.
    drained_after_seconds: Option<f64>,
    /// Requests that waited at once, at most.
    most_waiting: u64,
    /// Requests that waited for longer than a millisecond, as Usher counted them.
    waited: u64,
    /// Mean wait of these.
    mean_wait_seconds: Option<f64>,
    /// First tokens of requests that were due before there were servers.
    early: First,
    /// First tokens of all other requests.
    late: First,
    /// Servers and waiting requests over time.
    waiting: Vec<Moment>,
    /// Good responses by pod.
    pods: BTreeMap<String, usize>,
    /// Ports that everything listens on.
    ports: Ports,
}

/// Until the first token, from when a request was due.
#[derive(Debug, Serialize)]
struct First {
    requests: usize,
    first_token_ms: Percentiles,
}

#[derive(Debug, Serialize)]
struct Moment {
    seconds: f64,
    servers: u64,
    waiting: u64,
}

impl ZeroReport {
    pub(super) fn new(measured: &Measured, speed: f64, ports: Ports, pods: Vec<String>) -> Self {
        let Measured { outcomes, took, samples, waited } = measured;
        let mut pods: BTreeMap<String, usize> = pods.into_iter().map(|name| (name, 0)).collect();
        for outcome in outcomes {
            if let Some(response) = outcome.response.as_ref().ok().filter(|response| response.status == 200) {
                let pod = response.pod.clone().unwrap_or_else(|| "(unnamed)".to_owned());
                *pods.entry(pod).or_default() += 1;
            }
        }
        let up = samples.iter().find(|sample| sample.servers > 0.0).map(|sample| sample.after);
        let drained =
            samples.iter().find(|sample| up.is_some_and(|up| sample.after >= up) && sample.waiting == 0.0);
        let first = |is_early: bool| {
            let of = || outcomes.iter().filter(|outcome| up.is_none_or(|up| outcome.due < up) == is_early);
            let times: Vec<f64> =
                of().filter_map(|outcome| outcome.first).map(|first| first.as_secs_f64() * 1e3).collect();
            First { requests: of().count(), first_token_ms: Percentiles::of(&times) }
        };
        Self {
            requests: outcomes.len(),
            seconds: took.as_secs_f64(),
            speed,
            output_divisor: OUTPUT_DIVISOR,
            ends: Ends::of(outcomes),
            servers_after_seconds: up.map(|up| up.as_secs_f64()),
            drained_after_seconds: up
                .zip(drained)
                .map(|(up, drained)| drained.after.saturating_sub(up).as_secs_f64()),
            most_waiting: samples.iter().map(|sample| sample.waiting as u64).max().unwrap_or(0),
            waited: waited.requests as u64,
            mean_wait_seconds: (waited.requests > 0.0).then(|| waited.seconds / waited.requests),
            early: first(true),
            late: first(false),
            waiting: moments(samples),
            pods,
            ports,
        }
    }

    /// Requests that did not end with status 200.
    pub(in crate::cli::demo) fn failed(&self) -> usize {
        self.ends.failed()
    }

    /// Verdict on the numbers.
    fn verdict(&self) -> String {
        if self.failed() > 0 {
            return format!("{} of {} requests failed.", self.failed(), self.requests);
        }
        match self.mean_wait_seconds {
            Some(mean) => format!(
                "No request was lost: {} waited in Usher, {mean:.2} s on average, until there were servers.",
                self.waited
            ),
            None => "No request had to wait, so this run says nothing of a start from zero.".to_owned(),
        }
    }
}

/// A line every so often, until no request waits any more and servers are ready.
fn moments(samples: &[Sample]) -> Vec<Moment> {
    let mut moments: Vec<Moment> = Vec::new();
    let mut due = Duration::ZERO;
    for Sample { after, servers, waiting } in
        samples.iter().copied().filter(|sample| sample.after >= COLD / 100)
    {
        if after < due {
            continue;
        }
        due = after + STEP;
        moments.push(Moment {
            seconds: after.as_secs_f64(),
            servers: servers as u64,
            waiting: waiting as u64,
        });
        if servers > 0.0 && waiting == 0.0 {
            break;
        }
    }
    moments
}

impl Display for ZeroReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { speed, output_divisor, pods, .. } = self;
        paragraph(
            f,
            format_args!(
                "A trace, replayed through Envoy and Usher to a pool without servers; {} simulated ones are started \
                 {} s after the first request. {}",
                pods.len(),
                COLD.as_secs(),
                pace(*speed, *output_divisor)
            ),
        )?;
        writeln!(f)?;
        let ends = &self.ends;
        line(f, "requests", format_args!("{} in {:.1} s: {ends}", self.requests, self.seconds))?;
        match self.servers_after_seconds {
            Some(seconds) => {
                line(f, "servers", format_args!("in the pool {seconds:.1} s after the first request"))?
            }
            None => line(f, "servers", format_args!("never came into the pool"))?,
        }
        let drained = self.drained_after_seconds.map_or_else(
            || "requests always waited".to_owned(),
            |seconds| format!("none {seconds:.1} s after servers came"),
        );
        line(f, "waiting", format_args!("{} at most at once; {drained}", self.most_waiting))?;
        match self.mean_wait_seconds {
            Some(mean) => {
                line(f, "waited", format_args!("{} requests, {mean:.2} s on average", self.waited))?
            }
            None => line(f, "waited", format_args!("none"))?,
        }
        let First { requests, first_token_ms } = &self.early;
        line(
            f,
            "TTFT",
            format_args!("{first_token_ms} of the {requests} requests that were due before servers came"),
        )?;
        let First { requests, first_token_ms } = &self.late;
        line(f, "", format_args!("{first_token_ms} of the {requests} others"))?;
        let row = |moment: &Moment| {
            let Moment { seconds, servers, waiting } = moment;
            vec![format!("{seconds:.1}"), servers.to_string(), waiting.to_string()]
        };
        let rows: Vec<Vec<String>> = self.waiting.iter().map(row).collect();
        let columns = ["seconds", "servers", "waiting"].map(Column::number);
        write!(f, "\n{}", table(&columns, &rows, f.width()))?;
        let rows: Vec<Vec<String>> =
            pods.iter().map(|(name, requests)| vec![name.clone(), requests.to_string()]).collect();
        write!(f, "\n{}", table(&[Column::text("pod"), Column::number("requests")], &rows, f.width()))?;
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
A trace, replayed through Envoy and Usher to a pool without servers; 2 simulated
ones are started 3 s after the first request. Trace and servers run 12 times as
fast as in reality; responses are 8 times shorter.

requests       4 in 9.0 s: 3 × status 200, 1 × status 503
servers        in the pool 3.2 s after the first request
waiting        2 at most at once; none 0.4 s after servers came
waited         2 requests, 1.50 s on average
TTFT           p50 3000.0 ms, p99 3000.0 ms of the 2 requests that were due before servers came
               p50 40.0 ms, p99 40.0 ms of the 2 others

seconds  servers  waiting
    0.1        0        1
    1.0        0        2
    3.2        2        2
    3.7        2        0

pod    requests
sim-0         3
sim-1         0

=> 1 of 4 requests failed.
";

    fn outcome(due: u64, first: u64, status: u16) -> Outcome {
        Outcome {
            due: Duration::from_millis(due),
            first: Some(Duration::from_millis(first)),
            total: Duration::from_millis(first * 2),
            response: Ok(Response {
                status,
                pod: Some("sim-0".to_owned()),
                first: None,
                usage: Usage::default(),
                reason: String::new(),
            }),
        }
    }

    fn report() -> ZeroReport {
        let sample = |ms, servers, waiting| Sample { after: Duration::from_millis(ms), servers, waiting };
        let measured = Measured {
            outcomes: vec![
                outcome(0, 3000, 200),
                outcome(1000, 3000, 200),
                outcome(5000, 40, 200),
                outcome(6000, 40, 503),
            ],
            took: Duration::from_secs(9),
            samples: vec![
                sample(0, 0.0, 0.0),
                sample(100, 0.0, 1.0),
                sample(150, 0.0, 1.0),
                sample(1000, 0.0, 2.0),
                sample(3200, 2.0, 2.0),
                sample(3600, 2.0, 0.0),
                sample(3700, 2.0, 0.0),
                sample(5000, 2.0, 0.0),
            ],
            waited: Waited { requests: 2.0, seconds: 3.0 },
        };
        let names = ["sim-0", "sim-1"].map(str::to_owned).to_vec();
        ZeroReport::new(&measured, 12.0, Ports::from_first(8081, 2).unwrap(), names)
    }

    #[test]
    fn table_matches_the_expected_text() {
        assert_eq!(report().to_string(), TABLE);
        assert_eq!(misfits(&report()), Vec::<String>::new());
    }

    #[test]
    fn verdict_matches_the_numbers() {
        let report = ZeroReport { ends: Ends::default(), ..report() };
        let expected = "No request was lost: 2 waited in Usher, 1.50 s on average, until there were servers.";
        assert_eq!(report.verdict(), expected);
        let report = ZeroReport { mean_wait_seconds: None, ..report };
        assert!(report.verdict().starts_with("No request had to wait"));
    }

    #[test]
    fn json_has_the_numbers() {
        let report = report();
        assert_eq!(report.failed(), 1);
        let json = serde_json::to_value(report).unwrap();
        assert_eq!(json["servers_after_seconds"], 3.2);
        assert_eq!((&json["waited"], &json["most_waiting"]), (&2.into(), &2.into()));
        assert_eq!(json["early"]["first_token_ms"]["p50"], 3000.0);
        assert_eq!(json["waiting"][2]["servers"], 2);
    }
}
