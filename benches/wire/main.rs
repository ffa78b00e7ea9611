//! `make bench-wire`: simulated servers, the limit and Usher in turns, directly and through
//! a real Envoy; CPU and memory as the operating system counts them; a report.
//!
//! arguments → stage (processes) → runs → verdicts → report and plots. The parts without
//! processes are tested by `tests/lab/bench_wire.rs`.

mod arguments;
mod generator;
mod limit;
mod machine;
mod metric;
mod pickers;
mod plot;
#[path = "../common/processes.rs"]
mod processes;
mod report;
mod stage;
mod text;
mod verdict;
mod workloads;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;

use arguments::{Arguments, order};
use machine::Machine;
use metric::Run;
use pickers::{Picker, Place};
use report::{Failure, Report, Section};
use stage::Stage;
use workloads::Workload;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let pickers = match arguments.pickers() {
        Ok(pickers) => pickers,
        Err(error) => {
            eprintln!("bench-wire: {error}");
            return ExitCode::from(2);
        }
    };
    match bench(&arguments, pickers) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench-wire: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs all measurements. Returns `true` if everything was measured.
fn bench(arguments: &Arguments, pickers: Vec<Picker>) -> anyhow::Result<bool> {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let limit = limit::build()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(async {
        let mut stage = Stage::start(scratch, &arguments.envoy_dir, limit, arguments.quick).await?;
        let machine = Machine::read(stage.envoy());
        let mut sections = Vec::new();
        for workload in arguments.workloads() {
            sections.push(measure(&mut stage, workload, &pickers, arguments.rounds.into()).await);
        }
        if sections.iter().all(|section| section.failures.is_empty()) {
            stage.end();
        } else {
            eprintln!("the logs are in {}", stage.logs());
        }
        anyhow::Ok(Report {
            machine,
            command: command(arguments),
            rounds: arguments.rounds.into(),
            quick: arguments.quick,
            pickers,
            place: Place::shown()?,
            sections,
        })
    })?;
    let out = match &arguments.out {
        Some(out) => out.clone(),
        None if arguments.is_full() => Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/contributing"),
        None => scratch.join("wire-report"),
    };
    let page = write(&report, &out)?;
    let (missed, unmeasured) = (report.missed(), report.unmeasured());
    missed.iter().for_each(|line| eprintln!("missed: {line}"));
    unmeasured.iter().for_each(|line| eprintln!("not measured: {line}"));
    eprintln!("the report is in {}", page.display());
    Ok(unmeasured.is_empty())
}

/// All rounds of a workload. A run that fails is noted, and the next one follows.
async fn measure(
    stage: &mut Stage,
    workload: &'static Workload,
    pickers: &[Picker],
    rounds: usize,
) -> Section {
    let logs = stage.logs().to_string();
    let mut section = Section { workload, runs: Vec::new(), failures: Vec::new() };
    for round in 1..=rounds {
        let mut fail = |who: &str, error: anyhow::Error| {
            // The page has no place for paths of this machine.
            let why = format!("{error:#}").replace(&format!("{logs}/"), "");
            let failure = Failure { who: who.to_owned(), round, why };
            eprintln!("{}, {failure}", workload.name);
            section.failures.push(failure);
        };
        let mut straight = None;
        if workload.straight {
            match stage.straight(workload).await {
                Ok(load) => straight = Some(load),
                Err(error) => fail("straight to a server", error),
            }
        }
        for picker in order(pickers, round) {
            match stage.run(workload, picker, round).await {
                Ok(run) => {
                    let run = Run { straight: straight.clone(), ..run };
                    eprintln!("{}", progress(workload, &run));
                    section.runs.push(run);
                }
                Err(error) => fail(&picker.name, error),
            }
        }
    }
    section
}

fn progress(workload: &Workload, run: &Run) -> String {
    let values = workload.checks.iter().map(|check| {
        let value = check.metric.of(run);
        let value = value.map_or_else(|| "–".to_owned(), |value| text::with_unit(value, check.metric.unit()));
        format!("{} {value}", check.metric.name())
    });
    let failed = match run.load.requests.failed {
        0 => String::new(),
        failed => format!(", {failed} requests failed"),
    };
    let values = values.collect::<Vec<_>>().join(", ");
    format!("{}, round {}, {}: {values}{failed}", workload.name, run.round, run.picker)
}

/// Command that measures it again.
fn command(arguments: &Arguments) -> String {
    let mut words = Vec::new();
    if arguments.rounds != 3 {
        words.push(format!("--rounds {}", arguments.rounds));
    }
    if !arguments.only.is_empty() {
        let names: Vec<&str> = arguments.only.iter().map(|workload| workload.name).collect();
        words.push(format!("--only {}", names.join(",")));
    }
    if arguments.quick {
        words.push("--quick".to_owned());
    }
    let peers = arguments.peers.iter().map(|peer| format!(" PEER='{}=COMMAND'", peer.name));
    let arguments = if words.is_empty() { String::new() } else { format!(" ARGS=\"{}\"", words.join(" ")) };
    format!("make bench-wire{arguments}{}", peers.collect::<String>())
}

/// Writes page and plots, and tells where the page is.
fn write(report: &Report, out: &Path) -> anyhow::Result<PathBuf> {
    let plots = out.join("benchmarks");
    fs::create_dir_all(&plots).with_context(|| format!("cannot make {}", plots.display()))?;
    for section in &report.sections {
        let Some((metric, bars)) = report.plot(section) else { continue };
        let title = format!("{}: {}", section.workload.name, metric.name());
        let svg = plot::svg(&title, metric.unit(), &bars).map_err(anyhow::Error::msg)?;
        save(&plots.join(format!("{}.svg", section.workload.name)), &svg)?;
    }
    let page = out.join("benchmarks.md");
    save(&page, &report.markdown())?;
    Ok(page)
}

fn save(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
