//! The `usher` program as a process.

use std::net::SocketAddr;
use std::process::Stdio;

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use super::log::Log;

/// A configuration whose responses name two endpoints.
pub(crate) const WITH_FALLBACK: &str = "
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: max-score-picker
  parameters: {maxNumOfEndpoints: 2}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
  - pluginRef: max-score-picker
";

/// A running `usher serve`, and the folder with its endpoints file.
pub(crate) struct Usher {
    // Killed when dropped.
    child: Child,
    log: Log,
    folder: TempDir,
    flags: Vec<String>,
    variables: Vec<(String, String)>,
    pub(crate) address: SocketAddr,
}

impl Usher {
    /// Starts it with endpoints and further flags, and waits until it serves.
    pub(crate) async fn start(endpoints: &[SocketAddr], flags: &[&str]) -> Self {
        Self::start_in(endpoints, flags, &[]).await
    }

    /// Starts it with a role for each of the first endpoints.
    pub(crate) async fn start_with_roles(endpoints: &[SocketAddr], roles: &[&str], flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_endpoints(&folder, endpoints, roles);
        let flags = flags.iter().map(|&flag| flag.to_owned()).collect();
        Self::spawn(folder, flags, Vec::new(), 0).await
    }

    /// Starts it with environment variables.
    pub(crate) async fn start_in(
        endpoints: &[SocketAddr],
        flags: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_endpoints(&folder, endpoints, &[]);
        let flags = flags.iter().map(|&flag| flag.to_owned()).collect();
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Self::spawn(folder, flags, variables.collect(), 0).await
    }

    /// Starts it again, on the same port, after [`kill`](Self::kill).
    pub(crate) async fn restart(self) -> Self {
        Self::spawn(self.folder, self.flags, self.variables, self.address.port()).await
    }

    async fn spawn(folder: TempDir, flags: Vec<String>, variables: Vec<(String, String)>, port: u16) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_usher"))
            .args(["serve", "--bind-address=127.0.0.1", "--grpc-health-port=0", "--metrics-port=0"])
            .args(["--admin-address=off", "--zap-encoder=json", "--allow-empty-endpoints"])
            .arg(format!("--grpc-port={port}"))
            .arg(format!("--endpoints-file={}", folder.path().join("endpoints.json").display()))
            .args(&flags)
            .env_remove("NAMESPACE")
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let log = Log::follow("usher", child.stderr.take().unwrap());
        let address = log
            .find(0, "its address", |line| {
                let line: Value = serde_json::from_str(line).ok()?;
                (line["message"] == "serving").then(|| line["extproc"].as_str()?.parse().ok())?
            })
            .await;
        Self { child, log, folder, flags, variables, address }
    }

    /// Gives it other endpoints, and waits until it has seen them.
    pub(crate) async fn set_endpoints(&self, endpoints: &[SocketAddr]) {
        let start = self.log.end();
        write_endpoints(&self.folder, endpoints, &[]);
        self.log
            .find(start, "other endpoints", |line| line.contains("endpoints changed").then_some(()))
            .await;
    }

    /// The log of the program.
    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// The address of its port for `metrics`, or for `admin` where a flag opens that.
    pub(crate) async fn port(&self, of: &str) -> SocketAddr {
        self.log
            .find(0, of, |line| {
                let line: Value = serde_json::from_str(line).ok()?;
                (line["message"] == "serving").then(|| line[of].as_str()?.parse().ok())?
            })
            .await
    }

    /// The most memory that it has had, in bytes.
    #[cfg(target_os = "linux")]
    pub(crate) fn peak_memory(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id().unwrap())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
    }

    /// Ends it as an orchestrator does, and waits until it has ended.
    pub(crate) async fn terminate(&mut self) {
        self.signal("TERM").await;
        assert!(self.child.wait().await.unwrap().success());
    }

    /// Sends it a signal.
    #[allow(dead_code, reason = "not all tests use it")]
    pub(crate) async fn signal(&self, signal: &str) {
        let arguments = [format!("-{signal}"), self.child.id().unwrap().to_string()];
        assert!(Command::new("kill").args(arguments).status().await.unwrap().success());
    }

    /// Ends it without a warning.
    pub(crate) async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }
}

// Replaced as a whole, so that it is never read half written.
fn write_endpoints(folder: &TempDir, addresses: &[SocketAddr], roles: &[&str]) {
    let entry = |(number, address): (usize, &SocketAddr)| {
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        let labels = match roles.get(number) {
            Some(role) => serde_json::json!({"llm-d.ai/role": role}),
            None => serde_json::json!({}),
        };
        serde_json::json!({"name": format!("server-{port}"), "address": ip, "port": port, "labels": labels})
    };
    let endpoints: Vec<Value> = addresses.iter().enumerate().map(entry).collect();
    let new = folder.path().join("new");
    std::fs::write(&new, serde_json::json!({ "endpoints": endpoints }).to_string()).unwrap();
    std::fs::rename(new, folder.path().join("endpoints.json")).unwrap();
}
