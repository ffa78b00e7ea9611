//! Errors in a configuration beyond the first, at which commands that need it end.

use std::path::PathBuf;

use usher_terminal::CliError;

use super::check;
use crate::registry::PluginTypes;

/// The error, with the number of errors that `usher check` shows where it is in one of these files and not the only one.
pub(super) fn counted(error: CliError, files: &[PathBuf], types: &PluginTypes) -> CliError {
    let CliError::Usage(text) = error else { return error };
    let file = files.iter().find(|file| text.starts_with(&format!("{}:", file.display())));
    // A pipe has been read, and may never end again.
    let file = file.filter(|file| file.metadata().is_ok_and(|file| file.is_file()));
    let count = file.map_or(0, |file| check::errors_in(file, types));
    match file {
        Some(file) if count > 1 => {
            CliError::Usage(format!("{text}; `usher check {}` shows all {count} errors", file.display()))
        }
        _ => CliError::Usage(text),
    }
}
