//! The doctor as a program, and what it says.

use std::process::Stdio;

use serde_json::Value;
use tokio::process::Command;

/// Exit code and output of a doctor.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs the doctor.
pub(crate) async fn doctor(flags: &[&str]) -> Said {
    doctor_with(flags, &[]).await
}

async fn doctor_with(flags: &[&str], environment: &[(&str, &str)]) -> Said {
    let output = Command::new(env!("CARGO_BIN_EXE_usher"))
        .arg("doctor")
        .args(flags)
        .env_remove("NAMESPACE")
        .env("LC_ALL", "C")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Said { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Runs it, for its JSON.
pub(crate) async fn examined(flags: &[&str]) -> Examined {
    examined_with(flags, &[]).await
}

/// The same in an environment.
pub(crate) async fn examined_with(flags: &[&str], environment: &[(&str, &str)]) -> Examined {
    let said = doctor_with(&[flags, &["--output", "json"]].concat(), environment).await;
    let report = serde_json::from_str(&said.stdout).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    Examined { code: said.code, report }
}

/// The doctor's JSON.
#[derive(Debug)]
pub(crate) struct Examined {
    pub(crate) code: i32,
    pub(crate) report: Value,
}

impl Examined {
    fn check(&self, name: &str) -> &Value {
        let checks = self.report["checks"].as_array().unwrap();
        checks.iter().find(|check| check["check"] == name).unwrap_or_else(|| panic!("no check {name}"))
    }

    /// Outcome of a check.
    pub(crate) fn status(&self, name: &str) -> &str {
        self.check(name)["status"].as_str().unwrap()
    }

    /// Detail of a check, or the reason why it was skipped.
    pub(crate) fn detail(&self, name: &str) -> &str {
        let check = self.check(name);
        check["detail"].as_str().or(check["reason"].as_str()).unwrap()
    }

    /// Codes of all findings, each once, sorted.
    pub(crate) fn codes(&self) -> Vec<&str> {
        let checks = self.report["checks"].as_array().unwrap();
        let findings = checks.iter().flat_map(|check| check["findings"].as_array().unwrap());
        let mut codes: Vec<&str> = findings.map(|finding| finding["code"].as_str().unwrap()).collect();
        codes.sort_unstable();
        codes.dedup();
        codes
    }

    /// The first finding with this code.
    pub(crate) fn finding(&self, code: &str) -> &Value {
        let checks = self.report["checks"].as_array().unwrap();
        let mut findings = checks.iter().flat_map(|check| check["findings"].as_array().unwrap());
        findings
            .find(|finding| finding["code"] == code)
            .unwrap_or_else(|| panic!("no {code}: {:#}", self.report))
    }
}
