//! Forms of a result.

use std::fmt::Display;
use std::io::{self, Write};

use clap::ValueEnum;
use serde::Serialize;

use crate::wrap::width;

/// Format of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Text,
    /// For machines.
    Json,
}

impl Output {
    /// A result as it is printed: its text, as wide as the terminal, or JSON that ends with a line's end.
    ///
    /// # Errors
    /// `serde_json::Error` if the value can't be written as JSON.
    pub fn render(self, report: &(impl Display + Serialize)) -> serde_json::Result<String> {
        Ok(match self {
            Self::Text => match width() {
                Some(width) => format!("{report:width$}"),
                None => report.to_string(),
            },
            Self::Json => serde_json::to_string_pretty(report)? + "\n",
        })
    }

    /// Prints a result on standard output.
    ///
    /// # Errors
    /// `io::Error` if it can't be written.
    pub fn print(self, report: &(impl Display + Serialize)) -> io::Result<()> {
        print(&self.render(report)?)
    }
}

/// Prints a text on standard output.
///
/// # Errors
/// `io::Error` if it can't be written.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}
