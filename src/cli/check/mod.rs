//! `usher check`: whether files are valid, and what they come to.

mod file;
mod learned;
mod policies;
mod report;

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
pub use usher_terminal::Output;
use usher_terminal::excerpt;

use crate::config::{ConfigError, FileKind, Position};
use crate::registry::PluginTypes;
use file::{Checked, Outcome, Rules};

/// Validates files and prints what they come to, defaults filled in.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// Files (YAML or JSON): EndpointPickerConfig, capacity policies, lists of endpoints; - reads standard input
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Format of the result, errors included
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
    /// Accept plugin types that llm-d-router calls Alpha
    #[arg(long)]
    pub allow_experimental_plugins: bool,
    /// Admin port of a running picker, to warn of constants that are far from what it has learned
    #[arg(long, value_name = "URL")]
    pub admin: Option<String>,
}

/// Files to check, and how.
pub(super) struct Task<'a> {
    pub(super) args: &'a CheckArgs,
    /// Plugin types that configurations may name.
    pub(super) types: &'a PluginTypes,
    /// Kind that every file has to be of; `None`: each says its own.
    pub(super) only: Option<FileKind>,
}

impl Task<'_> {
    /// Checks the files. 0: all are valid; 1: one is not, the result could not be written, or the picker
    /// could not be asked; 2: one could not be read, or is given twice.
    pub(super) fn run(&self) -> ExitCode {
        ExitCode::from(self.run_with(&mut io::stdin(), &mut io::stdout(), &mut io::stderr()))
    }

    fn run_with(&self, input: &mut dyn Read, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
        let (code, result) = match self.check(input) {
            Ok(checked) => {
                let printed = match self.args.output {
                    Output::Text => text(&checked, out, err),
                    Output::Json => json(&checked, out),
                };
                (checked.iter().map(Checked::code).max().unwrap_or(0), printed)
            }
            Err((code, line)) => (code, writeln!(err, "{line}")),
        };
        if result.is_ok() { code } else { 1 }
    }

    /// All files, or the exit code with a line about what is wrong.
    fn check(&self, input: &mut dyn Read) -> Result<Vec<Checked>, (u8, String)> {
        let files = &self.args.files;
        for (index, file) in files.iter().enumerate() {
            if files[..index].contains(file) {
                let name = file.display();
                return Err((2, format!("usher: {name} is given twice; name each file once")));
            }
        }
        let rules = Rules {
            types: self.types,
            allow_experimental: self.args.allow_experimental_plugins,
            only: self.only.clone(),
            admin: self.args.admin.as_deref(),
        };
        Ok(files.iter().map(|file| rules.check(file, input)).collect())
    }
}

/// Checks the files, with the built-in plugins and streams of the caller's choice. Returns the exit code.
pub fn run_with(args: &CheckArgs, input: &mut dyn Read, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    Task { args, types: &PluginTypes::default(), only: None }.run_with(input, out, err)
}

/// Prints what valid files come to, and below each other the errors of the others, with the lines that they
/// are about.
fn text(checked: &[Checked], out: &mut dyn Write, err: &mut dyn Write) -> io::Result<()> {
    let mut separator = "";
    for Checked { name, text, outcome, .. } in checked {
        match outcome {
            Outcome::Valid(meaning) => {
                for warning in meaning.warnings() {
                    write!(err, "warning: {}", shown(warning, name, text))?;
                }
                write!(out, "{separator}{}", meaning.text(name))?;
                separator = "\n";
            }
            Outcome::Invalid(errors) => {
                for error in errors {
                    write!(err, "{}", shown(error, name, text))?;
                }
            }
            Outcome::Unreadable(error) => writeln!(err, "{}", error.in_file(name))?,
            Outcome::NotCompared(error) => writeln!(err, "{}", error.message())?,
        }
    }
    out.flush()?;
    let (errors, wrong) = (count(checked), checked.iter().filter(|file| file.code() > 0).count());
    match (checked.len(), errors) {
        (_, 0) | (1, 1) => Ok(()),
        (1, errors) => writeln!(err, "{errors} errors"),
        (files, 1) => writeln!(err, "1 error in 1 of {files} files"),
        (files, errors) => writeln!(err, "{errors} errors in {wrong} of {files} files"),
    }
}

/// An error with its line and a caret.
fn shown(error: &ConfigError, name: &str, text: &str) -> String {
    let place = error.position().map(|Position { line, column }| excerpt(text, line, column));
    format!("{}\n{}", error.in_file(name), place.unwrap_or_default())
}

fn count(checked: &[Checked]) -> usize {
    checked.iter().map(|file| file.outcome.errors().len()).sum()
}

fn json(checked: &[Checked], out: &mut dyn Write) -> io::Result<()> {
    let files: Vec<_> = checked.iter().map(Checked::json).collect();
    let valid = checked.iter().all(Checked::is_valid);
    writeln!(out, "{:#}", json!({"valid": valid, "files": files}))?;
    out.flush()
}
