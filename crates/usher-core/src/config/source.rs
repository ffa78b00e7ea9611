//! Reads the text of a configuration, wherever it comes from.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use super::error::ConfigError;
use super::parse::MAX_BYTES;

/// The text of a file of any kind.
///
/// # Errors
/// `ConfigError` with a hint if the file can't be opened or read.
pub fn read_file(path: &Path) -> Result<String, ConfigError> {
    File::open(path).and_then(text).map_err(|error| unreadable("file", &error))
}

/// The text of an input of any kind.
///
/// # Errors
/// `ConfigError` with a hint if the text can't be read.
pub fn read(source: impl Read) -> Result<String, ConfigError> {
    text(source).map_err(|error| unreadable("input", &error))
}

fn text(source: impl Read) -> io::Result<String> {
    let mut text = String::new();
    // One byte more than allowed, so that the reader of the text can refuse it.
    source.take(MAX_BYTES as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

/// Says that a file, which is named by its role here, can't be read, and what
/// to do about it.
pub fn unreadable(role: &str, error: &io::Error) -> ConfigError {
    let hint = match error.kind() {
        ErrorKind::NotFound => "check the path, a relative one counts from the working directory",
        ErrorKind::PermissionDenied => "let the user that runs usher read it",
        ErrorKind::IsADirectory => "give the path of a file",
        ErrorKind::InvalidData => "save it as UTF-8",
        _ => "check the path and what it is mounted from",
    };
    ConfigError::new(format!("the {role} can't be read: {error}")).hint(hint)
}
