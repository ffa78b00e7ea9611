//! Location of the benchmark target `limit`.

use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde_json::Value;

use super::pickers::LIMIT;

/// Builds the limit in the profile in which this program and Usher were built, and tells
/// its path. Cargo names it in what it writes for programs; the file's name has a hash.
///
/// # Errors
/// Returns an error if it can't be built; cargo has printed the reason.
pub fn build() -> anyhow::Result<String> {
    // Set by cargo when it runs a benchmark.
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args([
            "bench",
            "--no-run",
            "--locked",
            "--quiet",
            "--bench",
            LIMIT,
            "--message-format=json-render-diagnostics",
        ])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo to build the limit")?;
    if !output.status.success() {
        bail!("cargo could not build the limit ({})", output.status);
    }
    executable(&String::from_utf8_lossy(&output.stdout)).context("cargo did not say where the limit is")
}

fn executable(messages: &str) -> Option<String> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages.filter(|message| message["target"]["name"] == LIMIT).find_map(|message| {
        let path = message["executable"].as_str()?;
        Some(path.to_owned())
    })
}
