//! Compiles `proto/` with protox, so that no `protoc` has to be installed.

use std::error::Error;
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    say_commit();
    let files = protox::compile(["health.proto"], ["proto"])?;
    tonic_prost_build::configure().build_client(false).bytes(".").compile_fds(files)?;
    // With the client that its tests ask with.
    let files = protox::compile(["externalscaler.proto"], ["proto"])?;
    tonic_prost_build::configure().build_transport(false).compile_fds(files)?;
    // Messages only: they are sent as they are.
    let files = protox::compile(["otlp_trace.proto"], ["proto"])?;
    tonic_prost_build::configure().build_client(false).build_server(false).compile_fds(files)?;
    Ok(())
}

/// Tells a release which commit it is built from, unless USHER_COMMIT says so. Other builds aren't told: each commit
/// would make them compile everything anew.
fn say_commit() {
    println!("cargo:rerun-if-env-changed=USHER_COMMIT");
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if !is_release || std::env::var_os("USHER_COMMIT").is_some() {
        return;
    }
    // Of this repository, and of none that the sources were unpacked into.
    let Some(top) = git(&["rev-parse", "--show-toplevel"]) else { return };
    if std::fs::canonicalize(top).ok() != std::env::current_dir().and_then(std::fs::canonicalize).ok() {
        return;
    }
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD".to_owned()].into_iter().chain(branch) {
        // A branch without a file of its own is in packed-refs, and gets one with the next commit.
        if let Some(path) = git(&["rev-parse", "--git-path", &name]) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    if let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) {
        println!("cargo:rustc-env=USHER_COMMIT={commit}");
    }
}

/// Output of git, empty without git or a repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !said.is_empty()).then_some(said)
}
