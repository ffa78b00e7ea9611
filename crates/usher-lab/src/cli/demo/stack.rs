//! Stack of a demo: simulated servers, Usher and Envoy, in processes of their own.

use std::env::current_exe;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::time::{Instant, sleep};

use super::children::Group;
use super::client::{Client, MODELS, Response};
use super::envoy::{self, Extras};
use super::ports::{Ports, local};
use super::trace::MODEL;
use crate::load::process::{Usage, usage};
use usher_core::request::NO_ENDPOINTS;
use usher_terminal::Progress;

/// Time to get ready, once everything is installed.
const START: Duration = Duration::from_secs(20);

/// Between two looks at whether something is ready, or still runs.
const LOOK: Duration = Duration::from_millis(50);

/// Simulated servers are called this and their number.
const NAME: &str = "sim";

/// The process of all servers, and what it writes.
const SIM: &str = "usher sim";
const SIM_LOG: &str = "sim.log";

/// Parameters of a stack.
#[derive(Debug)]
pub(super) struct Plan {
    /// Folder for Envoy and for what the processes need and write.
    pub(super) dir: PathBuf,
    /// Ports that everything listens on.
    pub(super) ports: Ports,
    /// Simulated seconds per second in the servers.
    pub(super) speed: f64,
    /// Settings particular to a scenario.
    pub(super) setup: Setup,
}

/// Settings particular to a scenario.
#[derive(Debug, Default)]
pub(super) struct Setup {
    /// More flags for the servers.
    pub(super) servers: Vec<String>,
    /// Usher's configuration; `None`: the built-in one.
    pub(super) config: Option<String>,
    /// The servers are started later, with [`Stack::start_servers`].
    pub(super) starts_empty: bool,
    /// More flags for Usher.
    pub(super) serve: Vec<String>,
    /// Usher's capacity policies.
    pub(super) policy: Option<String>,
}

/// A server with a process of its own.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerProcess {
    /// Port that it listens on.
    pub(super) port: u16,
    /// The number of its process.
    pub(super) id: u32,
}

/// The running processes. Dropped, it ends them.
#[derive(Debug)]
pub(super) struct Stack {
    group: Group,
    ports: Ports,
    usher: u32,
    run_dir: PathBuf,
    /// The file that says which servers there are.
    endpoints: PathBuf,
    speed: f64,
    /// The servers, until they are started.
    servers: Option<Command>,
}

impl Stack {
    /// Installs what is missing, starts everything, and waits until a request gets
    /// through.
    ///
    /// # Errors
    /// Returns an error that says in one line what didn't start, and why.
    pub(super) async fn start(plan: Plan, progress: &mut Progress) -> anyhow::Result<Self> {
        let Plan { dir, ports, speed, setup } = plan;
        let run_dir = make_run_dir(&dir, ports.envoy)?;
        let mut group = Group::new(&run_dir)?;

        let fetching = || progress.update("fetching Envoy, which takes a while");
        let envoy = envoy::install(&dir, group.id(), fetching).await?;

        progress.step("starting servers, Usher and Envoy");
        let client = Client::default();
        let program = current_exe().context("cannot find the path of this program")?;
        let endpoints = run_dir.join("endpoints.yaml");
        let mut sim = sim_command(&program, &ports, speed, &endpoints);
        sim.args(&setup.servers);
        let servers = if setup.starts_empty {
            write(&endpoints, "endpoints: []\n")?;
            Some(sim)
        } else {
            group.spawn(SIM, sim, run_dir.join(SIM_LOG))?;
            // The file of endpoints is written after the last server listens.
            while !endpoints.exists() {
                group.check()?;
                sleep(LOOK).await;
            }
            None
        };
        let mut serve = serve_command(&program, &ports, &endpoints);
        serve.args(&setup.serve);
        if let Some(text) = setup.config {
            let config = run_dir.join("config.yaml");
            write(&config, &text)?;
            serve.arg("--allow-experimental-plugins=true").arg("--config-file").arg(config);
        }
        if let Some(text) = setup.policy {
            let policy = run_dir.join("policy.yaml");
            write(&policy, &text)?;
            serve.arg("--capacity-policy").arg(policy);
        }
        let usher = group.spawn("usher serve", serve, run_dir.join("usher.log"))?;
        let mut stack = Self { group, ports, usher, run_dir, endpoints, speed, servers };
        // An Envoy that finds Usher not ready asks again after two seconds.
        let is_well = |response: &Response| response.status == 200;
        stack.responds(&client, local(stack.ports.admin), "/healthz", "Usher", is_well).await?;

        let config = stack.run_dir.join("envoy.json");
        write(&config, &envoy::config(&stack.ports, Extras::AsShipped)?)?;
        stack.group.spawn("Envoy", envoy_command(&envoy, &config), stack.run_dir.join("envoy.log"))?;
        let is_empty = stack.servers.is_some();
        // A request without a body doesn't wait. That Usher refused it shows that it was asked.
        let is_through = |response: &Response| {
            if is_empty { response.reason == NO_ENDPOINTS } else { response.status == 200 }
        };
        stack.responds(&client, stack.envoy(), MODELS, "Envoy", is_through).await?;
        Ok(stack)
    }

    /// Starts the servers of a setup that starts empty.
    ///
    /// # Errors
    /// Returns an error if the program can't be started or its log can't be created.
    pub(super) fn start_servers(&mut self) -> anyhow::Result<()> {
        if let Some(servers) = self.servers.take() {
            self.group.spawn(SIM, servers, self.run_dir.join(SIM_LOG))?;
        }
        Ok(())
    }

    /// Starts a server of this name, which takes requests after `startup`, in its own time. Nobody
    /// knows of it until it is in the file of endpoints.
    ///
    /// # Errors
    /// Returns an error if the program can't be started or its log can't be created.
    pub(super) fn start_server(
        &mut self,
        name: &str,
        port: u16,
        startup: Duration,
    ) -> anyhow::Result<ServerProcess> {
        let program = current_exe().context("cannot find the path of this program")?;
        let mut command = Command::new(program);
        command
            .args(["sim", "--name", name, "--model", MODEL])
            .args(["--port", &port.to_string()])
            .args(["--speed", &self.speed.to_string()])
            .args(["--startup", &format!("{}ms", startup.as_millis())]);
        let id = self.group.spawn(name, command, self.run_dir.join(format!("{name}.log")))?;
        Ok(ServerProcess { port, id })
    }

    /// Ends a server and all its connections.
    pub(super) fn end_server(&mut self, server: &ServerProcess) {
        self.group.end(server.id);
    }

    /// Says which servers there are, in one go: Usher never sees half of it.
    ///
    /// # Errors
    /// Returns an error if the file can't be written.
    pub(super) fn write_endpoints(&self, text: &str) -> anyhow::Result<()> {
        let partial = self.endpoints.with_extension("partial");
        write(&partial, text)?;
        fs::rename(&partial, &self.endpoints)
            .with_context(|| format!("cannot write {}", self.endpoints.display()))
    }

    /// Checks that everything runs.
    ///
    /// # Errors
    /// Returns an error that names what ended by itself.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        Ok(self.group.check()?)
    }

    /// Waits until `name` responds at a page as it should.
    async fn responds(
        &mut self,
        client: &Client,
        at: SocketAddr,
        path: &str,
        name: &str,
        is_ready: impl Fn(&Response) -> bool,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + START;
        loop {
            let last = match client.get(at, path).await {
                Ok(response) if is_ready(&response) => return Ok(()),
                Ok(response) => format!("the last response was {}", response.status),
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

    /// Address that requests go to.
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

    /// Ports that everything listens on.
    pub(super) fn ports(&self) -> &Ports {
        &self.ports
    }

    /// The folder with what the processes wrote.
    pub(super) fn logs(&self) -> std::path::Display<'_> {
        self.run_dir.display()
    }

    /// CPU time and memory that Usher used since it started; `None` where the system doesn't report them.
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
        .args(["--speed", &speed.to_string()])
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
        // The demo that scales to zero means it.
        .arg("--allow-empty-endpoints")
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
