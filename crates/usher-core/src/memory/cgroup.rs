//! Memory that the container gives the process.

use std::fs;
use std::path::Path;

/// A limit above this is none: version 1 writes the largest number of pages.
const NONE: u64 = 1 << 60;

/// The memory limit of this process' control group, or of one around it if that is less, in
/// bytes; `None` if there is none, or it is unknown.
pub fn limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    limit_in(&groups, Path::new("/sys/fs/cgroup"))
}

/// The same for a text like that of `/proc/self/cgroup`, and where the groups are.
///
/// In a container the path may be the one outside, which isn't there; the container's own
/// group is at the root then, and that is looked at in any case.
pub fn limit_in(groups: &str, root: &Path) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let (root, file) = if controllers.is_empty() {
            (root.to_owned(), "memory.max")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            (root.join("memory"), "memory.limit_in_bytes")
        } else {
            return None;
        };
        let own = Path::new(path.trim_start_matches('/'));
        own.ancestors().filter_map(|group| read(&root.join(group).join(file))).min()
    });
    limits.min()
}

/// A limit; version 2 writes `max` for none.
fn read(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok().filter(|limit| (1..NONE).contains(limit))
}
