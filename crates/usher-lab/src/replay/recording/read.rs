//! Lines of a recording's files.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::de::IgnoredAny;
use usher_core::recording::{Header, Line, MAX_LINE, Probe, VERSION, probe};

use super::bounds::MOST_REQUESTS;
use super::collect::{Collector, Taken};
use super::error::ReadError;
use super::recorded::Recording;

/// Kinds of lines that this version knows.
const KINDS: [&str; 4] = ["header", "endpoint", "gone", "request"];

/// Bytes of a line beyond the longest that are passed over; a file with more isn't read further.
const MOST_SKIPPED: usize = 16 * MAX_LINE;

impl Recording {
    /// Reads recordings of these files, of each with its predecessor `FILE.1`. One that can't be read is left out with a
    /// note, unless it is named.
    ///
    /// # Errors
    /// `ReadError` with the file that can't be used, and the reason.
    pub fn read(named: &[PathBuf]) -> Result<Self, ReadError> {
        let mut collector = Collector::default();
        for Source { file, is_named } in files(named) {
            let name = shown(&file);
            let opened = File::open(&file).map_err(|error| ReadError::System { file: name.clone(), error });
            match opened.and_then(|file| lines(BufReader::new(file), name, &mut collector)) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if is_named || matches!(error, ReadError::Endpoints { .. }) => return Err(error),
                Err(error) => collector.notes.push(format!("not used: {error}")),
            }
        }
        let first = named.first().map(|file| shown(file)).unwrap_or_default();
        collector.finish()?.ok_or(ReadError::Empty(first))
    }

    /// Reads a recording of one file, which messages call `name`.
    ///
    /// # Errors
    /// `ReadError` with the line if the recording is not valid or too large.
    pub fn parse(name: &str, text: &[u8]) -> Result<Self, ReadError> {
        let mut collector = Collector::default();
        lines(text, name.to_owned(), &mut collector)?;
        collector.finish()?.ok_or_else(|| ReadError::Empty(name.to_owned()))
    }
}

/// A path on one line.
fn shown(file: &Path) -> String {
    file.display().to_string().replace(char::is_control, "\u{fffd}")
}

/// A file of a recording.
struct Source {
    file: PathBuf,
    /// The user named it, and not just the file that follows it.
    is_named: bool,
}

/// Files of recordings, oldest first: before each one its predecessor `FILE.1`, if there is one. Each once.
fn files(named: &[PathBuf]) -> Vec<Source> {
    let real = |file: &Path| file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let all_named: Vec<PathBuf> = named.iter().map(|file| real(file)).collect();
    let mut known: Vec<PathBuf> = Vec::new();
    let mut files: Vec<Source> = Vec::new();
    for file in named {
        let mut before = file.clone().into_os_string();
        before.push(".1");
        let before = PathBuf::from(before);
        for file in [Some(before).filter(|before| before.is_file()), Some(file.clone())].into_iter().flatten()
        {
            let at = real(&file);
            if !known.contains(&at) {
                files.push(Source { file, is_named: all_named.contains(&at) });
                known.push(at);
            }
        }
    }
    files
}

/// Reads the lines of a file. Those that are broken are left out, with a note. Returns `false` if no more can be taken.
fn lines(mut input: impl BufRead, file: String, collector: &mut Collector) -> Result<bool, ReadError> {
    let mut broken = Broken::default();
    let mut text = Vec::new();
    collector.file(file.clone());
    let is_more = loop {
        text.clear();
        let system = |error| ReadError::System { file: file.clone(), error };
        let read = (&mut input).take(MAX_LINE as u64).read_until(b'\n', &mut text).map_err(system)?;
        if read == 0 {
            break true;
        }
        let number = collector.next_line();
        let is_whole = text.last() == Some(&b'\n');
        let is_long = !is_whole && read == MAX_LINE;
        let content = if is_long { Content::Broken } else { line(&text) };
        let taken = match content {
            Content::Line(Line::Header(Header { version, .. })) | Content::Header(version)
                if version > VERSION =>
            {
                return Err(ReadError::Newer { file, line: number, version });
            }
            Content::Line(Line::Header(header)) => collector.header(&header),
            // A picker's header comes first, so it is judged before anything else is read.
            _ if number == 1 => return Err(ReadError::NoRecording(file)),
            Content::Line(line) => collector.line(line)?,
            Content::Unknown => Taken::Yes,
            Content::Header(_) => {
                collector.lose_run();
                Taken::Broken
            }
            Content::Broken => Taken::Broken,
        };
        match taken {
            Taken::Yes => {}
            Taken::Broken if number == 1 => return Err(ReadError::NoRecording(file)),
            Taken::Broken if is_whole || is_long => broken.add(number),
            Taken::Broken => broken.is_cut = true,
            Taken::Full => {
                broken.rest = Some(format!(
                    "{file}:{number}: this line and what follows were left out: there are {MOST_REQUESTS} requests, or as many bytes as a replay takes"
                ));
                break false;
            }
        }
        if is_long && !skip_line(&mut input, MOST_SKIPPED).map_err(system)? {
            broken.rest = Some(format!(
                "{file}:{number}: what follows was left out: the line is longer than {} MiB",
                MOST_SKIPPED >> 20
            ));
            break true;
        }
    };
    // None, if a picker has created it and is about to write the header.
    collector.notes.extend(broken.notes(&file));
    Ok(is_more)
}

/// Lines that can't be read.
#[derive(Default)]
struct Broken {
    first: usize,
    count: u64,
    is_cut: bool,
    /// Note on the rest of the file, if that isn't read.
    rest: Option<String>,
}

impl Broken {
    fn add(&mut self, number: usize) {
        if self.count == 0 {
            self.first = number;
        }
        self.count += 1;
    }

    fn notes(self, name: &str) -> Vec<String> {
        let Self { first, count, is_cut, rest } = self;
        let mut notes = Vec::new();
        match count {
            0 => {}
            1 => notes.push(format!("{name}:{first}: the line is broken, and was left out")),
            _ => notes.push(format!(
                "{name}:{first}: this and {} more lines are broken, and were left out",
                count - 1
            )),
        }
        if is_cut {
            notes.push(format!("{name}: the last line is cut short, and was left out"));
        }
        notes.extend(rest);
        notes
    }
}

enum Content {
    Line(Line),
    /// A header that this version can't read, with its version, or 0.
    Header(u32),
    /// A kind of line that was added later.
    Unknown,
    Broken,
}

fn line(text: &[u8]) -> Content {
    if let Ok(line) = serde_json::from_slice(text) {
        return Content::Line(line);
    }
    match probe(text) {
        Probe::Recording(version) => return Content::Header(version),
        Probe::Other if text.starts_with(b"{\"header\"") => return Content::Header(0),
        Probe::Other => {}
    }
    let object = serde_json::from_slice::<std::collections::BTreeMap<String, IgnoredAny>>(text);
    match object {
        Ok(object) if object.len() == 1 && object.keys().all(|kind| !KINDS.contains(&kind.as_str())) => {
            Content::Unknown
        }
        _ => Content::Broken,
    }
}

/// Passes over the rest of a line, of so many bytes at most. Returns `false` if it is longer.
fn skip_line(input: &mut impl BufRead, most: usize) -> io::Result<bool> {
    let mut skipped = 0;
    while skipped <= most {
        let buffer = input.fill_buf()?;
        if buffer.is_empty() {
            return Ok(true);
        }
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let used = end.map_or(buffer.len(), |end| end + 1);
        input.consume(used);
        skipped += used;
        if end.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}
