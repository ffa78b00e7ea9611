//! Runs of the program and files for it.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

pub(crate) const TRACE: &str = "tests/data/mooncake.jsonl";
pub(crate) const DEFAULT: &str = "deploy/config/default.yaml";

pub(crate) struct Files(tempfile::TempDir);

impl Files {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

/// Runs `usher replay` in the folder of the sources.
pub(crate) fn usher(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_usher"))
        .arg("replay")
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .output()
        .unwrap()
}

/// Standard output of a run that succeeds and has nothing to say elsewhere.
pub(crate) fn text(arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = usher(arguments);
    let stderr = String::from_utf8(stderr).unwrap();
    assert!(status.success(), "{arguments:?}: {stderr}");
    assert_eq!(stderr, "", "progress is for terminals");
    String::from_utf8(stdout).unwrap()
}

pub(crate) fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&text(&[arguments, &["--output", "json"]].concat())).unwrap()
}

pub(crate) fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}
