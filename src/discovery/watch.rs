//! An endpoints file on disk, followed as it changes.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prometheus::IntGauge;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use xxhash_rust::xxh3::xxh3_128;

use crate::config::ConfigError;
use crate::config::source::unreadable;
use crate::endpoints::{Change, EndpointSpec, Store};

use super::file::{MAX_BYTES, Problem, parse};

/// Interval between two looks at the file. Looking costs a system call; it sees what
/// notifications miss: network file systems, and links that are swapped several directories
/// up, as Kubernetes does with ConfigMaps.
const POLL: Duration = Duration::from_millis(100);

/// Number of problems of one file that are logged; the rest is a number.
const LOGGED_PROBLEMS: usize = 20;

/// Error of an endpoints file that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file can't be opened or read.
    #[error("{error}", error = unreadable("endpoints file", .source).in_file(&.path.display().to_string()))]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A directory, a pipe, a device.
    #[error("{path}: the endpoints file is not a regular file (give the path of one)", path = .0.display())]
    NotAFile(PathBuf),
    /// More than [`MAX_BYTES`].
    #[error("{path}: the endpoints file is larger than {MAX_BYTES} bytes (split the pool)", path = .0.display())]
    TooLarge(PathBuf),
    /// Not a list of endpoints.
    #[error("{error}", error = .source.in_file(&.path.display().to_string()))]
    Parse {
        /// The file.
        path: PathBuf,
        /// Error in its text.
        source: Box<ConfigError>,
    },
    /// No endpoint, where there were some.
    #[error("{path}: the endpoints file lists no endpoint that can be used (--allow-empty-endpoints makes the pool empty then)", path = .0.display())]
    Empty(PathBuf),
    /// Every entry has something wrong with it.
    #[error("{path}: no entry of the endpoints file can be used; the first problem: {first}", path = .path.display())]
    NoneUsable {
        /// The file.
        path: PathBuf,
        /// The first problem, with its place.
        first: String,
    },
}

/// Discovery by an endpoints file.
#[derive(Debug)]
pub struct FileDiscovery {
    path: PathBuf,
    watch: bool,
    seen: Option<Seen>,
    /// The text of the last load, so that a file that was only touched isn't
    /// reported again.
    loaded: Option<u128>,
    /// The error of the last load, as it was reported.
    problem: Option<String>,
    /// A file without an endpoint empties the pool.
    allow_empty: bool,
    /// 1 while the endpoints are those of the file, 0 while they are older.
    current: Option<IntGauge>,
}

/// The metadata that any way to change a file changes: writing it in place,
/// renaming another over it, pointing a link on the way to it elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            file: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// A look at the file.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// `None`: there was nothing to look at.
    stamp: Option<Stamp>,
    /// The stamp is unchanged since the last look. File systems count time in
    /// ticks of some milliseconds, so a second write in the tick of the first
    /// leaves no trace; the file is read once more when the tick must be over.
    settled: bool,
}

/// Endpoints that a load found, with the problems and the hash of the text.
struct Loaded {
    specs: Vec<EndpointSpec>,
    problems: Vec<Problem>,
    hash: u128,
}

impl FileDiscovery {
    /// Discovery by the file at `path`, which is followed if `watch` is set.
    /// The file is not read yet.
    pub fn new(path: impl Into<PathBuf>, watch: bool) -> Self {
        Self {
            path: path.into(),
            watch,
            seen: None,
            loaded: None,
            problem: None,
            allow_empty: false,
            current: None,
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets whether a file that lists no endpoint any more makes the pool empty, instead of
    /// leaving it as it was. Default false.
    #[must_use]
    pub fn allow_empty(self, allow_empty: bool) -> Self {
        Self { allow_empty, ..self }
    }

    /// Sets `gauge` to 1 while the endpoints are those of the file, and to 0 while they are older,
    /// as the file is gone or can't be used.
    #[must_use]
    pub fn report_to(self, gauge: IntGauge) -> Self {
        gauge.set(1);
        Self { current: Some(gauge), ..self }
    }

    /// Reads the file for the start and makes it the membership. Entries that
    /// can't be used are logged and left out.
    ///
    /// # Errors
    /// `FileError` if the file can't be read, has no list of endpoints, or none of its entries can be used
    /// and the pool may not be empty.
    pub fn load_into(&mut self, store: &Store) -> Result<Change, FileError> {
        self.seen = Some(Seen { stamp: stamp(&self.path), settled: false });
        match load(&self.path).and_then(|loaded| self.keep(loaded, store)) {
            Ok(loaded) => Ok(self.publish(loaded, store)),
            // A pool may begin empty, and follow the file from there.
            Err(error @ FileError::NoneUsable { .. }) if self.allow_empty => {
                self.note(Some(error.to_string()));
                tracing::error!(%error, "no endpoint of the file can be used");
                Ok(Change::default())
            }
            Err(error) => Err(error),
        }
    }

    /// Follows the file until `shutdown`; returns at once if it isn't to be
    /// watched. A file that is gone, can't be used, lists no endpoint any more or none that can be
    /// used leaves the membership as it was.
    pub async fn watch(self, store: Arc<Store>, shutdown: CancellationToken) {
        self.watch_with(shutdown, move |discovery| discovery.look(&store)).await;
    }

    async fn watch_with<L>(mut self, shutdown: CancellationToken, look: L)
    where
        L: Fn(&mut Self) + Send + Sync + 'static,
    {
        let look = Arc::new(look);
        let mut ticks = tokio::time::interval(POLL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while self.watch {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let look = Arc::clone(&look);
            // Away from the runtime: the file may be large, or its file system slow.
            let looked = tokio::task::spawn_blocking(move || {
                // Whatever state the panic left, the next change of the file replaces it.
                if catch_unwind(AssertUnwindSafe(|| look(&mut self))).is_err() {
                    self.panicked();
                }
                self
            });
            match looked.await {
                Ok(same) => self = same,
                // The runtime is shutting down.
                Err(_) => return,
            }
        }
    }

    /// Reads the file again if it may have changed.
    fn look(&mut self, store: &Store) {
        // Before the read: a change in between is then seen at the next look.
        let stamp = stamp(&self.path);
        match self.seen {
            Some(seen) if seen.stamp == stamp && seen.settled => return,
            Some(seen) => self.seen = Some(Seen { stamp, settled: seen.stamp == stamp }),
            None => self.seen = Some(Seen { stamp, settled: false }),
        }
        match load(&self.path).and_then(|loaded| self.keep(loaded, store)) {
            Ok(loaded) => {
                if self.note(None) {
                    info!(path = %self.path.display(), "endpoints file can be used again");
                }
                self.publish(loaded, store);
            }
            Err(error) => {
                if matches!(error, FileError::Read { .. }) {
                    // Reading may work next time without a change to the file.
                    self.seen = None;
                }
                if self.note(Some(error.to_string())) {
                    let endpoints = store.snapshot().endpoints().len();
                    error!(%error, endpoints, "endpoints file can't be used, keeping the endpoints as they are");
                }
            }
        }
    }

    /// Returns the loaded endpoints, or an error where they would empty a pool that has some. Entries
    /// none of which can be used are a mistake, whatever is allowed of an empty list.
    fn keep(&mut self, loaded: Loaded, store: &Store) -> Result<Loaded, FileError> {
        if !loaded.specs.is_empty() {
            return Ok(loaded);
        }
        let path = self.path.clone();
        let error = if loaded.problems.iter().any(|problem| problem.skipped) {
            let first =
                loaded.problems.first().map(|problem| problem.error.in_file(&path.display().to_string()));
            FileError::NoneUsable { path, first: first.unwrap_or_default() }
        } else if self.allow_empty || store.snapshot().endpoints().is_empty() {
            return Ok(loaded);
        } else {
            FileError::Empty(path)
        };
        if self.loaded.replace(loaded.hash) != Some(loaded.hash) {
            self.log(&loaded.problems);
        }
        Err(error)
    }

    /// Notes why the file can't be used, or that it can; returns `true` if the last look said otherwise.
    fn note(&mut self, problem: Option<String>) -> bool {
        if let Some(current) = &self.current {
            current.set(i64::from(problem.is_none()));
        }
        let is_new = self.problem != problem;
        self.problem = problem;
        is_new
    }

    /// Logs once that looking at the file ended in a panic. It is a mistake in the
    /// program, not a reason to stop following the file.
    fn panicked(&mut self) {
        if self.note(Some("panicked".to_owned())) {
            error!(path = %self.path.display(), "reading the endpoints file panicked, keeping the endpoints as they are; report this");
        }
    }

    fn publish(&mut self, loaded: Loaded, store: &Store) -> Change {
        let Loaded { specs, problems, hash } = loaded;
        if self.loaded.replace(hash) == Some(hash) {
            return Change::default();
        }
        self.log(&problems);
        let path = self.path.display();
        let endpoints = specs.len();
        let change = store.replace(specs);
        if !change.is_empty() {
            let Change { added, removed, updated } = change;
            info!(%path, endpoints, added, removed, updated, "endpoints changed");
        }
        change
    }

    fn log(&self, problems: &[Problem]) {
        let path = self.path.display();
        let file = path.to_string();
        for problem in problems.iter().take(LOGGED_PROBLEMS) {
            let problem = problem.in_file(&file);
            warn!(problem, "problem in the endpoints file");
        }
        if let Some(omitted) = problems.len().checked_sub(LOGGED_PROBLEMS).filter(|omitted| *omitted > 0) {
            warn!(%path, omitted, "more problems in the endpoints file");
        }
    }
}

/// Follows links, so a link that points elsewhere has another stamp.
fn stamp(path: &Path) -> Option<Stamp> {
    std::fs::metadata(path).ok().map(|metadata| Stamp::of(&metadata))
}

fn load(path: &Path) -> Result<Loaded, FileError> {
    let text = read(path)?;
    let hash = xxh3_128(text.as_bytes());
    let (specs, problems) = parse(&text)
        .map_err(|source| FileError::Parse { path: path.to_owned(), source: Box::new(source) })?;
    Ok(Loaded { specs, problems, hash })
}

fn read(path: &Path) -> Result<String, FileError> {
    let failed = |source| FileError::Read { path: path.to_owned(), source };
    // Before it is opened: opening a pipe would wait for its writer.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(FileError::NotAFile(path.to_owned()));
    }
    let mut bytes = Vec::new();
    let limit = MAX_BYTES as u64 + 1;
    File::open(path).map_err(failed)?.take(limit).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > MAX_BYTES {
        return Err(FileError::TooLarge(path.to_owned()));
    }
    String::from_utf8(bytes).map_err(|_| failed(io::Error::new(io::ErrorKind::InvalidData, "not UTF-8 text")))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_panic_does_not_end_the_watch() {
        let shutdown = CancellationToken::new();
        let (stop, looks) = (shutdown.clone(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&looks);
        let look = move |_: &mut FileDiscovery| match counted.fetch_add(1, Relaxed) {
            0 => panic!("as the test wants it"),
            _ => stop.cancel(),
        };
        FileDiscovery::new("endpoints.yaml", true).watch_with(shutdown, look).await;
        assert_eq!(looks.load(Relaxed), 2);
    }
}
