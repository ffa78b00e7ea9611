//! Lines on their way into the file, and what becomes of them when it can't be written.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use usher_core::recording::{Header, Line, MAX_LINE, RequestLine};

use super::file::{OpenError, RecordingFile};
use super::members::Members;
use super::sink::Counts;

/// First and longest pause before a file that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// Bytes of lines that are written at once.
const BATCH: usize = 256 << 10;

/// The file, and lines that it lacks.
#[derive(Debug)]
pub(super) struct Output {
    header: Header,
    path: PathBuf,
    max_bytes: u64,
    start: Instant,
    /// `None`: it could not be written.
    file: Option<RecordingFile>,
    retry: Duration,
    retry_at: Instant,
    /// Lines to write.
    lines: Vec<u8>,
    /// Requests among them, and all of them.
    requests: u64,
    count: u64,
    /// The file lacks its header.
    is_fresh: bool,
    /// `true` if no line has been written since the last failure.
    is_interrupted: bool,
    /// Bytes of header and endpoints at the last start of a file, and of lines that followed.
    preamble: u64,
    written: u64,
    counts: Arc<Counts>,
}

impl Output {
    /// Opens the file. Times of its lines count from `start`.
    ///
    /// # Errors
    /// Returns an error if the path can't be used.
    pub(super) fn open(
        path: &Path,
        max_bytes: u64,
        header: Header,
        start: Instant,
        counts: Arc<Counts>,
    ) -> Result<Self, OpenError> {
        // Behind a link the file and the one before it stay side by side.
        let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let file = RecordingFile::open(path, max_bytes)?;
        Ok(Self {
            header,
            path: path.to_owned(),
            max_bytes,
            start,
            preamble: 0,
            written: file.bytes(),
            file: Some(file),
            retry: RETRY,
            retry_at: start,
            lines: Vec::new(),
            requests: 0,
            count: 0,
            is_fresh: true,
            is_interrupted: false,
            counts,
        })
    }

    /// Adds the line of a request, or counts that it is dropped.
    pub(super) fn put_request(&mut self, line: Box<RequestLine>, members: &mut Members) {
        if self.put(&Line::Request(line), members) {
            self.requests += 1;
            if self.lines.len() >= BATCH {
                self.flush();
            }
        } else {
            self.counts.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Adds a line to those that are written next. Returns `false` if there is no file for it.
    pub(super) fn put(&mut self, line: &Line, members: &mut Members) -> bool {
        if self.file.is_none() {
            return false;
        }
        let Ok(mut text) = serde_json::to_vec(line) else { return false };
        text.push(b'\n');
        if text.len() > MAX_LINE {
            return false;
        }
        self.begin_file(members);
        let has_room = |file: &RecordingFile| file.has_room(self.lines.len() + text.len());
        // A pool too large for the bound is not written anew for every line.
        let is_worth_it = self.written > self.preamble;
        if is_worth_it && !self.file.as_ref().is_some_and(has_room) && !self.rotate(members) {
            return false;
        }
        self.lines.extend_from_slice(&text);
        self.written += text.len() as u64;
        self.count += 1;
        true
    }

    /// Moves the file away and begins the next. Returns `false` if that fails.
    fn rotate(&mut self, members: &mut Members) -> bool {
        self.flush();
        if let Some(Err(error)) = self.file.as_mut().map(RecordingFile::rotate) {
            self.fail(&error, Instant::now());
        }
        (self.is_fresh, self.written) = (true, 0);
        self.begin_file(members);
        self.file.is_some()
    }

    /// Adds the header and all endpoints where a file begins, or goes on.
    pub(super) fn begin_file(&mut self, members: &mut Members) {
        if self.file.is_none() || !std::mem::take(&mut self.is_fresh) {
            return;
        }
        let at_us = self.us(Instant::now());
        let before = self.lines.len();
        for line in [Line::Header(self.header.clone())].into_iter().chain(members.all(at_us)) {
            if let Ok(text) = serde_json::to_vec(&line) {
                self.lines.extend_from_slice(&text);
                self.lines.push(b'\n');
                self.count += 1;
            }
        }
        self.preamble = (self.lines.len() - before) as u64;
    }

    /// Writes the lines that are there.
    pub(super) fn flush(&mut self) {
        let Some(file) = self.file.as_mut().filter(|_| !self.lines.is_empty()) else { return };
        match file.append(&self.lines) {
            Ok(()) => {
                if std::mem::take(&mut self.is_interrupted) {
                    tracing::info!(file = %self.path.display(), "recording goes on");
                }
                self.counts.lines.fetch_add(self.count, Relaxed);
                self.counts.bytes.fetch_add(self.lines.len() as u64, Relaxed);
                self.clear();
            }
            Err(error) => self.fail(&error, Instant::now()),
        }
    }

    fn clear(&mut self) {
        self.lines.clear();
        self.lines.shrink_to(BATCH);
        (self.requests, self.count) = (0, 0);
    }

    /// Gives the file up for a while; its lines are lost.
    fn fail(&mut self, error: &dyn std::fmt::Display, now: Instant) {
        self.counts.errors.fetch_add(1, Relaxed);
        self.counts.dropped.fetch_add(self.requests, Relaxed);
        self.clear();
        self.file = None;
        // A file that can be opened may still refuse what is written.
        if !std::mem::replace(&mut self.is_interrupted, true) {
            self.retry = RETRY;
            tracing::warn!(file = %self.path.display(), %error, "recording interrupted; requests are served, and not recorded");
        } else {
            self.retry = (self.retry * 2).min(LONGEST_RETRY);
        }
        self.retry_at = now + self.retry;
    }

    /// Tries the file again.
    pub(super) fn reopen(&mut self, now: Instant) {
        if self.file.is_some() || now < self.retry_at {
            return;
        }
        match RecordingFile::open(&self.path, self.max_bytes) {
            Ok(file) => {
                self.written = file.bytes();
                self.file = Some(file);
                self.is_fresh = true;
            }
            Err(error) => self.fail(&error, now),
        }
    }

    /// Checks that the file is still in place, and opens a new one if not.
    pub(super) fn look(&mut self, now: Instant) {
        if self.file.as_ref().is_some_and(|file| !file.is_there()) {
            self.fail(&io::Error::other("the file was moved or removed"), now);
            self.retry_at = now;
        }
        self.reopen(now);
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> u64 {
        self.lines.capacity() as u64
    }

    /// Microseconds since the start of the run.
    fn us(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.start).as_micros()).unwrap_or(u64::MAX)
    }
}
