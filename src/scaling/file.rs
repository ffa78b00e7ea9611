//! Policy file, polled for changes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use xxhash_rust::xxh3::xxh3_128;

use super::groups::{Groups, Sources};
use crate::config::source::{read, unreadable};

/// Interval between two reads of the file. It is small, and polling finds changes that notifications miss.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A policy file.
#[derive(Debug)]
pub struct PolicyFile {
    path: PathBuf,
    seen: Option<u128>,
}

/// Changed content of the file, or why it can't be read.
pub type FileChange = Result<String, String>;

impl PolicyFile {
    /// The file at this path, not read yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), seen: None }
    }

    /// Reads the file at startup.
    ///
    /// # Errors
    /// All errors of the file, on one line.
    pub fn load(&mut self, sources: &Sources) -> Result<Groups, String> {
        let text = text(&self.path)?;
        self.seen = Some(xxh3_128(text.as_bytes()));
        Groups::read(&text, sources).map_err(|errors| joined(&errors, &self.name()))
    }

    /// Path, for messages.
    pub fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Sends each change of the text, and each new read error, until the receiver is dropped.
    pub(super) async fn follow<M>(mut self, sender: mpsc::Sender<M>, update: impl Fn(FileChange) -> M) {
        let mut ticks = interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut problem: Option<String> = None;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = sender.closed() => return,
            }
            let path = self.path.clone();
            // Away from the runtime: its file system may be slow.
            let Ok(change) = tokio::task::spawn_blocking(move || text(&path)).await else { return };
            let is_changed = match &change {
                Ok(text) => {
                    let hash = Some(xxh3_128(text.as_bytes()));
                    let differs = std::mem::replace(&mut self.seen, hash) != hash;
                    problem.take().is_some() || differs
                }
                Err(error) => problem.replace(error.clone()).as_ref() != Some(error),
            };
            if is_changed && sender.send(update(change)).await.is_err() {
                return;
            }
        }
    }
}

fn text(path: &Path) -> FileChange {
    let in_file = |error: crate::config::ConfigError| error.in_file(&path.display().to_string());
    // Opening a pipe would wait for its writer.
    let metadata = std::fs::metadata(path).map_err(|error| in_file(unreadable("capacity policy", &error)))?;
    if !metadata.is_file() {
        return Err(format!(
            "{}: the capacity policy is not a regular file (give the path of one)",
            path.display()
        ));
    }
    let file = std::fs::File::open(path).map_err(|error| in_file(unreadable("capacity policy", &error)))?;
    read(file).map_err(in_file)
}

/// All errors on one line, the first with its hint.
pub(super) fn joined(errors: &[crate::config::ConfigError], file: &str) -> String {
    let lines: Vec<String> = errors.iter().map(|error| error.in_file(file)).collect();
    lines.join("; ")
}
