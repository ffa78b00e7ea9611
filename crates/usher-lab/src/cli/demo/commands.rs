//! Commands of the processes of a demo.

use std::ffi::OsString;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::ports::{Ports, UsherPorts, local};
use super::trace::MODEL;

/// Simulated servers are called this and their number.
pub(super) const NAME: &str = "sim";

/// Simulated servers, which write the file `endpoints` when they listen.
pub(super) fn sim(program: &Path, ports: &Ports, speed: f64, endpoints: &Path) -> Command {
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

/// Parts that the commands of all Ushers of a demo have in common.
#[derive(Debug)]
pub(super) struct Serve {
    pub(super) program: PathBuf,
    /// The file that says which servers there are.
    pub(super) endpoints: PathBuf,
    /// Flags of the scenario.
    pub(super) flags: Vec<OsString>,
}

impl Serve {
    /// Usher at these ports.
    pub(super) fn command(&self, ports: UsherPorts) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(["serve", "--bind-address=127.0.0.1"])
            .arg(format!("--grpc-port={}", ports.extproc))
            .arg(format!("--grpc-health-port={}", ports.health))
            .arg(format!("--metrics-port={}", ports.metrics))
            .arg(format!("--admin-address={}", local(ports.admin)))
            // The demo that scales to zero means it.
            .arg("--allow-empty-endpoints")
            .arg("--endpoints-file")
            .arg(&self.endpoints)
            .args(&self.flags);
        command
    }
}

/// Envoy with a configuration.
pub(super) fn envoy(program: &Path, config: &Path) -> Command {
    let mut command = Command::new(program);
    // Hot restart would make demos side by side share memory; two workers are enough
    // for what one client sends.
    command.args(["--disable-hot-restart", "--concurrency", "2", "--log-level", "warning", "-c"]).arg(config);
    command
}

/// A Redis or Valkey that a demo starts.
#[derive(Debug, Clone)]
pub(super) struct StoreServer {
    pub(super) program: PathBuf,
    pub(super) port: u16,
}

impl StoreServer {
    /// The server, which keeps nothing and writes only to `dir`.
    pub(super) fn command(&self, dir: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(["--bind", "127.0.0.1", "--port", &self.port.to_string()])
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(dir);
        command
    }

    /// Returns `true` if it takes connections.
    pub(super) fn listens(&self) -> bool {
        TcpStream::connect(local(self.port)).is_ok()
    }
}
