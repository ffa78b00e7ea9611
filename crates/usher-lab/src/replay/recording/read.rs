//! Lines of a recording's files.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::de::IgnoredAny;
use usher_core::recording::{Header, Line, MAX_LINE, Probe, VERSION, probe};

use super::collect::{Collector, Recording};

/// Kinds of lines that this version knows.
const KINDS: [&str; 4] = ["header", "endpoint", "gone", "request"];

/// Reason why a recording can't be read. Its text is one line.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The system refuses it.
    #[error("cannot read {}: {error}", file.display())]
    System {
        /// The file.
        file: PathBuf,
        /// Its reason.
        error: io::Error,
    },
    /// It doesn't begin as one.
    #[error("{} is no recording: its first line is no header; give a file that usher serve --record wrote", .0.display())]
    NoRecording(PathBuf),
    /// A later version wrote it.
    #[error(
        "{}:{line}: version {version} of the format, and this usher reads versions up to {VERSION}; replay it with the version of usher that wrote it",
        file.display()
    )]
    Newer {
        /// The file.
        file: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// The version.
        version: u32,
    },
    /// There is no request.
    #[error("there is no request in {}; let usher serve record for a while", .0.display())]
    Empty(PathBuf),
}

impl Recording {
    /// Reads recordings of these files, of each with its predecessor `FILE.1`.
    ///
    /// # Errors
    /// Which file can't be used, and why.
    pub fn read(named: &[PathBuf]) -> Result<Self, ReadError> {
        let mut collector = Collector::default();
        for file in files(named) {
            read(&file, &mut collector)?;
        }
        let first = named.first().cloned().unwrap_or_default();
        collector.finish().ok_or(ReadError::Empty(first))
    }
}

/// Files of recordings, oldest first: before each one its predecessor `FILE.1`, if there is one. Each once.
fn files(named: &[PathBuf]) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    let mut add = |file: PathBuf| {
        let real = |file: &Path| file.canonicalize().unwrap_or_else(|_| file.to_owned());
        if files.iter().all(|known| real(known) != real(&file)) {
            files.push(file);
        }
    };
    for file in named {
        let mut before = file.clone().into_os_string();
        before.push(".1");
        let before = PathBuf::from(before);
        if before.is_file() {
            add(before);
        }
        add(file.clone());
    }
    files
}

/// Reads a file.
fn read(file: &Path, collector: &mut Collector) -> Result<(), ReadError> {
    let system = |error| ReadError::System { file: file.to_owned(), error };
    lines(BufReader::new(File::open(file).map_err(system)?), file, collector)
}

/// Reads the lines of a file. Those that are broken are left out, with a note.
pub(super) fn lines(
    mut input: impl BufRead,
    file: &Path,
    collector: &mut Collector,
) -> Result<(), ReadError> {
    let mut broken = Broken::default();
    let (mut text, mut number) = (Vec::new(), 0);
    loop {
        text.clear();
        let system = |error| ReadError::System { file: file.to_owned(), error };
        let read = (&mut input).take(MAX_LINE as u64).read_until(b'\n', &mut text).map_err(system)?;
        if read == 0 {
            break;
        }
        number += 1;
        let is_whole = text.last() == Some(&b'\n');
        if !is_whole && read == MAX_LINE {
            skip_line(&mut input).map_err(system)?;
        }
        match line(&text) {
            Content::Line(Line::Header(Header { version, .. })) | Content::Newer(version)
                if version > VERSION =>
            {
                return Err(ReadError::Newer { file: file.to_owned(), line: number, version });
            }
            Content::Line(Line::Header(header)) => collector.header(&header),
            _ if !collector.has_run() || (number == 1 && !matches!(probe(&text), Probe::Recording(_))) => {
                return Err(ReadError::NoRecording(file.to_owned()));
            }
            Content::Line(line) => {
                if !collector.line(line) {
                    broken.add(number);
                }
            }
            Content::Unknown => {}
            Content::Newer(_) | Content::Broken if is_whole || read == MAX_LINE => broken.add(number),
            Content::Newer(_) | Content::Broken => broken.is_cut = true,
        }
    }
    if number == 0 {
        // A picker creates it a moment before it writes the header.
        return Ok(());
    }
    collector.notes.extend(broken.notes(file));
    Ok(())
}

/// Lines that can't be read.
#[derive(Default)]
struct Broken {
    first: usize,
    count: u64,
    is_cut: bool,
}

impl Broken {
    fn add(&mut self, number: usize) {
        if self.count == 0 {
            self.first = number;
        }
        self.count += 1;
    }

    fn notes(&self, file: &Path) -> Vec<String> {
        let (name, Self { first, count, is_cut }) = (file.display(), self);
        let mut notes = Vec::new();
        match count {
            0 => {}
            1 => notes.push(format!("{name}:{first}: the line is broken, and was left out")),
            _ => notes.push(format!(
                "{name}:{first}: this and {} more lines are broken, and were left out",
                count - 1
            )),
        }
        if *is_cut {
            notes.push(format!("{name}: the last line is cut short, and was left out"));
        }
        notes
    }
}

enum Content {
    Line(Line),
    /// A header of another version, which this one can't read.
    Newer(u32),
    /// A kind of line that was added later.
    Unknown,
    Broken,
}

fn line(text: &[u8]) -> Content {
    if let Ok(line) = serde_json::from_slice(text) {
        return Content::Line(line);
    }
    if let Probe::Recording(version) = probe(text) {
        return Content::Newer(version);
    }
    let object = serde_json::from_slice::<std::collections::BTreeMap<String, IgnoredAny>>(text);
    match object {
        Ok(object) if object.len() == 1 && object.keys().all(|kind| !KINDS.contains(&kind.as_str())) => {
            Content::Unknown
        }
        _ => Content::Broken,
    }
}

fn skip_line(input: &mut impl BufRead) -> io::Result<()> {
    loop {
        let buffer = input.fill_buf()?;
        if buffer.is_empty() {
            return Ok(());
        }
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let used = end.map_or(buffer.len(), |end| end + 1);
        input.consume(used);
        if end.is_some() {
            return Ok(());
        }
    }
}
