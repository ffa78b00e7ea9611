//! `usher compare`: where do two pickers decide differently?
//!
//! Each picker runs twice, one run after the other, and is asked the same requests about
//! the same servers. What one picker decides differently in its two runs is chance (equals
//! are picked at random); what both decide the same in both of their runs, and differently
//! from each other, is not.

mod args;
mod config;
mod picker;
mod report;
mod servers;
mod tally;

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::LocalSet;

use crate::load::decide::Decided;
use crate::load::trace::Row;
pub use args::CompareArgs;
use args::Plan;
use picker::{Picker, Scene};
use report::Report;
use servers::Servers;
use tally::Tally;
use usher_terminal::{CliError, Progress};

/// Runs both pickers and prints where they differ.
///
/// # Errors
/// [`CliError::Usage`] for files that can't be used; [`CliError::Failed`] if a picker doesn't start or stops
/// responding, and on an interrupt.
pub fn run(args: &CompareArgs) -> Result<(), CliError> {
    let plan = args.plan().map_err(CliError::Usage)?;
    let failed = |error: anyhow::Error| CliError::Failed(format!("{error:#}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(error.into()))?;
    let folder = Folder::make().map_err(failed)?;
    let result = runtime.block_on(LocalSet::new().run_until(async {
        tokio::select! {
            result = compare(&plan, &folder.0) => result.map(Some),
            signal = stopped() => signal.map(|()| None).map_err(anyhow::Error::from),
        }
    }));
    // A failure names a log in it.
    if result.is_ok() {
        folder.remove();
    }
    let report = result.map_err(failed)?.ok_or_else(|| CliError::Failed("interrupted".to_owned()))?;
    args.output.print(&report).map_err(|error| CliError::Failed(format!("cannot print the result: {error}")))
}

async fn compare(plan: &Plan, folder: &Path) -> anyhow::Result<Report> {
    let mut servers = Servers::start(plan.servers, plan.prefill, plan.seed).await?;
    let endpoints = folder.join("endpoints.yaml");
    write(&endpoints, &servers.endpoints())?;
    let mut notes = Vec::new();
    let mut pickers = Vec::new();
    for (name, file, command, source) in [
        ("usher", "usher", &plan.usher, &plan.config),
        ("the other picker", "other", &plan.peer, &plan.peer_config),
    ] {
        let (text, said) = config::for_servers(&source.text, &endpoints)
            .map_err(|error| anyhow::anyhow!("{}", error.in_file(&source.name)))?;
        notes.extend(said.into_iter().filter(|note| !notes.contains(note)).collect::<Vec<_>>());
        // JSON is YAML, too.
        let config = folder.join(format!("{file}.yaml"));
        write(&config, &text)?;
        pickers.push(Picker { name, file, command: command.clone(), config });
    }
    let mut progress = Progress::default();
    let mut runs: Vec<Vec<Decided>> = Vec::new();
    for (number, picker) in pickers.iter().chain(&pickers).enumerate() {
        let title = format!("run {} of 4: {}", number + 1, picker.name);
        let scene = Scene { plan, folder, servers: &mut servers, title: &title, number };
        runs.push(picker.replay(scene, &mut progress, &mut notes).await?);
    }
    drop(progress);
    let loads = |request| servers.loads(plan.step(request));
    let rows: &[Row] = &plan.rows;
    let tally = Tally::new(&runs);
    Ok(Report::new(plan, rows, &runs, tally, servers.addresses(), loads, notes))
}

/// Waits for a signal that ends a program.
async fn stopped() -> io::Result<()> {
    let [mut interrupt, mut terminate, mut hangup] =
        [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?];
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(())
}

/// A folder of our own for configurations and logs.
struct Folder(PathBuf);

impl Folder {
    fn make() -> anyhow::Result<Self> {
        let name = format!("usher-compare-{}-{:08x}", std::process::id(), rand::random::<u32>());
        let path = std::env::temp_dir().join(name);
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| {
            format!("cannot make the folder {}; set TMPDIR to another place", path.display())
        })?;
        Ok(Self(path))
    }

    fn remove(self) {
        // What can't be removed is in the way of nothing.
        let _ = fs::remove_dir_all(self.0);
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
