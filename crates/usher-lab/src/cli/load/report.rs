//! The numbers of a run, as a table and as JSON.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use serde::Serialize;

use crate::load::process::Watched;
use crate::load::{Histogram, Outcome};
use usher_terminal::{Column, grouped, line, table};

/// Endpoints that the table shows.
const MOST_SHOWN: usize = 32;

/// More late requests than this part of all, and the table warns.
const LATE_SHARE: f64 = 0.01;

/// With more of a core than this, a generator that waits for responses is what limits them.
const BUSY_SHARE: f64 = 0.95;

/// Report of a run. Parts that do not apply are absent.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    target: &'a str,
    protocol: &'static str,
    /// The measured time.
    seconds: f64,
    requests: Requests,
    /// Good ends per second of the measured time.
    requests_per_second: f64,
    /// Requests completed after the measured time, which the rate leaves out.
    #[serde(skip_serializing_if = "Option::is_none")]
    completed_later: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chunks: Option<Chunks>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<Tokens>,
    latency_ms: BTreeMap<&'static str, Latency>,
    errors: &'a BTreeMap<String, u64>,
    /// Detail of the first error of each kind.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    reasons: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    late: Option<Late>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    endpoints: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_body_bytes_in_flight: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    processes: Vec<Process<'a>>,
    /// The part of a core that the generator itself used.
    #[serde(skip_serializing_if = "Option::is_none")]
    generator_cpu_share: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Requests {
    due: u64,
    completed: u64,
    failed: u64,
}

#[derive(Debug, Serialize)]
struct Chunks {
    sent: u64,
    returned: u64,
    per_second: f64,
}

/// Tokens as the server counted them.
#[derive(Debug, Serialize)]
struct Tokens {
    prompt: u64,
    completion: u64,
    cached: u64,
}

/// Milliseconds.
#[derive(Debug, Serialize)]
struct Latency {
    count: u64,
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

#[derive(Debug, Serialize)]
struct Late {
    requests: u64,
    share: f64,
    p99_ms: f64,
    max_ms: f64,
}

#[derive(Debug, Serialize)]
struct Process<'a> {
    name: &'a str,
    pid: u32,
    cpu_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_ms_per_request: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_us_per_chunk: Option<f64>,
    rss_before_mib: f64,
    rss_mib: f64,
    peak_rss_mib: f64,
}

impl Latency {
    fn of(histogram: &Histogram) -> Self {
        let percentile = |p| milliseconds(histogram.percentile(p));
        Self {
            count: histogram.count(),
            mean: milliseconds(histogram.mean()),
            p50: percentile(0.5),
            p90: percentile(0.9),
            p99: percentile(0.99),
            p999: percentile(0.999),
            max: milliseconds(histogram.max()),
        }
    }
}

fn milliseconds(time: Duration) -> f64 {
    // Down to the microsecond, which is finer than it is exact.
    (time.as_secs_f64() * 1e6).round() / 1e3
}

impl<'a> Report<'a> {
    pub(super) fn new(target: &'a str, outcome: &'a Outcome) -> Self {
        let Outcome { protocol, seconds, open_loop, numbers, processes, own_cpu } = outcome;
        let direct = *protocol == "ext_proc";
        let per_second = |count: u64| if *seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let times = [
            ("decision", &numbers.decision),
            ("first_byte", &numbers.first_byte),
            ("total", &numbers.total),
            ("chunk", &numbers.chunk),
        ];
        let times = times.into_iter().filter(|(_, histogram)| histogram.count() > 0);
        let endpoints = numbers.endpoints.iter();
        let usage = numbers.tokens;
        Self {
            target,
            protocol,
            seconds: *seconds,
            requests: Requests { due: numbers.due, completed: numbers.completed, failed: numbers.failed },
            requests_per_second: per_second(numbers.ended_in_time),
            completed_later: (numbers.ended_later > 0).then_some(numbers.ended_later),
            chunks: (numbers.chunks_sent > 0).then(|| Chunks {
                sent: numbers.chunks_sent,
                returned: numbers.chunks_returned,
                per_second: per_second(numbers.chunks_returned),
            }),
            tokens: usage.completion_tokens.map(|completion| Tokens {
                prompt: usage.prompt_tokens.unwrap_or(0),
                completion,
                cached: usage.cached_tokens.unwrap_or(0),
            }),
            latency_ms: times.map(|(name, histogram)| (name, Latency::of(histogram))).collect(),
            errors: &numbers.errors,
            reasons: &numbers.reasons,
            late: open_loop.then(|| Late {
                requests: numbers.late_requests,
                share: numbers.late_requests as f64 / numbers.due.max(1) as f64,
                p99_ms: milliseconds(numbers.late.percentile(0.99)),
                max_ms: milliseconds(numbers.late.max()),
            }),
            endpoints: endpoints.map(|(name, n)| (String::from_utf8_lossy(name).into_owned(), *n)).collect(),
            peak_body_bytes_in_flight: direct.then_some(numbers.peak_body_bytes),
            processes: processes
                .iter()
                .filter_map(|watched| Process::of(watched, numbers.ended_in_time, numbers.chunks_returned))
                .collect(),
            generator_cpu_share: own_cpu.filter(|_| *seconds > 0.0).map(|cpu| cpu.as_secs_f64() / seconds),
        }
    }
}

impl<'a> Process<'a> {
    /// `None` for a process that ended during the run.
    fn of(watched: &'a Watched, requests: u64, chunks: u64) -> Option<Self> {
        let (start, end) = (watched.start?, watched.end?);
        let cpu = end.cpu.saturating_sub(start.cpu).as_secs_f64();
        let per = |count: u64, unit: f64| (count > 0).then(|| cpu * unit / count as f64);
        let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
        Some(Self {
            name: &watched.process.name,
            pid: watched.process.pid,
            cpu_seconds: cpu,
            cpu_ms_per_request: per(requests, 1e3),
            cpu_us_per_chunk: per(chunks, 1e6),
            rss_before_mib: mib(watched.before.memory),
            rss_mib: mib(end.memory),
            peak_rss_mib: mib(end.peak_memory),
        })
    }
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Requests { due, completed, failed } = self.requests;
        line(f, "target", format_args!("{} ({}), {:.1} s", self.target, self.protocol, self.seconds))?;
        let (due, done) = (grouped(due), grouped(completed));
        line(f, "requests", format_args!("{due} due, {done} completed, {} failed", grouped(failed)))?;
        let (rate, seconds) = (self.requests_per_second, self.seconds);
        if let Some(later) = self.completed_later {
            let later = grouped(later);
            line(
                f,
                "",
                format_args!("{rate:.1} per second within the {seconds:.1} s; {later} completed later"),
            )?;
        } else if rate > 0.0 {
            line(f, "", format_args!("{rate:.1} per second"))?;
        }
        if let Some(Chunks { sent, returned, per_second }) = self.chunks {
            let (sent, returned) = (grouped(sent), grouped(returned));
            line(f, "chunks", format_args!("{sent} sent, {returned} returned, {per_second:.0} per second"))?;
        }
        if let Some(Tokens { prompt, completion, cached }) = self.tokens {
            let (prompt, completion) = (grouped(prompt), grouped(completion));
            line(
                f,
                "tokens",
                format_args!("prompt {prompt}, completion {completion}, cached {}", grouped(cached)),
            )?;
        }
        for (kind, count) in self.errors {
            let reason = self.reasons.get(kind).map_or("", String::as_str);
            line(f, "error", format_args!("{} × {kind}: {reason}", grouped(*count)))?;
        }
        self.warnings(f)?;
        self.latencies(f)?;
        self.endpoints(f)?;
        self.processes(f)
    }
}

impl Report<'_> {
    /// Warns where the numbers are the generator's own.
    fn warnings(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(Late { requests, share, p99_ms, max_ms }) = &self.late {
            let percent = share * 100.0;
            line(
                f,
                "generator",
                format_args!(
                    "{} requests ({percent:.2} %) began more than 1 ms late; p99 {p99_ms:.3} ms, max {max_ms:.3} ms",
                    grouped(*requests)
                ),
            )?;
            if *share > LATE_SHARE {
                line(
                    f,
                    "WARNING",
                    format_args!(
                        "the generator was late: latencies hold its own delay too; lower the rate, or give it a core"
                    ),
                )?;
            }
        }
        match self.generator_cpu_share {
            Some(share) if share > BUSY_SHARE => line(
                f,
                "WARNING",
                format_args!(
                    "the generator used {:.0} % of a core: it may be what limits the rate",
                    share * 100.0
                ),
            ),
            _ => Ok(()),
        }
    }

    fn latencies(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.latency_ms.is_empty() {
            return Ok(());
        }
        let [mean, p50, p90, p99, p999, max] =
            ["mean", "p50", "p90", "p99", "p99.9", "max"].map(Column::number);
        let columns = [Column::text("latency, ms"), mean, p50, p90, p99, p999, max];
        let row = |(name, latency): (&&str, &Latency)| {
            let Latency { mean, p50, p90, p99, p999, max, .. } = latency;
            let times = [mean, p50, p90, p99, p999, max].map(|time| format!("{time:.3}"));
            std::iter::once(name.replace('_', " ")).chain(times).collect()
        };
        let rows: Vec<Vec<String>> = self.latency_ms.iter().map(row).collect();
        write!(f, "\n{}", table(&columns, &rows, f.width()))
    }

    fn endpoints(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.endpoints.is_empty() {
            return Ok(());
        }
        let all: u64 = self.endpoints.values().sum();
        let columns = [Column::text("endpoint"), Column::number("requests"), Column::number("share")];
        let row = |(name, count): (&String, &u64)| {
            let share = *count as f64 / all as f64 * 100.0;
            vec![name.clone(), grouped(*count), format!("{share:.1} %")]
        };
        let rows: Vec<Vec<String>> = self.endpoints.iter().take(MOST_SHOWN).map(row).collect();
        write!(f, "\n{}", table(&columns, &rows, f.width()))?;
        match self.endpoints.len().saturating_sub(MOST_SHOWN) {
            0 => Ok(()),
            more => writeln!(f, "and {more} more"),
        }
    }

    fn processes(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for process in &self.processes {
            let Process { name, pid, cpu_seconds, rss_before_mib, rss_mib, peak_rss_mib, .. } = process;
            let cores = if self.seconds > 0.0 { cpu_seconds / self.seconds } else { 0.0 };
            writeln!(f)?;
            line(f, name, format_args!("process {pid}: CPU {cpu_seconds:.3} s, {cores:.3} cores"))?;
            if let Some(per_request) = process.cpu_ms_per_request {
                line(f, "", format_args!("{per_request:.4} ms CPU per request"))?;
            }
            if let Some(per_chunk) = process.cpu_us_per_chunk {
                line(f, "", format_args!("{per_chunk:.3} µs CPU per chunk of a response"))?;
            }
            line(
                f,
                "",
                format_args!(
                    "memory {rss_before_mib:.1} MiB before, {rss_mib:.1} MiB at the end, {peak_rss_mib:.1} MiB at most"
                ),
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Numbers;
    use crate::load::process::Usage;
    use crate::load::settings;
    use usher_terminal::misfits;

    const TABLE: &str = "\
target         127.0.0.1:9002 (ext_proc), 2.0 s
requests       1,000 due, 990 completed, 10 failed
               495.0 per second
chunks         2,000 sent, 1,980 returned, 990 per second
error          10 × http-503: no endpoint
generator      20 requests (2.00 %) began more than 1 ms late; p99 2.000 ms, max 2.000 ms
WARNING        the generator was late: latencies hold its own delay too; lower the rate, or give it a core
WARNING        the generator used 97 % of a core: it may be what limits the rate

latency, ms   mean    p50    p90    p99  p99.9    max
decision     0.250  0.250  0.250  0.250  0.250  0.250

endpoint       requests   share
10.0.0.1:8000       750  75.0 %
10.0.0.2:8000       250  25.0 %

usher          process 7: CPU 0.990 s, 0.495 cores
               1.0000 ms CPU per request
               500.000 µs CPU per chunk of a response
               memory 10.0 MiB before, 20.0 MiB at the end, 30.0 MiB at most
";

    fn outcome() -> Outcome {
        let mut numbers = Numbers::default();
        (numbers.due, numbers.completed, numbers.failed, numbers.ended_in_time) = (1000, 990, 10, 990);
        (numbers.chunks_sent, numbers.chunks_returned) = (2000, 1980);
        numbers.errors.insert("http-503".to_owned(), 10);
        numbers.reasons.insert("http-503".to_owned(), "no endpoint".to_owned());
        numbers.late.record(Duration::from_millis(2));
        numbers.late_requests = 20;
        numbers.decision.record(Duration::from_micros(250));
        numbers.endpoints.insert(b"10.0.0.1:8000".to_vec(), 750);
        numbers.endpoints.insert(b"10.0.0.2:8000".to_vec(), 250);
        let usage = |cpu, memory: u64| Usage {
            cpu: Duration::from_millis(cpu),
            memory: memory << 20,
            peak_memory: 30 << 20,
        };
        let process = settings::Process { name: "usher".to_owned(), pid: 7 };
        let watched =
            Watched { process, before: usage(0, 10), start: Some(usage(10, 15)), end: Some(usage(1000, 20)) };
        let gone = Watched { end: None, ..watched.clone() };
        Outcome {
            protocol: "ext_proc",
            seconds: 2.0,
            open_loop: true,
            numbers,
            processes: vec![watched, gone],
            own_cpu: Some(Duration::from_millis(1940)),
        }
    }

    #[test]
    fn table_matches_the_expected_text() {
        assert_eq!(Report::new("127.0.0.1:9002", &outcome()).to_string(), TABLE);
    }

    #[test]
    fn rate_names_requests_that_it_leaves_out() {
        let mut outcome = outcome();
        (outcome.numbers.ended_in_time, outcome.numbers.ended_later) = (20, 970);
        let report = Report::new("127.0.0.1:9002", &outcome).to_string();
        let expected = "\
requests       1,000 due, 990 completed, 10 failed
               10.0 per second within the 2.0 s; 970 completed later
";
        assert!(report.contains(expected), "{report}");
    }

    #[test]
    fn the_report_fits_the_terminal() {
        let mut outcome = outcome();
        outcome.numbers.decision.record(Duration::from_secs(12_345));
        outcome.numbers.endpoints.insert(b"a-pod-with-a-long-name.and-a-namespace:8000".to_vec(), 7);
        assert_eq!(misfits(&Report::new("127.0.0.1:9002", &outcome)), Vec::<String>::new());
    }

    #[test]
    fn generator_in_time_has_no_warning() {
        let mut outcome = outcome();
        outcome.numbers.late_requests = 10;
        outcome.own_cpu = Some(Duration::from_millis(1900));
        let text = Report::new("x", &outcome).to_string();
        assert!(text.contains("10 requests (1.00 %)") && !text.contains("WARNING"), "{text}");
    }
}
