//! Stack of a demo: simulated servers, Usher and Envoy, in processes of their own.

use std::env::current_exe;
use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::time::{Instant, sleep};

use super::children::Group;
use super::client::{Client, MODELS, Response};
use super::commands::{self, NAME, Serve, StoreServer};
use super::envoy::{self, Extras};
use super::ports::{Ports, local};
use super::trace::MODEL;
use crate::load::process::{Usage, usage};
use usher_core::request::NO_ENDPOINTS;
use usher_terminal::Progress;

/// Time to get ready, once everything is installed.
const START: Duration = Duration::from_secs(20);

/// Between two looks at whether something is ready, or still runs.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

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
    /// Store of the replicas, started before them.
    pub(super) store: Option<StoreServer>,
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
    /// Process number of each Usher.
    ushers: Vec<u32>,
    serve: Serve,
    run_dir: PathBuf,
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
        let mut sim = commands::sim(&program, &ports, speed, &endpoints);
        sim.args(&setup.servers);
        let servers = if setup.starts_empty {
            write(&endpoints, "endpoints: []\n")?;
            Some(sim)
        } else {
            group.spawn(SIM, sim, run_dir.join(SIM_LOG))?;
            // The file of endpoints is written after the last server listens.
            while !endpoints.exists() {
                group.check()?;
                sleep(POLL_INTERVAL).await;
            }
            None
        };
        let mut flags: Vec<OsString> = setup.serve.into_iter().map(OsString::from).collect();
        if let Some(text) = setup.config {
            let config = run_dir.join("config.yaml");
            write(&config, &text)?;
            flags.extend(["--allow-experimental-plugins=true".into(), "--config-file".into(), config.into()]);
        }
        if let Some(text) = setup.policy {
            let policy = run_dir.join("policy.yaml");
            write(&policy, &text)?;
            flags.extend(["--capacity-policy".into(), policy.into()]);
        }
        let serve = Serve { program, endpoints, flags };
        let mut stack = Self { group, ports, ushers: Vec::new(), serve, run_dir, speed, servers };
        if let Some(store) = setup.store {
            stack.start_store(&store).await?;
        }
        for number in 0..stack.ports.ushers().len() {
            let id = stack.spawn_usher(number)?;
            stack.ushers.push(id);
        }
        // An Envoy that finds Usher not ready asks again after two seconds.
        for number in 0..stack.ushers.len() {
            stack.usher_ready(number).await?;
        }

        let config = stack.run_dir.join("envoy.json");
        write(&config, &envoy::config(&stack.ports, Extras::AsShipped)?)?;
        stack.group.spawn("Envoy", commands::envoy(&envoy, &config), stack.run_dir.join("envoy.log"))?;
        let is_empty = stack.servers.is_some();
        // A request without a body doesn't wait. That Usher refused it shows that it was asked.
        let is_through = |response: &Response| {
            if is_empty { response.reason == NO_ENDPOINTS } else { response.status == 200 }
        };
        stack.responds(&client, stack.envoy(), MODELS, "Envoy", is_through).await?;
        Ok(stack)
    }

    async fn start_store(&mut self, store: &StoreServer) -> anyhow::Result<()> {
        self.group.spawn("the state store", store.command(&self.run_dir), self.run_dir.join("store.log"))?;
        let deadline = Instant::now() + START;
        while !store.listens() {
            self.group.check()?;
            ensure!(Instant::now() < deadline, "the state store was not ready within {} s", START.as_secs());
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    fn spawn_usher(&mut self, number: usize) -> anyhow::Result<u32> {
        let ports = *self.ports.ushers().get(number).context("there is no such Usher")?;
        let name = if number == 0 { "usher".to_owned() } else { format!("usher-{}", number + 1) };
        let log = self.run_dir.join(format!("{name}.log"));
        Ok(self.group.spawn("usher serve", self.serve.command(ports), log)?)
    }

    /// Waits until this Usher is ready.
    ///
    /// # Errors
    /// When it ends or takes too long.
    pub(super) async fn usher_ready(&mut self, number: usize) -> anyhow::Result<()> {
        let admin = self.ports.ushers().get(number).context("there is no such Usher")?.admin;
        let is_well = |response: &Response| response.status == 200;
        self.responds(&Client::default(), local(admin), "/healthz", "Usher", is_well).await
    }

    /// Kills this Usher without a warning.
    pub(super) fn kill_usher(&mut self, number: usize) {
        if let Some(id) = self.ushers.get(number) {
            self.group.end(*id);
        }
    }

    /// Starts one that was killed.
    ///
    /// # Errors
    /// When the program or its log can't be had.
    pub(super) fn restart_usher(&mut self, number: usize) -> anyhow::Result<()> {
        let id = self.spawn_usher(number)?;
        if let Some(place) = self.ushers.get_mut(number) {
            *place = id;
        }
        Ok(())
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
        let mut command = Command::new(&self.serve.program);
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
        let endpoints = &self.serve.endpoints;
        let partial = endpoints.with_extension("partial");
        write(&partial, text)?;
        fs::rename(&partial, endpoints).with_context(|| format!("cannot write {}", endpoints.display()))
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
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until one of the processes ends by itself, which is an error.
    pub(super) async fn broken(&mut self) -> anyhow::Error {
        loop {
            if let Err(error) = self.group.check() {
                return error.into();
            }
            sleep(POLL_INTERVAL).await;
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

    /// CPU time and memory that the first Usher used since it started; `None` where the system doesn't report them.
    pub(super) fn usher(&self) -> Option<Usage> {
        usage(*self.ushers.first()?)
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
