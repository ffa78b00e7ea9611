//! Version of this build.

/// Version of the package.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Commit that it was built from: that of the environment variable `USHER_COMMIT` at build time, for a release
/// else that of the repository; `unknown` without either.
pub const COMMIT: &str = match option_env!("USHER_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

/// Version of Envoy that it is tested with, as `deploy/envoy/get.sh` installs it.
pub const ENVOY: &str = "1.40.0";

/// Optional features that it was built with.
pub const FEATURES: &[&str] = match (cfg!(feature = "jemalloc"), cfg!(feature = "lab")) {
    (true, true) => &["jemalloc", "lab"],
    (true, false) => &["jemalloc"],
    (false, true) => &["lab"],
    (false, false) => &[],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envoy_version_matches_the_tested_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/envoy/get.sh");
        let script = std::fs::read_to_string(path).unwrap();
        let line = format!("\nversion={ENVOY}\n");
        assert!(script.contains(&line), "{line}");
    }
}
