//! `usher check`: whether files are valid, and what they come to.

mod compare;
mod config;
mod file;
mod findings;
mod learned;
mod policies;
mod report;
mod sample;
mod view;
mod words;

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
pub use usher_terminal::Output;
use usher_terminal::{PAGE, excerpt};

use crate::cli::flags::memory_budget;
use crate::config::{ConfigError, FileKind, Position};
use crate::registry::PluginTypes;
use crate::settings::{MemoryBudget, MemorySettings};
use compare::{Comparison, compare};
use config::Config;
use file::{Checked, Meaning, Outcome, Rules, endpoints_to_try};

/// Validates files, explains what they do, and warns of combinations that are known to work badly.
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
    /// Tell what changes in behaviour from this configuration to the one of FILE
    #[arg(long, value_name = "OLD")]
    pub compare: Option<PathBuf>,
    /// Endpoints (as of usher serve), to try prompts of 200 and 2,000 tokens on each configuration
    #[arg(long, value_name = "ENDPOINTS")]
    pub endpoints_file: Option<PathBuf>,
    /// Admin port of a running picker, to warn of constants that are far from what it has learned
    #[arg(long, value_name = "URL")]
    pub admin: Option<String>,
    /// Memory budget (as of usher serve) that a tokenizer has to fit into
    #[arg(long, value_name = "SIZE", default_value = "off", value_parser = memory_budget)]
    pub memory_budget: MemoryBudget,
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
    /// could not be asked; 2: one could not be read, or the arguments are wrong.
    pub(super) fn run(&self) -> ExitCode {
        let width = usher_terminal::width().unwrap_or(PAGE);
        ExitCode::from(self.run_with(width, &mut io::stdin(), &mut io::stdout(), &mut io::stderr()))
    }

    fn run_with(&self, width: usize, input: &mut dyn Read, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
        let (code, result) = match self.check(input) {
            Ok(done) => {
                let printed = match self.args.output {
                    Output::Text => text(&done, width, out, err),
                    Output::Json => json(&done, out),
                };
                (done.files().map(Checked::code).max().unwrap_or(0), printed)
            }
            Err((code, line)) => (code, writeln!(err, "{line}")),
        };
        if result.is_ok() { code } else { 1 }
    }

    /// All files, or the exit code with a line about what is wrong.
    fn check(&self, input: &mut dyn Read) -> Result<Done, (u8, String)> {
        let old = self.args.compare.as_ref();
        let files: Vec<&PathBuf> = old.into_iter().chain(&self.args.files).collect();
        for (index, file) in files.iter().enumerate() {
            if files[..index].contains(file) {
                let name = file.display();
                return Err((2, format!("usher: {name} is given twice; name each file once")));
            }
        }
        if old.is_some() && files.len() != 2 {
            return Err((2, "usher: --compare OLD takes one other FILE".to_owned()));
        }
        let endpoints = self.args.endpoints_file.as_deref().map(endpoints_to_try);
        let rules = Rules {
            types: self.types,
            allow_experimental: self.args.allow_experimental_plugins,
            only: self.only.clone(),
            admin: self.args.admin.as_deref(),
            endpoints: endpoints.as_ref().and_then(Checked::endpoints),
            memory: MemorySettings { budget: self.args.memory_budget, prefix_index: None },
        };
        let checked: Vec<Checked> = files.iter().map(|file| rules.check(file, input)).collect();
        let comparison = match (old, &checked[..]) {
            (Some(_), [old, new]) => compared(old, new)?,
            _ => None,
        };
        Ok(Done { endpoints, checked, comparison })
    }
}

/// Checked files, and what changes from the first to the second, if that was asked.
struct Done {
    /// File of `--endpoints-file`.
    endpoints: Option<Checked>,
    checked: Vec<Checked>,
    comparison: Option<Comparison>,
}

impl Done {
    /// All files, the one of `--endpoints-file` first.
    fn files(&self) -> impl Iterator<Item = &Checked> {
        self.endpoints.iter().chain(&self.checked)
    }
}

/// Compares two files; `None` if one is not valid.
fn compared(old: &Checked, new: &Checked) -> Result<Option<Comparison>, (u8, String)> {
    fn config(checked: &Checked) -> Result<Option<&Config>, (u8, String)> {
        match &checked.outcome {
            Outcome::Valid(Meaning::Config(config)) => Ok(Some(config)),
            Outcome::Valid(_) => {
                let name = &checked.name;
                Err((
                    2,
                    format!(
                        "usher: --compare: {name} is no EndpointPickerConfig, and only these are compared"
                    ),
                ))
            }
            _ => Ok(None),
        }
    }
    let (Some(before), Some(now)) = (config(old)?, config(new)?) else { return Ok(None) };
    Ok(Some(compare(
        (&old.name, &before.resolved, &before.findings),
        (&new.name, &now.resolved, &now.findings),
    )))
}

/// Checks the files, with the built-in plugins and streams of the caller's choice. Returns the exit code.
pub fn run_with(args: &CheckArgs, input: &mut dyn Read, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    run_in(PAGE, args, input, out, err)
}

/// [`run_with`] on a terminal of so many columns.
pub fn run_in(
    width: usize,
    args: &CheckArgs,
    input: &mut dyn Read,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    Task { args, types: &PluginTypes::default(), only: None }.run_with(width, input, out, err)
}

/// Prints what valid files come to, or how they differ, and below each other the errors of the others, with
/// the lines that they are about.
fn text(done: &Done, width: usize, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<()> {
    let Done { endpoints, checked, comparison } = done;
    if let Some(file) = endpoints {
        complaints(file, err)?;
    }
    let mut separator = "";
    for file in checked {
        complaints(file, err)?;
        if let (Outcome::Valid(meaning), None) = (&file.outcome, comparison) {
            write!(out, "{separator}{}", meaning.text(&file.name, width))?;
            separator = "\n";
        }
    }
    if let Some(comparison) = comparison {
        write!(out, "{comparison:width$}")?;
    }
    out.flush()?;
    let errors: usize = done.files().map(|file| file.outcome.errors().len()).sum();
    let wrong = done.files().filter(|file| file.code() > 0).count();
    match (done.files().count(), errors) {
        (_, 0) | (1, 1) => Ok(()),
        (1, errors) => writeln!(err, "{errors} errors"),
        (files, 1) => writeln!(err, "1 error in 1 of {files} files"),
        (files, errors) => writeln!(err, "{errors} errors in {wrong} of {files} files"),
    }
}

/// Prints the warnings or the errors of a file.
fn complaints(file: &Checked, err: &mut dyn Write) -> io::Result<()> {
    let Checked { name, text, outcome, .. } = file;
    match outcome {
        Outcome::Valid(meaning) => {
            for warning in meaning.warnings() {
                write!(err, "warning: {}", shown(warning, name, text))?;
            }
        }
        Outcome::Invalid(errors) => {
            for error in errors {
                write!(err, "{}", shown(error, name, text))?;
            }
        }
        Outcome::Unreadable(error) => writeln!(err, "{}", error.in_file(name))?,
        Outcome::NotCompared(error) => writeln!(err, "{}", error.message())?,
    }
    Ok(())
}

/// An error with its line and a caret.
fn shown(error: &ConfigError, name: &str, text: &str) -> String {
    let place = error.position().map(|Position { line, column }| excerpt(text, line, column));
    format!("{}\n{}", error.in_file(name), place.unwrap_or_default())
}

fn json(done: &Done, out: &mut dyn Write) -> io::Result<()> {
    let files: Vec<_> = done.checked.iter().map(Checked::json).collect();
    let valid = done.files().all(Checked::is_valid);
    let mut report = json!({"valid": valid, "files": files});
    if let Some(endpoints) = &done.endpoints {
        report["endpoints_file"] = endpoints.json();
    }
    if let Some(comparison) = &done.comparison {
        report["comparison"] = json!(comparison);
    }
    writeln!(out, "{report:#}")?;
    out.flush()
}
