//! The scripts that CI runs.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

/// Runs a program of this text with a second as the limit.
fn limited(text: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    Command::new("deploy/ci/limit.sh").arg(program).env("TEST_LIMIT", "1").output().unwrap()
}

#[test]
fn hanging_tests_are_ended_and_named() {
    let hung = "echo 'test one ... ok'
        for name in two three; do echo \"test $name has been running for over 60 seconds\"; done
        echo 'test two ... ok'
        sleep 60";
    let Output { status, stdout, stderr } = limited(hung);
    assert_eq!(status.code(), Some(124));
    assert!(String::from_utf8(stdout).unwrap().ends_with("test two ... ok\n"));
    let stderr = String::from_utf8(stderr).unwrap();
    assert!(
        stderr.ends_with("did not end within 1 s (TEST_LIMIT). It was still running:\n  three\n"),
        "{stderr}"
    );
}

#[test]
fn limited_program_keeps_its_exit_code() {
    for code in [0, 1, 101] {
        let Output { status, stderr, .. } = limited(&format!("exit {code}"));
        assert_eq!((status.code(), stderr), (Some(code), Vec::new()));
    }
}
