//! The processes of a run: servers, Usher and Envoy, all of them fresh.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tokio::time::sleep;
use usher_lab::cli::demo::children::Group;
use usher_lab::cli::demo::envoy::{self, Extras};
use usher_lab::cli::demo::ports::{Ports, local};

use super::arguments::{Arguments, PolicyName};
use super::client::Client;
use super::commands::{self, NAME, Place};
use super::metrics::{self, FirstTokens};
use super::processes::{self, SETTLE, command, until_listed, until_ready, with_endpoints, write};

/// Paths and ports of a run.
#[derive(Debug)]
pub struct Stage {
    place: Place,
    folder: PathBuf,
    /// Process group of Envoy's installation.
    group: Group,
}

/// Running processes. Dropped, it ends them.
#[derive(Debug)]
pub struct Running {
    group: Group,
    gateway: SocketAddr,
    servers: Vec<SocketAddr>,
    /// Names and numbers of the processes.
    processes: Vec<(&'static str, u32)>,
}

impl Stage {
    /// Installs Envoy if need be. What the processes write goes into a folder in `scratch`.
    ///
    /// # Errors
    /// Returns an error that says in one line what is missing, and why.
    pub async fn new(scratch: &Path, arguments: &Arguments) -> anyhow::Result<Self> {
        let ports = Ports::choose(0, arguments.servers)?;
        let folder = processes::folder(scratch, &format!("live-{}", ports.envoy))?;
        let group = Group::new(&folder)?;
        let envoy = envoy::install(&arguments.envoy_dir, group.id(), || eprintln!("fetching Envoy")).await?;
        let file = |name: &str| folder.join(name).to_string_lossy().into_owned();
        let place = Place {
            usher: env!("CARGO_BIN_EXE_usher").to_owned(),
            envoy: envoy.to_string_lossy().into_owned(),
            config: file("config.yaml"),
            endpoints: file("endpoints.yaml"),
            envoy_config: file("envoy.json"),
            ports,
        };
        write(&place.envoy_config, &envoy::config(&place.ports, Extras::None)?)?;
        Ok(Self { place, folder, group })
    }

    /// Starts everything and waits until a request gets through.
    ///
    /// # Errors
    /// Returns an error that says in one line what didn't start, and why.
    pub async fn start(
        &self,
        arguments: &Arguments,
        cell: &usher::replay::Cell,
        policy: PolicyName,
        client: &Client,
    ) -> anyhow::Result<Running> {
        let place = &self.place;
        let _ = fs::remove_file(&place.endpoints);
        let mut group = Group::new(&self.folder)?;
        let log = |name: &str| self.folder.join(format!("{name}.log"));
        let sim = command(&commands::servers(place, arguments, cell));
        let sim = group.spawn("usher sim", sim, log("sim"))?;
        until_listed(&mut group, &place.endpoints).await?;
        if let Some(text) = policy.configuration() {
            write(&place.config, &with_endpoints(text, &place.endpoints)?)?;
        }
        let usher = group.spawn("usher serve", command(&commands::usher(place, policy)), log("usher"))?;
        let envoy = group.spawn(
            "Envoy",
            command(&processes::envoy(&place.envoy, &place.envoy_config, 1)),
            log("envoy"),
        )?;
        let processes = vec![("servers", sim), ("Usher", usher), ("Envoy", envoy)];
        let servers = place.ports.servers.iter().copied().map(local).collect();
        let mut running = Running { group, gateway: local(place.ports.envoy), servers, processes };
        running.ready(client).await?;
        sleep(SETTLE).await;
        Ok(running)
    }

    /// The folder with what the processes wrote.
    pub fn logs(&self) -> std::path::Display<'_> {
        self.folder.display()
    }

    /// Removes what was written, which is of use after a failure only.
    pub fn end(self) {
        drop(self.group);
        // What can't be removed is in the way of nothing.
        let _ = fs::remove_dir_all(self.folder);
    }
}

impl Running {
    /// Address that requests are sent to.
    pub fn gateway(&self) -> SocketAddr {
        self.gateway
    }

    /// Name of the servers, before their number.
    pub fn name(&self) -> &'static str {
        NAME
    }

    /// Names and numbers of the processes.
    pub fn processes(&self) -> &[(&'static str, u32)] {
        &self.processes
    }

    /// Times to first token as the engines counted them, of all servers.
    ///
    /// # Errors
    /// Returns an error if a server doesn't respond.
    pub async fn first_tokens(&self, client: &Client) -> anyhow::Result<FirstTokens> {
        let mut all = FirstTokens::default();
        for server in &self.servers {
            let (_, page) = client.get(*server, "/metrics").await?;
            all.add(metrics::first_tokens(&String::from_utf8_lossy(&page)));
        }
        Ok(all)
    }

    /// Checks that everything runs.
    ///
    /// # Errors
    /// Returns an error that names what ended by itself.
    pub fn check(&mut self) -> anyhow::Result<()> {
        Ok(self.group.check()?)
    }

    async fn ready(&mut self, client: &Client) -> anyhow::Result<()> {
        let gateway = self.gateway;
        let look = || async move {
            match client.get(gateway, "/v1/models").await {
                Ok((200, _)) => Ok(()),
                Ok((status, _)) => Err(format!("the last response was {status}")),
                Err(error) => Err(format!("{error:#}")),
            }
        };
        until_ready(&mut self.group, "Envoy", look).await
    }
}
