//! A real Prometheus.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;

use http::Request;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::support::client::{self, Protocol};
use crate::support::log::Log;

/// A running Prometheus, which scrapes every second.
pub(crate) struct Prometheus {
    // Killed when dropped.
    _child: Child,
    _folder: TempDir,
    _log: Log,
    address: SocketAddr,
}

impl Prometheus {
    /// Starts one that scrapes these jobs, each as the pod of its name, and evaluates the rules of this text.
    pub(crate) async fn start(jobs: &[(&str, SocketAddr)], rules: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let job = |(name, address): &(&str, SocketAddr)| {
            format!(
                "- {{job_name: {name}, static_configs: [{{targets: ['{address}'], labels: {{pod: {name}}}}}]}}\n"
            )
        };
        let jobs: String = jobs.iter().map(job).collect();
        let global = "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}";
        let text = format!("{global}\nrule_files: [rules.yaml]\nscrape_configs:\n{jobs}");
        let config = folder.path().join("prometheus.yaml");
        std::fs::write(&config, text).unwrap();
        std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
        let mut child = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg("--web.listen-address=127.0.0.1:0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let log = Log::follow("Prometheus", child.stderr.take().unwrap());
        let address = log
            .find(0, "its address", |line| {
                line.split_once("\"Listening on\" address=")?.1.trim().parse().ok()
            })
            .await;
        log.find(0, "its start", |line| line.contains("Server is ready").then_some(())).await;
        Self { _child: child, _folder: folder, _log: log, address }
    }

    /// The series that an expression returns now, with their labels.
    pub(crate) async fn query(&self, expression: &str) -> Vec<Value> {
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric();
        let encoded: String = expression
            .as_bytes()
            .iter()
            .map(|byte| if is_plain(byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") })
            .collect();
        let request = Request::get(format!("/api/v1/query?query={encoded}")).body(client::empty()).unwrap();
        let mut response = client::send(self.address, Protocol::Http1, request).await.json();
        assert_eq!(response["status"], "success", "{expression}: {response}");
        serde_json::from_value(response["data"]["result"].take()).unwrap()
    }

    /// Returns `true` if an expression has returned anything since the start.
    pub(crate) async fn has_had(&self, expression: &str) -> bool {
        !self.query(&format!("last_over_time(({expression})[20m:1s])")).await.is_empty()
    }

    /// Alerts that fire.
    pub(crate) async fn firing(&self) -> Vec<String> {
        let alerts = self.query("ALERTS{alertstate=\"firing\"}").await;
        alerts.iter().map(|alert| alert["metric"]["alertname"].as_str().unwrap().to_owned()).collect()
    }
}

/// Returns `true` if this machine has a Prometheus; CI has to have one.
#[expect(clippy::print_stdout, reason = "says why nothing is tested")]
pub(crate) fn is_installed() -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name| std::env::split_paths(&paths).any(|folder: PathBuf| folder.join(name).is_file());
    let found = ["prometheus", "promtool"].into_iter().all(is_there);
    if !found {
        let why = "no prometheus and promtool on the PATH; the package prometheus of Debian has both";
        assert!(std::env::var_os("CI").is_none(), "{why}");
        println!("NOT TESTED: {why}");
    }
    found
}
