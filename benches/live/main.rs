//! `make bench-live`: is a replay true? Workloads of `usher replay` are played to simulated
//! servers behind Usher and a real Envoy, the same runs in replay, and both are printed.
//!
//! arguments → stage (processes) → client (requests as they become due) → table. The parts
//! without processes are tested by `tests/lab/bench_live.rs`.

mod arguments;
mod client;
mod commands;
mod events;
mod metrics;
#[path = "../common/processes.rs"]
mod processes;
mod stage;
mod table;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use usher::replay::{Cell, Script, Settings, Summary, run as replay, summarize};

use arguments::{Arguments, PolicyName};
use client::{Client, Played};
use metrics::{Load, Ticks, Used};
use stage::Stage;
use table::{FIGURES, Run};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match bench(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-live: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn bench(arguments: &Arguments) -> anyhow::Result<()> {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stage = runtime.block_on(Stage::new(scratch, arguments))?;
    let scale = arguments.time_scale;
    let (mut figures, mut differing, mut disturbed) = (0, Vec::new(), false);
    for cell in arguments.cells() {
        let settings = arguments.settings(&cell);
        say(&format!("{}\n", title(&cell, &settings, arguments)))?;
        for &policy in &arguments.policies {
            let run = runtime.block_on(measure(&stage, arguments, &cell, &settings, policy));
            let run = run.inspect_err(|_| eprintln!("the logs are in {}", stage.logs()))?;
            say(&format!("{}\n", run.table(scale)))?;
            figures += FIGURES.len();
            let name = format!("{}, {}, {}", cell.case.name(), cell.engine, run.policy);
            differing.extend(run.differing(scale).into_iter().map(|figure| format!("{name}: {figure}")));
            disturbed |= run.is_disturbed();
        }
    }
    stage.end();
    let within = table::EQUAL * 100.0;
    say(&format!("{} of {figures} figures differ by more than {within:.0} %\n", differing.len()))?;
    for line in differing {
        say(&format!("  {line}\n"))?;
    }
    if disturbed {
        say("The machine was too busy for some of it; run it again when nothing else runs.\n")?;
    }
    Ok(())
}

fn title(cell: &Cell, settings: &Settings, arguments: &Arguments) -> String {
    let users = settings.arrivals.iter().filter(|arrival| !arrival.follows()).count();
    let closed = users < settings.arrivals.len();
    let users = if closed { format!(" of {users} users") } else { String::new() };
    format!(
        "{}, {}, {:.0} % busy: {} requests{users} to {} servers, seed {}, {} times as fast",
        cell.case.name(),
        cell.engine,
        cell.utilization * 100.0,
        settings.arrivals.len(),
        settings.servers.len(),
        cell.seed,
        arguments.time_scale,
    )
}

/// A policy live and in replay.
async fn measure(
    stage: &Stage,
    arguments: &Arguments,
    cell: &Cell,
    settings: &Settings,
    policy: PolicyName,
) -> anyhow::Result<Run> {
    let mut settings = settings.clone();
    settings.accelerate(arguments.time_scale);
    eprintln!("{}: live", policy.name());
    let client = Client::default();
    let mut running = stage.start(arguments, cell, policy, &client).await?;
    let mut script = Script::new(&settings);
    let (ticks, used, begin) = (Ticks::now(), used(&running), Instant::now());
    let Played { seen, late, failures } = client.play(&mut script, running.gateway(), running.name()).await?;
    let took = begin.elapsed();
    let machine = Ticks::now().zip(ticks).and_then(|(now, then)| now.busy_since(&then));
    let processes = metrics::shares(&used, &self::used(&running), took);
    running.check()?;
    let engines = running.first_tokens(&client).await?.mean();
    drop(running);
    let live = summarize(policy.name(), &settings, &seen);
    // Clients see what gateway, picker and client of this machine take, and engines don't.
    let delay = live.ttft.zip(engines).map(|(ttft, engine)| ttft.mean_s - engine / arguments.time_scale);
    let delay = Duration::try_from_secs_f64(delay.unwrap_or_default()).unwrap_or_default();
    settings.gateway_delay = delay;
    let at = |share: f64| late.get((share * late.len() as f64) as usize).copied().unwrap_or_default();
    let load = Load { machine, processes, late: (at(0.5), at(0.99)) };
    eprintln!("{}: {} replays", policy.name(), arguments.replays);
    let replays = replays(&settings, policy, arguments.replays)?;
    Ok(Run { policy: policy.name(), live, replays, delay, load, failures })
}

/// The run in replay, so many times with other decisions by chance and other jitter.
fn replays(settings: &Settings, policy: PolicyName, count: u64) -> anyhow::Result<Vec<Summary>> {
    let mut summaries = Vec::new();
    for number in 0..count {
        let mut settings =
            Settings { policies: vec![(policy.name().to_owned(), policy.policy()?)], ..settings.clone() };
        settings.seed = settings.seed.wrapping_add(number);
        for server in &mut settings.servers {
            // The first replay has the jitter of the servers that are live.
            server.engine.seed = server.engine.seed.wrapping_add(number << 32);
        }
        summaries.extend(replay(&settings, |_| ())?.policies);
    }
    Ok(summaries)
}

/// Processor time of all processes, this one included.
fn used(running: &stage::Running) -> Vec<(&'static str, Used)> {
    let own = ("client", std::process::id());
    running.processes().iter().copied().chain([own]).map(|(name, pid)| (name, Used::of(pid))).collect()
}

fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()
}
