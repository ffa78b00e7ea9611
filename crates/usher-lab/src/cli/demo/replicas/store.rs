//! Store of the replicas: a server found on the `PATH`.

use std::env::split_paths;
use std::ffi::OsStr;
use std::path::PathBuf;

use anyhow::Context;

/// Servers that do.
const SERVERS: [&str; 2] = ["redis-server", "valkey-server"];

/// Finds a server in the folders of a `PATH`.
///
/// # Errors
/// Says what to install.
pub(super) fn find(path: &OsStr) -> anyhow::Result<PathBuf> {
    let folders: Vec<PathBuf> = split_paths(path).collect();
    let all = SERVERS.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    let mut found = all.filter(|file| file.is_file());
    found.next().context(
        "replicas share state through Redis 7 or Valkey 8, and neither redis-server nor valkey-server is on the PATH; \
         install one (Debian: apt install redis-server), or name one that runs with --state-store redis://HOST:PORT",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_server_is_found_and_redis_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().as_os_str();
        let error = find(path).unwrap_err().to_string();
        assert!(error.contains("apt install redis-server") && error.contains("--state-store"), "{error}");
        for name in ["valkey-server", "redis-server"] {
            let file = folder.path().join(name);
            std::fs::write(&file, "").unwrap();
            assert_eq!(find(path).unwrap(), file);
        }
    }
}
