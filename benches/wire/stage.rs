//! The processes of a run: servers that stay, a picker and an Envoy that are fresh.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::time::{Instant, sleep};
use usher::load::process::usage;
use usher_lab::cli::demo::children::Group;
use usher_lab::cli::demo::envoy::{self, Extras};
use usher_lab::cli::demo::ports::{Ports, local};

use super::generator::{self, Times};
use super::metric::{ENVOY, LoadReport, Run};
use super::pickers::{self, Picker, Place, SERVERS};
use super::processes::{self, SETTLE, START, command, until_listed, until_ready, with_endpoints, write};
use super::workloads::{Way, Workload};

/// Time for which a picker without requests is looked at.
const IDLE: Duration = Duration::from_secs(2);

/// The configuration of the pickers, but for the place of its endpoints.
const CONFIG: &str = include_str!("../../deploy/config/default.yaml");

/// Simulated servers that run, and where everything else will. Dropped, it ends them.
#[derive(Debug)]
pub struct Stage {
    place: Place,
    folder: PathBuf,
    servers: Group,
    quick: bool,
}

impl Stage {
    /// Installs Envoy into `envoy_dir` if need be and starts the servers. What the
    /// processes write goes into a folder of its own in `scratch`.
    ///
    /// # Errors
    /// Returns an error that says in one line what didn't start, and why.
    pub async fn start(scratch: &Path, envoy_dir: &Path, limit: String, quick: bool) -> anyhow::Result<Self> {
        let ports = Ports::choose(0, SERVERS)?;
        let folder = processes::folder(scratch, &format!("wire-{}", ports.envoy))?;
        let mut servers = Group::new(&folder)?;
        let envoy = envoy::install(envoy_dir, servers.id(), || eprintln!("fetching Envoy")).await?;
        let file = |name: &str| folder.join(name).to_string_lossy().into_owned();
        let place = Place {
            usher: env!("CARGO_BIN_EXE_usher").to_owned(),
            limit,
            envoy: envoy.to_string_lossy().into_owned(),
            config: file("config.yaml"),
            endpoints: file("endpoints.yaml"),
            envoy_config: file("envoy.json"),
            ports,
        };
        write(&place.envoy_config, &envoy::config(&place.ports, Extras::None)?)?;
        servers.spawn("usher sim", command(&pickers::servers(&place)), folder.join("sim.log"))?;
        until_listed(&mut servers, &place.endpoints).await?;
        Ok(Self { place, folder, servers, quick })
    }

    /// The path of Envoy.
    pub fn envoy(&self) -> &str {
        &self.place.envoy
    }

    /// The folder with what the processes wrote.
    pub fn logs(&self) -> std::path::Display<'_> {
        self.folder.display()
    }

    /// A workload straight to one of the servers: no Envoy, no picker.
    ///
    /// # Errors
    /// Returns an error if the measurement fails.
    pub async fn straight(&mut self, workload: &Workload) -> anyhow::Result<LoadReport> {
        self.servers.check()?;
        let server = self.place.ports.servers.first().copied().context("there are no servers")?;
        let group = self.servers.id();
        self.load(workload, &generator::http(local(server)), &[], group).await
    }

    /// A workload with a fresh picker, and a fresh Envoy if it goes through one.
    ///
    /// # Errors
    /// Returns an error if the measurement fails.
    pub async fn run(&mut self, workload: &Workload, picker: &Picker, round: usize) -> anyhow::Result<Run> {
        self.servers.check()?;
        let ports = self.place.ports.clone();
        let pool = self.folder.join("pool.yaml").to_string_lossy().into_owned();
        write(&pool, &first_endpoints(&read(&self.place.endpoints)?, workload.pods))?;
        write(&self.place.config, &with_endpoints(CONFIG, &pool)?)?;
        let mut group = Group::new(&self.folder)?;
        let log = |name: &str| self.folder.join(format!("{}-{round}-{name}.log", workload.name));
        let pid = group.spawn(&picker.name, command(&picker.words(&self.place)), log(&picker.name))?;
        self.ready(&mut group, &picker.name, &generator::target(Way::Direct, &ports)).await?;
        let mut watched = vec![format!("{}={pid}", picker.name)];
        let target = generator::target(workload.way, &ports);
        if workload.way == Way::Envoy {
            let envoy = group.spawn(
                "Envoy",
                command(&processes::envoy(
                    &self.place.envoy,
                    &self.place.envoy_config,
                    workload.envoy_threads,
                )),
                log("envoy"),
            )?;
            self.ready(&mut group, "Envoy", &target).await?;
            watched.push(format!("{ENVOY}={envoy}"));
        }
        sleep(SETTLE).await;
        // Where it is what is judged, it is looked at for as long as what it is compared with.
        let long = if workload.is_idle() { Times::of(workload, self.quick).measured } else { IDLE };
        let cores_before = Some(cores(pid, long).await?);
        let load = self.load(workload, &target, &watched, group.id()).await?;
        group.check()?;
        if load.requests.completed == 0 {
            bail!("no request succeeded: {:?}", load.errors);
        }
        Ok(Run { picker: picker.name.clone(), round, load, straight: None, cores_before })
    }

    async fn load(
        &self,
        workload: &Workload,
        target: &str,
        watched: &[String],
        group: i32,
    ) -> anyhow::Result<LoadReport> {
        let times = Times::of(workload, self.quick);
        let words = generator::words(workload, times, target, watched);
        generator::run(&self.place.usher, &words, group, times.warm_up + times.measured).await
    }

    /// Waits until a request gets a response.
    async fn ready(&self, group: &mut Group, name: &str, target: &str) -> anyhow::Result<()> {
        let (words, of) = (&generator::probe(target), group.id());
        let look = || async move {
            match generator::run(&self.place.usher, words, of, START).await {
                Ok(report) if report.requests.completed > 0 => Ok(()),
                Ok(report) => Err(format!("the first request failed: {:?}", report.errors)),
                Err(error) => Err(format!("{error:#}")),
            }
        };
        until_ready(group, name, look).await
    }

    /// Ends the servers and removes what was written, which is of use after a failure only.
    pub fn end(self) {
        let Self { servers, folder, .. } = self;
        drop(servers);
        // What can't be removed is in the way of nothing.
        let _ = fs::remove_dir_all(folder);
    }
}

/// Cores that a process uses over a time.
async fn cores(pid: u32, time: Duration) -> anyhow::Result<f64> {
    let used = || usage(pid).context("cannot read the processor time of the picker in /proc");
    let (before, begin) = (used()?, Instant::now());
    sleep(time).await;
    let after = used()?;
    Ok((after.cpu.saturating_sub(before.cpu)).as_secs_f64() / begin.elapsed().as_secs_f64())
}

/// The first endpoints of a file of `usher sim`, which has one on each line below the first.
fn first_endpoints(file: &str, count: u16) -> String {
    file.lines().take(1 + usize::from(count)).map(|line| format!("{line}\n")).collect()
}

fn read(path: &str) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {path}"))
}
