//! Counts with callgrind: this program starts itself under valgrind.

use std::hint::black_box;
use std::path::Path;
use std::process::Command;

/// The argument that asks for a case to be run.
pub const CASE: &str = "--case";

/// Counted: callgrind switches its counter on where this function begins and off where
/// it returns. Its name is how callgrind finds it.
#[inline(never)]
pub fn counted_by_callgrind(work: &mut dyn FnMut()) {
    work();
    // A last call would be a jump, and this function would not return.
    black_box(());
}

/// The instructions of a case, all its repetitions together. Leaves the profile in a
/// file.
pub fn count(case: &str, profile: &Path) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let mut out = std::ffi::OsString::from("--callgrind-out-file=");
    out.push(profile);
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=*counted_by_callgrind*"])
        .arg(out)
        .arg(program)
        .args([CASE, case])
        .output()
        .map_err(|error| format!("cannot run valgrind: {error}; install it"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{case} under valgrind: {}\n{}", output.status, said.trim_end()));
    }
    let text = std::fs::read_to_string(profile)
        .map_err(|error| format!("{case}: cannot read {}: {error}", profile.display()))?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok());
    total.filter(|count| *count > 0).ok_or_else(|| format!("{case}: callgrind counted nothing"))
}
