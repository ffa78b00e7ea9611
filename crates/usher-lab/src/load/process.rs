//! Resource use of a process, as Linux counts it.

use std::fs;
use std::time::Duration;

use super::error::LoadError;
use super::settings::Process;

/// Clock ticks of `/proc/PID/stat`. The kernel reports in units of 1/100 s on every
/// architecture that Envoy runs on, whatever its own tick is.
const TICKS_PER_SECOND: u64 = 100;

/// Use of a process since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Processor time, user and system, of all its threads.
    pub cpu: Duration,
    /// Resident memory in bytes.
    pub memory: u64,
    /// Most resident memory so far, in bytes.
    pub peak_memory: u64,
}

/// CPU time and memory that process `pid` used so far. `None` where there is no `/proc`, and when
/// there is no such process.
pub fn usage(pid: u32) -> Option<Usage> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let whole = cpu_time(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
    Some(Usage {
        // The sum is finer, but knows nothing of threads that have ended.
        cpu: threads_time(pid).map_or(whole, |living| living.max(whole)),
        memory: kilobytes(&status, "VmRSS:")?,
        peak_memory: kilobytes(&status, "VmHWM:")?,
    })
}

/// The sum over all threads that live of the first number of `schedstat`, in nanoseconds. Not all
/// kernels have it; where they do, it is finer than ticks.
fn threads_time(pid: u32) -> Option<Duration> {
    let mut sum = Duration::ZERO;
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        // A thread that just ended can't be read.
        let Ok(text) = fs::read_to_string(thread.ok()?.path().join("schedstat")) else { continue };
        sum += Duration::from_nanos(text.split_whitespace().next()?.parse().ok()?);
    }
    (!sum.is_zero()).then_some(sum)
}

/// A process, looked at three times: before the first request, and at the start and the
/// end of the measured time.
#[derive(Clone, Debug)]
pub struct Watched {
    /// Watched process.
    pub process: Process,
    /// Before the first request.
    pub before: Usage,
    /// At the start of the measured time; `None` when it had ended.
    pub start: Option<Usage>,
    /// At its end.
    pub end: Option<Usage>,
}

impl Watched {
    pub(super) fn new(process: &Process) -> Result<Self, LoadError> {
        let reason = match cfg!(target_os = "linux") {
            true => "there is no such process, or it is another user's",
            false => "only Linux tells what a process uses",
        };
        let error = || LoadError::Process { pid: process.pid, reason: reason.to_owned() };
        let before = usage(process.pid).ok_or_else(error)?;
        Ok(Self { process: process.clone(), before, start: None, end: None })
    }

    pub(super) fn start(&mut self) {
        self.start = usage(self.process.pid);
    }

    pub(super) fn end(&mut self) {
        self.end = usage(self.process.pid);
    }
}

/// Fields 14 and 15 (proc_pid_stat(5)). The second one, the name, may hold anything,
/// so that fields are counted from the last parenthesis.
fn cpu_time(stat: &str) -> Option<Duration> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(Duration::from_millis((user + system) * 1000 / TICKS_PER_SECOND))
}

fn kilobytes(status: &str, name: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    let number: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(number * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_found_behind_any_name() {
        let rest = "S 1 2 2 0 -1 4194304 123 0 0 0 250 31 7 8 20 0 5 0 100 200 300";
        for name in ["usher", "a) S 9 (b", ""] {
            assert_eq!(cpu_time(&format!("42 ({name}) {rest}")), Some(Duration::from_millis(2810)));
        }
        assert_eq!(cpu_time("42 (usher) S 1 2"), None);
        assert_eq!(cpu_time(""), None);
    }

    #[test]
    fn memory_is_in_bytes() {
        let status = "Name:\tusher\nVmPeak:\t  900 kB\nVmHWM:\t    20480 kB\nVmRSS:\t   10240 kB\n";
        assert_eq!(kilobytes(status, "VmHWM:"), Some(20 << 20));
        assert_eq!(kilobytes(status, "VmRSS:"), Some(10 << 20));
        assert_eq!(kilobytes(status, "VmSwap:"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn own_process_uses_cpu_and_memory() {
        let before = usage(std::process::id()).unwrap();
        assert!(before.memory > 0 && before.peak_memory > 0);
        // Ends as soon as it has used more, whatever the kernel counts in.
        while usage(std::process::id()).unwrap().cpu <= before.cpu {}
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn missing_process_is_an_error() {
        let process = Process { name: "x".to_owned(), pid: u32::MAX };
        let error = Watched::new(&process).unwrap_err().to_string();
        assert!(error.contains("4294967295") && error.contains("no such process"), "{error}");
    }
}
