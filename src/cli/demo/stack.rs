//! What runs: simulated servers, Usher and Envoy, each a process of its own.

use std::env::current_exe;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::time::{Instant, sleep};

use super::children::Group;
use super::client::{Client, MODELS};
use super::envoy::{self, Extras};
use super::ports::{Ports, local};
use super::trace::MODEL;
use crate::cli::progress::Progress;
use crate::load::process::{Usage, usage};

/// Time to get ready, once everything is installed.
const START: Duration = Duration::from_secs(20);

/// Between two looks at whether something is ready, or still runs.
const LOOK: Duration = Duration::from_millis(50);

/// Simulated servers are called this and their number.
const NAME: &str = "sim";

/// What to start.
#[derive(Debug)]
pub(super) struct Plan {
    /// Folder for Envoy and for what the processes need and write.
    pub(super) dir: PathBuf,
    /// Where everything listens.
    pub(super) ports: Ports,
    /// Simulated seconds per second in the servers.
    pub(super) speed: f64,
    /// What is particular to a scenario.
    pub(super) setup: Setup,
}

/// What is particular to a scenario.
#[derive(Debug, Default)]
pub(super) struct Setup {
    /// More flags for the servers.
    pub(super) servers: Vec<String>,
    /// Usher's configuration; `None`: the built-in one.
    pub(super) config: Option<String>,
}

/// The running processes. Dropped, it ends them.
#[derive(Debug)]
pub(super) struct Stack {
    group: Group,
    ports: Ports,
    usher: u32,
    run_dir: PathBuf,
}

impl Stack {
    /// Installs what is missing, starts everything, and waits until a request gets
    /// through.
    ///
    /// # Errors
    /// One line: what didn't start, and why.
    pub(super) async fn start(plan: Plan, progress: &mut Progress) -> anyhow::Result<Self> {
        let Plan { dir, ports, speed, setup } = plan;
        let run_dir = make_run_dir(&dir, ports.envoy)?;
        let mut group = Group::new(&run_dir)?;

        progress.step("getting Envoy (the first time takes a while)");
        let envoy = envoy::install(&dir, group.id()).await?;

        progress.step("starting servers, Usher and Envoy");
        let client = Client::default();
        let program = current_exe().context("cannot find the path of this program")?;
        let endpoints = run_dir.join("endpoints.yaml");
        let mut sim = sim_command(&program, &ports, speed, &endpoints);
        sim.args(&setup.servers);
        group.spawn("usher sim", sim, run_dir.join("sim.log"))?;
        // The file of endpoints is written after the last server listens.
        while !endpoints.exists() {
            group.check()?;
            sleep(LOOK).await;
        }
        let mut serve = serve_command(&program, &ports, &endpoints);
        if let Some(text) = setup.config {
            let config = run_dir.join("config.yaml");
            write(&config, &text)?;
            serve.arg("--allow-experimental-plugins=true").arg("--config-file").arg(config);
        }
        let usher = group.spawn("usher serve", serve, run_dir.join("usher.log"))?;
        let mut stack = Self { group, ports, usher, run_dir };
        // An Envoy that finds Usher not ready asks again after two seconds.
        stack.answers(&client, local(stack.ports.admin), "/healthz", "Usher").await?;

        let config = stack.run_dir.join("envoy.json");
        write(&config, &envoy::config(&stack.ports, Extras::AsShipped)?)?;
        stack.group.spawn("Envoy", envoy_command(&envoy, &config), stack.run_dir.join("envoy.log"))?;
        stack.answers(&client, stack.envoy(), MODELS, "Envoy").await?;
        Ok(stack)
    }

    /// Waits until `name` answers 200 at a page.
    async fn answers(
        &mut self,
        client: &Client,
        at: SocketAddr,
        path: &str,
        name: &str,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + START;
        loop {
            let last = match client.get(at, path).await {
                Ok(answer) if answer.status == 200 => return Ok(()),
                Ok(answer) => format!("the last answer was {}", answer.status),
                Err(error) => format!("{error:#}"),
            };
            self.group.check()?;
            if Instant::now() >= deadline {
                bail!(
                    "{name} was not ready within {} s: {last}; the logs are in {}",
                    START.as_secs(),
                    self.logs()
                );
            }
            sleep(LOOK).await;
        }
    }

    /// Waits until one of the processes ends by itself, which is an error.
    pub(super) async fn broken(&mut self) -> anyhow::Error {
        loop {
            if let Err(error) = self.group.check() {
                return error.into();
            }
            sleep(LOOK).await;
        }
    }

    /// Where requests go.
    pub(super) fn envoy(&self) -> SocketAddr {
        local(self.ports.envoy)
    }

    /// The simulated servers.
    pub(super) fn servers(&self) -> Vec<SocketAddr> {
        self.ports.servers.iter().copied().map(local).collect()
    }

    /// Their names, in the same order.
    pub(super) fn names(&self) -> Vec<String> {
        (0..self.ports.servers.len()).map(|number| format!("{NAME}-{number}")).collect()
    }

    /// Where everything listens.
    pub(super) fn ports(&self) -> &Ports {
        &self.ports
    }

    /// The folder with what the processes wrote.
    pub(super) fn logs(&self) -> std::path::Display<'_> {
        self.run_dir.display()
    }

    /// What Usher used since it started.
    pub(super) fn usher(&self) -> Option<Usage> {
        usage(self.usher)
    }

    /// Ends everything, and removes what the processes wrote, which is only of use
    /// after a failure.
    pub(super) fn end(self) {
        let Self { group, run_dir, .. } = self;
        drop(group);
        // What can't be removed is in the way of nothing.
        let _ = fs::remove_dir_all(run_dir);
    }
}

/// A fresh folder for this run, named by its first port: runs side by side don't mix.
fn make_run_dir(dir: &Path, port: u16) -> anyhow::Result<PathBuf> {
    let make = || {
        fs::create_dir_all(dir)?;
        let run_dir = dir.canonicalize()?.join(format!("run-{port}"));
        match fs::remove_dir_all(&run_dir) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => fs::create_dir(&run_dir)?,
        }
        Ok(run_dir)
    };
    make().with_context(|| format!("cannot make a folder in {}; choose another with --dir", dir.display()))
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn sim_command(program: &Path, ports: &Ports, speed: f64, endpoints: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .args(["sim", "--name", NAME, "--model", MODEL])
        .args(["--count", &ports.servers.len().to_string()])
        .args(["--port", &ports.servers.first().copied().unwrap_or_default().to_string()])
        .args(["--time-scale", &speed.to_string()])
        .arg("--write-endpoints")
        .arg(endpoints);
    command
}

fn serve_command(program: &Path, ports: &Ports, endpoints: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .args(["serve", "--bind-address=127.0.0.1"])
        .arg(format!("--grpc-port={}", ports.extproc))
        .arg(format!("--grpc-health-port={}", ports.health))
        .arg(format!("--metrics-port={}", ports.metrics))
        .arg(format!("--admin-address={}", local(ports.admin)))
        .arg("--endpoints-file")
        .arg(endpoints);
    command
}

fn envoy_command(program: &Path, config: &Path) -> Command {
    let mut command = Command::new(program);
    // Hot restart would make demos side by side share memory; two workers are enough
    // for what one client sends.
    command.args(["--disable-hot-restart", "--concurrency", "2", "--log-level", "warning", "-c"]).arg(config);
    command
}
