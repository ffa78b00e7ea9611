//! `usher serve` as a process of its own, whose memory can be measured.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::support::{Connection, Picker};

/// The flag of a process whose port for ext_proc has TLS.
pub const TLS: &str = "--secure-serving=true";

/// The flag of a process with a port for administration.
pub const ADMIN: &str = "--admin-address=127.0.0.1:0";

/// A picker in a process of its own, which is killed when dropped.
pub struct Process {
    child: Child,
    pub extproc: SocketAddr,
    pub health: SocketAddr,
    pub metrics: SocketAddr,
    /// Addresses of the ports for administration and KEDA, where flags open these.
    pub admin: Option<SocketAddr>,
    pub keda: Option<SocketAddr>,
    endpoints: PathBuf,
    /// Lines of its log since it serves.
    lines: Arc<Mutex<Vec<String>>>,
    _folder: tempfile::TempDir,
}

/// Variable with the path of another build to test, such as a release.
pub const PROGRAM: &str = "USHER_BIN";

/// Path of the program to test.
pub fn program() -> String {
    std::env::var(PROGRAM).unwrap_or_else(|_| env!("CARGO_BIN_EXE_usher").to_owned())
}

impl Process {
    /// One that may take so many MiB, over a file of so many endpoints.
    pub fn start(budget: usize, endpoints: usize, flags: &[&str]) -> Self {
        Self::start_by(Command::new(program()), budget, endpoints, flags)
    }

    /// The same, which may have so many open files, and half as many if it doesn't ask for more.
    pub fn start_with_files(files: usize, budget: usize, endpoints: usize, flags: &[&str]) -> Self {
        let mut shell = Command::new("sh");
        let limits = format!("ulimit -Sn {} && ulimit -Hn {files} && exec \"$0\" \"$@\"", files / 2);
        shell.args(["-c", &limits, &program()]);
        Self::start_by(shell, budget, endpoints, flags)
    }

    fn start_by(mut program: Command, budget: usize, endpoints: usize, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("endpoints.yaml");
        write(&file, endpoints);
        let mut child = program
            .args(["serve", "--bind-address=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0"])
            .args(["--metrics-port=0", "--metrics-endpoint-auth=false"])
            .args(Some("--admin-address=off").filter(|_| !flags.contains(&ADMIN)))
            .args(["--zap-encoder=json", "--outlier-detection=false"])
            .args(Some("--secure-serving=false").filter(|_| !flags.contains(&TLS)))
            .arg(format!("--memory-budget={budget}Mi"))
            .arg(format!("--endpoints-file={}", file.display()))
            .args(flags)
            .env_remove("NAMESPACE")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let addresses = loop {
            let mut line = String::new();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "it ended before it served");
            let line: serde_json::Value = serde_json::from_str(&line).unwrap();
            let address = |field: &str| line[field].as_str().map(|address| address.parse().unwrap());
            if line["message"] == "serving" {
                break ["extproc", "health", "metrics", "admin", "keda"].map(address);
            }
        };
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let written = Arc::clone(&lines);
        std::thread::spawn(move || {
            log.lines().map_while(Result::ok).for_each(|line| written.lock().unwrap().push(line))
        });
        let [extproc, health, metrics, admin, keda] = addresses;
        let [extproc, health, metrics] = [extproc, health, metrics].map(Option::unwrap);
        Self { child, extproc, health, metrics, admin, keda, endpoints: file, lines, _folder: folder }
    }

    /// Makes so many endpoints the pool.
    pub fn scale(&self, endpoints: usize) {
        write(&self.endpoints, endpoints);
    }

    pub async fn connect(&self) -> Connection {
        Connection::to(self.extproc).await
    }

    pub async fn connections(&self, count: usize) -> Vec<Connection> {
        let mut connections = Vec::new();
        for _ in 0..count {
            connections.push(self.connect().await);
        }
        connections
    }

    /// The value of a metric, 0 where it is missing.
    pub fn metric(&self, series: &str) -> f64 {
        Picker::metric_of(self.metrics, series).unwrap_or_default()
    }

    /// Metrics at one moment: a page takes a while, and what is counted moves.
    pub fn page(&self) -> Page {
        Page(Picker::get(self.metrics, "/metrics"))
    }

    /// Limit of everything that is counted, in bytes.
    pub fn limit(&self) -> f64 {
        self.page().limit()
    }

    /// Counted memory of requests, all kinds together, in bytes.
    pub fn held(&self) -> f64 {
        self.page().held()
    }

    /// Lines of its log that have this text, since it serves.
    pub fn logged(&self, text: &str) -> usize {
        self.lines.lock().unwrap().iter().filter(|line| line.contains(text)).count()
    }

    /// Log lines that are warnings or errors.
    pub fn warnings(&self) -> Vec<String> {
        let lines = self.lines.lock().unwrap();
        lines.iter().filter(|line| line.contains("WARN") || line.contains("ERROR")).cloned().collect()
    }

    /// The most memory that it has had, in bytes.
    pub fn peak(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
    }
}

/// A page of metrics.
pub struct Page(String);

impl Page {
    /// The value of a metric, 0 where it is missing.
    pub fn metric(&self, series: &str) -> f64 {
        Picker::value_in(&self.0, series).unwrap_or_default()
    }

    /// Number of series of a family with labels.
    pub fn series(&self, family: &str) -> usize {
        let is_of = |line: &&str| line.strip_prefix(family).is_some_and(|rest| rest.starts_with('{'));
        self.0.lines().filter(is_of).count()
    }

    /// Number of lines with this text.
    pub fn count(&self, text: &str) -> usize {
        self.0.lines().filter(|line| line.contains(text)).count()
    }

    /// Limit of everything that is counted, in bytes.
    pub fn limit(&self) -> f64 {
        self.metric("usher_memory_limit_bytes")
    }

    /// Counted memory of requests, all kinds together, in bytes.
    pub fn held(&self) -> f64 {
        self.metric("usher_memory_bodies_bytes") + self.metric("usher_memory_streams_bytes")
    }

    /// Requests that were refused for want of memory.
    pub fn refused(&self) -> usize {
        self.metric("usher_memory_refused_total") as usize
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write(file: &std::path::Path, endpoints: usize) {
    let entries = (1..=endpoints).map(|i| format!("- {{name: pod-{i}, address: 127.0.0.{i}, port: '1'}}\n"));
    let text = format!("endpoints:\n{}", entries.collect::<String>());
    let written = file.with_extension("new");
    std::fs::write(&written, if endpoints == 0 { "endpoints: []".to_owned() } else { text }).unwrap();
    std::fs::rename(written, file).unwrap();
}
