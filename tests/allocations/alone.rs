//! The allocator that counts, and a process for a test in which nobody else allocates.

use std::alloc::System;
use std::process::{Command, Output};

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
pub(crate) static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Set in the process of one test.
const ALONE: &str = "USHER_TEST_ALONE";

/// Runs the test of this name in a process of its own, and is `true` once it has passed there; in that
/// process it is `false`, and the test goes on. A lock would not do: the test harness itself allocates
/// whenever a test beside this one begins or ends.
#[track_caller]
pub(crate) fn passed_alone(name: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return false;
    }
    let program = std::env::current_exe().unwrap();
    let arguments = [name, "--exact", "--nocapture", "--test-threads=1"];
    let Output { status, stdout, stderr } =
        Command::new(program).args(arguments).env(ALONE, "1").output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success() && stdout.contains("1 passed"), "{name}: {stdout}{stderr}");
    true
}
