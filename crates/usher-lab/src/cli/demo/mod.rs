//! `usher demo`: everything on one machine, under the requests of a real trace.

mod args;
mod autoscale;
pub mod children;
mod client;
mod commands;
pub mod envoy;
mod latency;
mod outlier;
mod pd;
mod plain;
pub mod ports;
mod precise;
mod replay;
mod replicas;
mod report;
mod rollout;
mod stack;
mod trace;
mod zero;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::{env, fs};

use anyhow::{Context, bail};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::load::trace::{Row, parse};
pub use args::{DemoArgs, Scenario};
use ports::{DEFAULT_ADMIN, Ports, local};
use stack::Stack;
use trace::MODEL;
pub(super) use trace::TRACE;
use usher_terminal::{CliError, Output, Progress};

/// Runs the demo.
///
/// # Errors
/// `CliError` with one line: what failed, where, and what to do. All processes have ended by then.
pub fn run(args: &DemoArgs) -> Result<(), CliError> {
    if args.scenario == Scenario::Rollout {
        return show_rollout(args);
    }
    let servers = args.servers();
    if args.scenario == Scenario::Pd && servers % 2 == 1 {
        let text = format!("--servers {servers}: half of them compute prompts; give an even number");
        return Err(CliError::Usage(text));
    }
    let needs_two = match args.scenario {
        Scenario::Precise => Some("half of them restart and the others serve"),
        Scenario::Outlier => Some("one server fails and the others serve"),
        Scenario::Replicas => Some("load is spread over them"),
        _ => None,
    };
    if let (Some(why), 1) = (needs_two, servers) {
        return Err(CliError::Usage(format!("--servers 1: {why}; give at least 2")));
    }
    if args.scenario != Scenario::Replicas && args.state_store.is_some() {
        let text = format!("--state-store: the scenario {} has no replicas; leave it out", args.name());
        return Err(CliError::Usage(text));
    }
    if !args.replays() && args.trace.is_some() {
        let text = format!("--trace: the scenario {} replays no trace; leave it out", args.name());
        return Err(CliError::Usage(text));
    }
    if args.scenario == Scenario::Autoscale && args.keep {
        let text = "--keep: the scenario autoscale starts no servers after its end; leave it out";
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
        ("--state-store", args.state_store.is_some()),
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
    let more = match args.scenario {
        // Servers publish what they hold on a port behind theirs.
        Scenario::Precise => 1,
        Scenario::Replicas => replicas::PORTS,
        _ => 0,
    };
    let ports = Ports::choose(args.port, args.servers() + more)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let mut stop = Stop::new()?;
        let (mut stack, result) = tokio::select! {
            done = demo(args, &rows, ports) => done?,
            () = stop.asked() => bail!("interrupted; everything that was started has ended"),
        };
        print(result.text, args, stack.ports())?;
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
    let mut rows = match &args.trace {
        None => parse(TRACE, args.requests())?,
        Some(path) => {
            let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
            parse(&text, args.requests()).with_context(|| format!("cannot use {}", path.display()))?
        }
    };
    trace::spread(&mut rows);
    Ok(rows)
}

/// Outcome of a demo.
struct Shown {
    /// The table, or JSON.
    text: String,
    /// Requests that were sent.
    requests: usize,
    /// Number of these that did not end as they should.
    failed: usize,
}

async fn demo(args: &DemoArgs, rows: &Arc<[Row]>, ports: Ports) -> anyhow::Result<(Stack, Shown)> {
    let mut progress = Progress::default();
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
    if args.scenario == Scenario::Outlier {
        let (stack, report) = outlier::compare(args, ports, &mut progress).await?;
        let text = args.output.render(&report)?;
        return Ok((stack, Shown { text, requests: report.requests(), failed: report.failed() }));
    }
    if args.scenario == Scenario::Autoscale {
        let (stack, report) = autoscale::follow(args, ports, &mut progress).await?;
        let text = args.output.render(&report)?;
        return Ok((stack, Shown { text, requests: report.requests, failed: report.failed() }));
    }
    if args.scenario == Scenario::Precise {
        let (stack, report) = precise::compare(args, ports, &mut progress).await?;
        let text = args.output.render(&report)?;
        return Ok((stack, Shown { text, requests: report.requests(), failed: report.failed() }));
    }
    if args.scenario == Scenario::Replicas {
        let (stack, report) = replicas::compare(args, ports, &mut progress).await?;
        let text = args.output.render(&report)?;
        return Ok((stack, Shown { text, requests: report.requests(), failed: report.failed() }));
    }
    let (stack, report) = plain::compare(args, rows, ports, &mut progress).await?;
    let text = args.output.render(&report)?;
    Ok((stack, Shown { text, requests: report.requests(), failed: report.failed() }))
}

fn print(mut text: String, args: &DemoArgs, ports: &Ports) -> anyhow::Result<()> {
    if args.keep && args.output == Output::Text {
        text += &hints(ports, &env::args().next().unwrap_or_else(|| "usher".to_owned()));
    }
    let mut out = io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot print the result")
}

/// Lines to try while everything still runs. The program is called as it was for this demo.
fn hints(ports: &Ports, usher: &str) -> String {
    let (envoy, admin) = (local(ports.envoy), local(ports.admin));
    let at = if ports.admin == DEFAULT_ADMIN { String::new() } else { format!(" --admin http://{admin}") };
    format!(
        "\nEverything still runs, until Ctrl-C. Try:\n{}\n{usher} explain --last 1{at}\n\
         {usher} doctor --gateway http://{envoy}\nThe page is at http://{admin}/\n",
        curl(envoy)
    )
}

fn curl(envoy: SocketAddr) -> String {
    format!(
        r#"curl -i http://{envoy}/v1/chat/completions -H 'content-type: application/json' -d '{{"model":"{MODEL}","messages":[{{"role":"user","content":"Which pod are you?"}}],"max_tokens":16}}'"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_name_the_admin_port_where_it_is_not_the_default() {
        let ports = Ports::from_first(8081, 1).unwrap();
        let text = hints(&ports, "usher");
        assert!(text.contains("\nusher explain --last 1 --admin http://127.0.0.1:8085\n"), "{text}");
        let text = hints(&Ports { admin: DEFAULT_ADMIN, ..ports }, "usher");
        assert!(
            text.contains("\nusher explain --last 1\n") && text.contains("http://127.0.0.1:9095/"),
            "{text}"
        );
    }
}
