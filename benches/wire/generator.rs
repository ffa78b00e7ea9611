//! The command line of `usher load`, and what it prints.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::process::Command;
use tokio::time::timeout;
use usher_lab::cli::demo::ports::{Ports, local};

use super::metric::LoadReport;
use super::workloads::{Way, Workload};

/// Time that a run may take beside its own: connecting, ending open requests.
const SLACK: Duration = Duration::from_secs(60);

/// Durations of a workload's run.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Measured.
    pub measured: Duration,
    /// Before that.
    pub warm_up: Duration,
}

/// Just enough to see whether everything works.
const QUICK: Times = Times { measured: Duration::from_secs(2), warm_up: Duration::from_millis(500) };

impl Times {
    /// As the workload says, or with `quick` far less.
    pub fn of(workload: &Workload, quick: bool) -> Self {
        let measured = Duration::from_secs(workload.seconds.into());
        let warm_up = Duration::from_secs(workload.warm_up.into());
        if quick {
            return Self { measured: QUICK.measured.min(measured), warm_up: QUICK.warm_up.min(warm_up) };
        }
        Self { measured, warm_up }
    }
}

/// Destination of a workload's requests, as `--target` takes it.
pub fn target(way: Way, ports: &Ports) -> String {
    match way {
        Way::Direct => local(ports.extproc).to_string(),
        Way::Envoy => http(local(ports.envoy)),
    }
}

/// A server that speaks HTTP, as `--target` takes it.
pub fn http(address: SocketAddr) -> String {
    format!("http://{address}")
}

/// Arguments of `usher` for a workload. `watched` are processes, `name=PID`.
pub fn words(workload: &Workload, times: Times, target: &str, watched: &[String]) -> Vec<String> {
    let mut words = vec!["load".to_owned(), "--target".to_owned(), target.to_owned()];
    words.extend(workload.load.iter().copied().map(str::to_owned));
    words.extend(["--duration".to_owned(), duration(times.measured)]);
    if !times.warm_up.is_zero() {
        words.extend(["--warm-up".to_owned(), duration(times.warm_up)]);
    }
    words.extend(watched.iter().flat_map(|process| ["--pid".to_owned(), process.clone()]));
    words.extend(["--output".to_owned(), "json".to_owned()]);
    words
}

/// Arguments of `usher` for a single request, which tells whether somebody is ready.
pub fn probe(target: &str) -> Vec<String> {
    ["load", "--target", target, "--requests", "1", "--output", "json"].map(str::to_owned).into()
}

fn duration(time: Duration) -> String {
    if time.subsec_millis() == 0 { format!("{}s", time.as_secs()) } else { format!("{}ms", time.as_millis()) }
}

/// Runs the generator in a process group and reads what it prints.
///
/// # Errors
/// Returns an error if the generator can't be run, takes far longer than `expected` or writes no report; the
/// error has its last line. A report of failed requests is no error.
pub async fn run(
    usher: &str,
    words: &[String],
    group: i32,
    expected: Duration,
) -> anyhow::Result<LoadReport> {
    let mut command = Command::new(usher);
    command.args(words).process_group(group).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let allowed = expected + SLACK;
    let output = timeout(allowed, command.output())
        .await
        .with_context(|| format!("usher load did not end within {} s", allowed.as_secs()))?
        .context("cannot run usher load")?;
    if !output.status.success() && output.stdout.is_empty() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().map(str::trim).rfind(|line| !line.is_empty());
        bail!("usher load ended ({}): {}", output.status, last.unwrap_or("it did not say why"));
    }
    serde_json::from_slice(&output.stdout).context("cannot read what usher load printed")
}
