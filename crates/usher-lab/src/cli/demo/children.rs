//! Child processes that never outlive this one.
//!
//! All of them are in one process group. Its leader is a shell that does nothing but
//! wait for the end of its standard input, a pipe whose other end only we hold, and
//! then kills the group. The kernel closes our end however we end: at a return, at a
//! panic, at a signal that can't be caught. A terminal's Ctrl-C doesn't reach the group,
//! so that the order in which things end is ours.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// Script that the group's leader runs.
const GUARD: &str = "read -r line; kill -KILL 0";

/// Error of a child that is not running.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// The program can't be started.
    #[error("cannot start {name} ({program}): {reason}")]
    Start {
        /// Name of the child.
        name: String,
        /// Program that should have run.
        program: String,
        /// Error of the system.
        reason: io::Error,
    },
    /// The file for its output can't be made.
    #[error("cannot write {}: {reason}", path.display())]
    Log {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        reason: io::Error,
    },
    /// The child ended by itself.
    #[error("{name} ended ({status}){}; its output is in {}", last_words(log), log.display())]
    Ended {
        /// Name of the child.
        name: String,
        /// Status that it ended with.
        status: ExitStatus,
        /// The file with what it wrote.
        log: PathBuf,
    },
}

/// A group of child processes. Dropped, it kills them and waits until they are gone,
/// and with them the ports on which they listened.
#[derive(Debug)]
pub struct Group {
    guard: Child,
    children: Vec<Running>,
}

#[derive(Debug)]
struct Running {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Group {
    /// A group without children. `label` shows in the list of processes.
    ///
    /// # Errors
    /// `ChildError` if no shell is found.
    pub fn new(label: &Path) -> Result<Self, ChildError> {
        let mut command = Command::new("sh");
        command.arg("-c").arg(GUARD).arg(label).process_group(0);
        let guard = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let guard = guard.map_err(|reason| not_started("the guard", &command, reason))?;
        Ok(Self { guard, children: Vec::new() })
    }

    /// The number of the group, for a process that is started elsewhere.
    pub fn id(&self) -> i32 {
        // A process number fits: the kernel's own type for it is signed.
        self.guard.id().cast_signed()
    }

    /// Starts a child with its output in the file `log`, and returns its process number.
    ///
    /// # Errors
    /// `ChildError` if the program can't be started or its log can't be created.
    pub fn spawn(&mut self, name: &str, mut command: Command, log: PathBuf) -> Result<u32, ChildError> {
        let files = File::create(&log).and_then(|out| Ok((out.try_clone()?, out)));
        let (out, err) = files.map_err(|reason| ChildError::Log { path: log.clone(), reason })?;
        command.process_group(self.id()).stdin(Stdio::null()).stdout(out).stderr(err);
        let child = command.spawn().map_err(|reason| not_started(name, &command, reason))?;
        let pid = child.id();
        self.children.push(Running { name: name.to_owned(), child, log });
        Ok(pid)
    }

    /// Ends the child with this process number, if it is one of these.
    pub fn end(&mut self, id: u32) {
        let Some(place) = self.children.iter().position(|running| running.child.id() == id) else { return };
        let Running { mut child, .. } = self.children.remove(place);
        // An error here is a process that is gone already.
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Checks that all children run.
    ///
    /// # Errors
    /// `ChildError` that names the first process which doesn't, with the last line that it wrote.
    pub fn check(&mut self) -> Result<(), ChildError> {
        for Running { name, child, log } in &mut self.children {
            // Should the question fail, requests will show it.
            if let Ok(Some(status)) = child.try_wait() {
                return Err(ChildError::Ended { name: name.clone(), status, log: log.clone() });
            }
        }
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Closing the pipe is what the guard waits for. Waiting for it means that the
        // signal is out. An error here is a process that is gone already.
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
        for Running { child, .. } in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn not_started(name: &str, command: &Command, reason: io::Error) -> ChildError {
    let program = command.get_program().to_string_lossy().into_owned();
    ChildError::Start { name: name.to_owned(), program, reason }
}

/// The last line in a log, as the end of a sentence.
fn last_words(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines()
        .map(str::trim)
        .rfind(|line| !line.is_empty())
        .map_or_else(String::new, |line| format!(": {line}"))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(script);
        command
    }

    #[test]
    fn dropping_the_group_kills_grandchildren_too() {
        let folder = tempfile::tempdir().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let mut group = Group::new(folder.path()).unwrap();
        // The child and its own child inherit the pipe as their output.
        let mut child = {
            let mut command = shell("sleep 1000 & wait");
            command.process_group(group.id()).stdin(Stdio::null()).stdout(writer).spawn().unwrap()
        };
        group.check().unwrap();
        drop(group);
        // End of file comes when every process that holds the pipe is gone.
        assert_eq!(reader.read_to_end(&mut Vec::new()).unwrap(), 0);
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn ended_child_is_reported_with_its_last_line() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("child.log");
        let mut group = Group::new(folder.path()).unwrap();
        group.spawn("the child", shell("echo first; echo 'port is taken' >&2; exit 3"), log).unwrap();
        let error = loop {
            if let Err(error) = group.check() {
                break error.to_string();
            }
            std::thread::yield_now();
        };
        assert!(error.starts_with("the child ended (exit status: 3): port is taken; "), "{error}");
        assert!(error.ends_with("child.log"), "{error}");
    }

    #[test]
    fn stopped_child_is_no_longer_watched() {
        let folder = tempfile::tempdir().unwrap();
        let mut group = Group::new(folder.path()).unwrap();
        let spawn = |group: &mut Group, log| {
            group.spawn("the child", shell("sleep 1000"), folder.path().join(log)).unwrap()
        };
        let (first, second) = (spawn(&mut group, "a"), spawn(&mut group, "b"));
        group.end(first);
        group.end(first);
        group.check().unwrap();
        assert_eq!(group.children.iter().map(|running| running.child.id()).collect::<Vec<_>>(), [second]);
    }

    #[test]
    fn missing_program_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let mut group = Group::new(folder.path()).unwrap();
        let missing = Command::new("/nowhere/envoy");
        let error = group.spawn("Envoy", missing, folder.path().join("log")).unwrap_err().to_string();
        assert!(error.contains("cannot start Envoy (/nowhere/envoy)"), "{error}");
    }
}
