//! The configurations under deploy/config: each is valid, and does what it is for, with
//! simulated servers behind a picker that is asked over gRPC.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "examples/pool.rs"]
mod pool;
#[path = "support/mod.rs"]
#[allow(dead_code, reason = "shared with tests that need more of it")]
mod support;
#[path = "wire/support.rs"]
#[allow(dead_code, reason = "shared with tests that need more of it")]
mod wire;

use std::path::PathBuf;

use pool::{Pod, Pool};
use prometheus::Registry;
use usher::cli::check::{CheckArgs, Output, run_with};
use usher::config::EndpointPickerConfig;
use usher::schedule::registry::Pipeline;
use usher::schedule::{SchedulerMetrics, State};

const FOLDER: &str = "deploy/config";

/// The examples, by the names of their files without the ending.
fn examples() -> Vec<String> {
    let entries = std::fs::read_dir(FOLDER).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<String> = entries
        .map(|path| {
            assert_eq!(path.extension().unwrap(), "yaml", "{}", path.display());
            path.file_stem().unwrap().to_str().unwrap().to_owned()
        })
        .collect();
    names.sort();
    names
}

fn path(example: &str) -> PathBuf {
    PathBuf::from(format!("{FOLDER}/{example}.yaml"))
}

/// Whether a file says that it needs the flag.
fn needs_experimental(example: &str) -> bool {
    std::fs::read_to_string(path(example)).unwrap().contains("--allow-experimental-plugins")
}

#[test]
fn every_example_is_valid_and_says_which_flag_it_needs() {
    for example in examples() {
        let text = std::fs::read_to_string(path(&example)).unwrap();
        let config = EndpointPickerConfig::parse(&text).unwrap_or_else(|error| panic!("{example}: {error}"));
        for allowed in [false, true] {
            let metrics = SchedulerMetrics::register(&Registry::new()).unwrap();
            let built = Pipeline::build(Some(&config), allowed, &metrics, &State::default());
            let is_fine = allowed || !needs_experimental(&example);
            assert_eq!(
                built.is_ok(),
                is_fine,
                "{example}, experimental plugins allowed: {allowed}: {built:?}"
            );
            let args =
                CheckArgs { file: path(&example), output: Output::Text, allow_experimental_plugins: allowed };
            let (mut out, mut err) = (Vec::new(), Vec::new());
            let code = run_with(&args, &mut std::io::empty(), &mut out, &mut err);
            let (out, err) = (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap());
            assert_eq!((code == 0, err.is_empty()), (is_fine, is_fine), "{example}: {err}");
            assert_eq!(out.starts_with(&format!("{FOLDER}/{example}.yaml is valid\n")), is_fine, "{out}");
            for wrong in ["is deprecated", "has no effect", "is never asked", "ignores what is set"] {
                assert!(!out.contains(wrong), "{example}: {out}");
            }
            for line in out.lines() {
                assert!(line.chars().count() <= 80, "{example}: {line:?}");
            }
        }
    }
}

/// What an example is for, by its name.
async fn scenario(example: &str) {
    match example {
        "default" => default().await,
        _ => panic!("{FOLDER}/{example}.yaml is an example that nobody tries: add what it is for"),
    }
}

#[tokio::test]
async fn every_example_does_what_it_is_for() {
    let examples = examples();
    assert!(examples.iter().any(|example| example == "default"));
    for example in examples {
        scenario(&example).await;
    }
}

/// Requests go where nobody waits.
async fn default() {
    let mut pool = Pool::start("default", &[Pod::default(), Pod::default()]).await;
    pool.keep_busy(0).await;
    for _ in 0..5 {
        let answered = pool.ask(&[], "m", "hi").await;
        assert_eq!(answered.server, 1);
        assert!(!answered.request.destination().contains(','), "one endpoint, no fallbacks");
        assert_eq!(answered.response.get("x-went-into-resp-headers"), Some("true"));
    }
    pool.keep_busy(1).await;
    pool.release(0).await;
    for _ in 0..5 {
        assert_eq!(pool.ask(&[], "m", "hi").await.server, 0);
    }
}
