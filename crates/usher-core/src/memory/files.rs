//! The limit on open files, and what ports may have of it.

use super::{Budget, MAX_CONNECTIONS, small};

/// Fewer connections than these may not do for a large gateway, which has some of each of its threads.
const FEW: usize = 512;

/// Raises the limit on open files of this process to the highest that it may have. Returns how many files
/// that is; `None` where nothing says so.
#[cfg(target_os = "linux")]
pub fn raise_limit() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return current;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum,
        Err(error) => {
            tracing::warn!(%error, current, "cannot raise the limit on open files; raise it where the process is started (ulimit -n)");
            current
        }
    }
}

/// Unknown on other systems.
#[cfg(not(target_os = "linux"))]
pub fn raise_limit() -> Option<u64> {
    None
}

impl Budget {
    /// The process may have so many open files. To be called before there are ports. Connections have five
    /// eighths of them, and each small port a 32nd; the rest is for scrapes, the API server and files.
    pub fn limit_files(&self, files: u64) {
        // One that is there already stays.
        let _ = self.files.set(files);
        let connections = self.max_connections();
        if connections < FEW {
            tracing::warn!(
                files,
                connections,
                "the limit on open files leaves room for few connections; raise it where the process is started (ulimit -n)"
            );
        }
    }

    /// Open connections at most, those among them that are being opened.
    pub fn max_connections(&self) -> usize {
        self.part_of_files(|files| files / 8 * 5).min(MAX_CONNECTIONS)
    }

    /// The same for a small port.
    pub(super) fn max_small_connections(&self) -> usize {
        self.part_of_files(|files| files / 32).max(small::LEAST_CONNECTIONS)
    }

    /// Open connections from which on idle ones make room, so that a new one finds a place. From half as
    /// many more on they have no time to leave.
    pub(super) fn many_connections(&self) -> u64 {
        self.max_connections() as u64 / 8 * 5
    }

    fn part_of_files(&self, part: impl FnOnce(u64) -> u64) -> usize {
        let part = self.files.get().map(|files| part(*files));
        part.and_then(|part| usize::try_from(part).ok()).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_files_leave_room_for_few_connections() {
        // Files, connections, from how many on idle ones leave, and those of a small port.
        for (files, connections, many, small) in [
            (None, 16_384, 10_240, usize::MAX),
            (Some(u64::MAX), 16_384, 10_240, 1 << 59),
            (Some(1 << 20), 16_384, 10_240, 32_768),
            (Some(4096), 2560, 1600, 128),
            (Some(1024), 640, 400, 32),
            (Some(100), 60, 35, 8),
        ] {
            let budget = Budget::default();
            if let Some(files) = files {
                budget.limit_files(files);
            }
            let is = (budget.max_connections(), budget.many_connections(), budget.max_small_connections());
            assert!(
                is.0 == connections && is.1 == many && (is.2 == small || is.2 > 1 << 58),
                "{files:?}: {is:?}"
            );
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn file_limit_is_raised_to_the_hard_limit() {
        let limit = raise_limit();
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
        let mut numbers = line.split_whitespace().map(|number| number.parse::<u64>().ok());
        assert_eq!((numbers.next(), numbers.next()), (Some(limit), Some(limit)));
    }
}
