//! On what the numbers were measured.

use std::fs;
use std::process::Command;
use std::thread::available_parallelism;

/// Machine and versions, for the report.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// Cores that may be used.
    pub cores: usize,
    /// Memory, in GiB.
    pub memory_gib: f64,
    /// Release of the kernel.
    pub kernel: String,
    /// Version of the compiler.
    pub rustc: String,
    /// Version of Envoy.
    pub envoy: String,
    /// Commit of the repository, and whether it has been changed since.
    pub commit: String,
    /// Day, in UTC.
    pub day: String,
}

impl Machine {
    /// Reads them; what can't be had is called unknown.
    pub fn read(envoy: &str) -> Self {
        let cpu = file("/proc/cpuinfo").and_then(|text| field(&text, "model name"));
        let memory = file("/proc/meminfo").and_then(|text| field(&text, "MemTotal"));
        let kib: f64 =
            memory.and_then(|text| text.split_whitespace().next()?.parse().ok()).unwrap_or_default();
        Self {
            cpu: cpu.unwrap_or_else(unknown),
            cores: available_parallelism().map_or(0, usize::from),
            memory_gib: kib / 1024.0 / 1024.0,
            kernel: file("/proc/sys/kernel/osrelease").unwrap_or_else(unknown),
            rustc: said("rustc", &["--version"]).unwrap_or_else(unknown),
            envoy: said(envoy, &["--version"]).as_deref().map_or_else(unknown, envoy_version),
            commit: commit().unwrap_or_else(unknown),
            day: said("date", &["-u", "+%F"]).unwrap_or_else(unknown),
        }
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn file(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// `name : value`, the first of that name.
fn field(text: &str, name: &str) -> Option<String> {
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(found, _)| found.trim() == name).map(|(_, value)| value.trim().to_owned())
}

fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Version and build of Envoy from `/PATH/envoy  version: COMMIT/1.40.0/Clean/RELEASE/BoringSSL`.
pub fn envoy_version(text: &str) -> String {
    let version = text.rsplit_once("version:").map_or(text, |(_, version)| version);
    version.split('/').nth(1).unwrap_or(version).trim().to_owned()
}

fn commit() -> Option<String> {
    let commit = said("git", &["rev-parse", "--short=12", "HEAD"])?;
    // What an earlier run wrote is no change of what is measured.
    let but = [":!docs/contributing/benchmarks.md", ":!docs/contributing/benchmarks"];
    let changed = said("git", &["status", "--porcelain", "--untracked-files=no", "--", ".", but[0], but[1]])?;
    Some(if changed.is_empty() { commit } else { format!("{commit}, with changes") })
}
