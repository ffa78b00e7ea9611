//! Files of policies.

use std::io;
use std::path::Path;

use crate::capacity::policy::Policy;
use crate::capacity::policy::file::{self, Read};
use crate::config::source;
use usher_terminal::CliError;

/// Reads the policy of a file, or the one of this name where there are several.
pub(super) fn read_one(path: &Path, name: Option<&str>) -> Result<Policy, CliError> {
    let mut policies: Vec<Policy> = read(path)?.into_iter().map(|read| read.policy).collect();
    let file = path.display();
    let names = || policies.iter().map(|policy| policy.name.as_str()).collect::<Vec<_>>().join(", ");
    let place = match name {
        Some(name) => policies.iter().position(|policy| policy.name == *name).ok_or_else(|| {
            CliError::Usage(format!("{file}: there is no policy '{name}'; there are: {}", names()))
        })?,
        None if policies.len() == 1 => 0,
        None => {
            return Err(CliError::Usage(format!(
                "{file}: there are several policies; choose one with --name: {}",
                names()
            )));
        }
    };
    Ok(policies.swap_remove(place))
}

/// Reads a file of policies. What looks wrong and may be meant goes to standard error.
pub(super) fn read(path: &Path) -> Result<Vec<Read>, CliError> {
    let (name, text) = if path.as_os_str() == "-" {
        ("<stdin>".to_owned(), source::read(io::stdin()))
    } else {
        (path.display().to_string(), source::read_file(path))
    };
    let text = text.map_err(|error| CliError::Usage(error.in_file(&name)))?;
    let policies = file::parse(&text).map_err(|errors| {
        let more = match errors.len() - 1 {
            0 => String::new(),
            1 => " (and one more error)".to_owned(),
            more => format!(" (and {more} more errors)"),
        };
        let first = errors.first().map(|error| error.in_file(&name)).unwrap_or_default();
        // All of them, where one line per error can be read; the last is the one that ends the command.
        errors.iter().skip(1).for_each(|error| eprintln!("usher: {}", error.in_file(&name)));
        CliError::Usage(first + &more)
    })?;
    for warning in policies.iter().flat_map(|read| &read.warnings) {
        eprintln!("usher: warning: {}", warning.in_file(&name));
    }
    Ok(policies)
}
