//! `usher load` from outside: its report about servers whose behaviour is known.

mod arguments;
mod direct;
mod failures;
mod fake;
mod gateway;

use std::process::{Output, Stdio};

use serde_json::Value;
use tokio::process::{Child, Command};

use crate::support;

/// Starts it; the report will be JSON.
fn spawn(target: &str, arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_usher"))
        .args(["load", "--output", "json", "--target", target])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

async fn ended(child: Child) -> Output {
    tokio::time::timeout(support::PATIENCE, child.wait_with_output()).await.unwrap().unwrap()
}

/// The report of a run, which must be made. The exit code says whether requests failed.
async fn report(child: Child) -> Value {
    let output = ended(child).await;
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let count = |value: &Value| value.as_u64().unwrap_or_default();
    let failed = count(&report["requests"]["failed"]) - count(&report["errors"]["interrupted"]);
    assert_eq!(output.status.code(), Some(i32::from(failed > 0)), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    // No progress where there is no terminal.
    assert_eq!(said.lines().count(), usize::from(failed > 0), "{said}");
    assert_eq!(said.contains(" requests failed"), failed > 0, "{said}");
    report
}

/// The report of a whole run.
pub(crate) async fn load(target: impl ToString, arguments: &[&str]) -> Value {
    report(spawn(&target.to_string(), arguments)).await
}

/// The error of a run that can't be made, and its exit code.
async fn refusal(target: impl ToString, arguments: &[&str]) -> (String, i32) {
    let output = ended(spawn(&target.to_string(), arguments)).await;
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.stdout.is_empty(), "{error}");
    let is_of_clap = error.ends_with("\n\nsee `usher load --help`\n");
    assert!(is_of_clap || error.lines().count() == 1, "{error}");
    (error, output.status.code().unwrap())
}

/// Asserts how many requests were due, completed and failed.
#[track_caller]
pub(crate) fn assert_requests(report: &Value, completed: u64, failed: u64) {
    let want = serde_json::json!({"due": completed + failed, "completed": completed, "failed": failed});
    assert_eq!(report["requests"], want, "{report:#}");
}
