//! The file of a recording and its predecessor, which together have a bound.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use usher_core::recording::{MAX_LINE, Probe, VERSION, probe};

/// A file that can't be used: that of the recording, or the one before it. Its text is one line.
#[derive(Debug, thiserror::Error)]
// A path may hold anything, line breaks too.
#[error("{} {reason}", file.display().to_string().escape_debug())]
pub struct OpenError {
    /// The file.
    pub file: PathBuf,
    /// The reason.
    pub reason: Unusable,
}

impl OpenError {
    pub(super) fn new(file: &Path, reason: impl Into<Unusable>) -> Self {
        Self { file: file.to_owned(), reason: reason.into() }
    }
}

/// Reason why a file can't be used. Its text is the end of a sentence that begins with the file.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// The system refuses it.
    #[error("cannot be opened: {0}; name a file in a folder that this process may write")]
    System(#[from] io::Error),
    /// A folder, a pipe or a device.
    #[error("is no regular file; name a file that usher may write, move and replace")]
    NoFile,
    /// The path is taken by something else.
    #[error("exists and is no recording; name another file, or move it away")]
    Other,
    /// Locked.
    #[error("is written by another process; give each picker a file of its own")]
    InUse,
}

/// An open recording. What is appended makes it grow to half of the bound; then it [moves](Self::rotate) to `FILE.1`,
/// which it replaces.
#[derive(Debug)]
pub(super) struct RecordingFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// Bytes of each of the two files at most.
    half: u64,
}

impl RecordingFile {
    /// Opens a file to append to it, or creates it with mode 0600. A file that is large, or of another version, becomes
    /// `FILE.1` first. A last line that was cut short is ended.
    ///
    /// # Errors
    /// `OpenError` if the file isn't a recording, another process writes it, or it can't be opened.
    pub(super) fn open(path: &Path, max_bytes: u64) -> Result<Self, OpenError> {
        let half = max_bytes / 2;
        let previous = previous(path);
        // It will be replaced one day.
        kind(&previous).map_err(|reason| OpenError::new(&previous, reason))?;
        Self::open_over(path, &previous, half).map_err(|reason| OpenError::new(path, reason))
    }

    fn open_over(path: &Path, previous: &Path, half: u64) -> Result<Self, Unusable> {
        let kind = kind(path)?;
        let mut file = append(path)?;
        lock(&file)?;
        let mut bytes = file.metadata()?.len();
        if kind == Kind::Foreign || bytes >= half {
            fs::rename(path, previous)?;
            file = append(path)?;
            lock(&file)?;
            bytes = 0;
        }
        let mut opened = Self { path: path.to_owned(), file, bytes, half };
        opened.end_line()?;
        Ok(opened)
    }

    /// Bytes that it has.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns `true` if so many bytes more have room.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.bytes.saturating_add(bytes as u64) <= self.half
    }

    /// Appends whole lines.
    ///
    /// # Errors
    /// `io::Error` of the write; a part of the lines may be written then.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        self.file.write_all(lines)?;
        self.bytes += lines.len() as u64;
        Ok(())
    }

    /// Makes it `FILE.1`, and begins a new one.
    ///
    /// # Errors
    /// Same as [`Self::open`].
    pub(super) fn rotate(&mut self) -> Result<(), OpenError> {
        let previous = previous(&self.path);
        // It may have been put there meanwhile.
        kind(&previous).map_err(|reason| OpenError::new(&previous, reason))?;
        fs::rename(&self.path, &previous).map_err(|error| OpenError::new(&self.path, error))?;
        *self = Self::open(&self.path, self.half * 2)?;
        Ok(())
    }

    /// Returns `true` if the path still names this file.
    pub(super) fn is_there(&self) -> bool {
        let known = |of: io::Result<fs::Metadata>| of.ok().map(|of| (of.dev(), of.ino()));
        let now = known(fs::metadata(&self.path));
        now.is_some() && now == known(self.file.metadata())
    }

    /// Ends the last line, if it was cut short.
    fn end_line(&mut self) -> io::Result<()> {
        if self.bytes == 0 {
            return Ok(());
        }
        let mut last = [0];
        self.file.seek(SeekFrom::End(-1))?;
        self.file.read_exact(&mut last)?;
        if last == *b"\n" { Ok(()) } else { self.append(b"\n") }
    }
}

/// Name of the file before.
fn previous(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".1");
    name.into()
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)
}

fn lock(file: &File) -> Result<(), Unusable> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(Unusable::InUse),
        // Some file systems have no locks.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Missing, empty, or a recording that can be appended to.
    Usable,
    /// A recording that can't be appended to: of another version, or with a header that was cut short.
    Foreign,
}

/// Returns `true` for the beginning of a header, also of zeros as some file systems leave behind.
fn is_begun(text: &[u8]) -> bool {
    const HEADER: &[u8] = b"{\"header\":";
    let begins = text.iter().zip(HEADER).all(|(a, b)| a == b);
    begins || text.iter().all(|byte| *byte == 0)
}

fn kind(path: &Path) -> Result<Kind, Unusable> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Kind::Usable),
        Err(error) => return Err(error.into()),
        Ok(metadata) if !metadata.is_file() => return Err(Unusable::NoFile),
        Ok(metadata) if metadata.len() == 0 => return Ok(Kind::Usable),
        Ok(_) => {}
    }
    let mut first = Vec::new();
    BufReader::new(File::open(path)?).take(MAX_LINE as u64).read_until(b'\n', &mut first)?;
    match probe(&first) {
        Probe::Recording(VERSION) => Ok(Kind::Usable),
        Probe::Recording(_) => Ok(Kind::Foreign),
        // A header that was cut short: the disk was full, or the machine went down.
        Probe::Other if first.last() != Some(&b'\n') && is_begun(&first) => Ok(Kind::Foreign),
        Probe::Other => Err(Unusable::Other),
    }
}
