//! `usher check`: whether files are valid, and what they come to.

mod compare;
mod config;
mod file;
mod findings;
mod learned;
mod lines;
mod policies;
mod report;
mod sample;
mod topologies;
mod view;
mod words;

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
pub use usher_terminal::Output;
use usher_terminal::{excerpt, fit};

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
    /// Files (YAML or JSON): EndpointPickerConfig, capacity policies, topologies, lists of endpoints; - reads standard
    /// input
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
    /// Admin port of a running picker, to warn of constants that are far from what it has learned; an error if it doesn't
    /// respond
    #[arg(long, value_name = "URL")]
    pub admin: Option<String>,
    /// Memory budget (as of usher serve) that a tokenizer has to fit into
    #[arg(long, value_name = "SIZE", default_value = "off", value_parser = memory_budget)]
    pub memory_budget: MemoryBudget,
}

/// Columns of the terminals that standard output and standard error are; `None`: it is none, and gets whole lines.
#[derive(Clone, Copy, Default)]
struct Widths {
    out: Option<usize>,
    err: Option<usize>,
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
        let widths = Widths { out: usher_terminal::width(), err: usher_terminal::error_width() };
        ExitCode::from(self.run_with(widths, &mut io::stdin(), &mut io::stdout(), &mut io::stderr()))
    }

    fn run_with(&self, widths: Widths, input: &mut dyn Read, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
        let (code, result) = match self.check(input) {
            Ok(done) => {
                let printed = match self.args.output {
                    Output::Text => text(&done, widths, out, err),
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

/// Number of errors that a check of a file shows.
pub(super) fn errors_in(file: &Path, types: &PluginTypes) -> usize {
    let memory = MemorySettings { budget: MemoryBudget::Off, prefix_index: None };
    let rules = Rules { types, allow_experimental: false, only: None, admin: None, endpoints: None, memory };
    rules.check(file, &mut io::empty()).outcome.errors().len()
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
    run_on(Widths::default(), args, input, out, err)
}

/// [`run_with`] on a terminal of so many columns.
pub fn run_in(
    width: usize,
    args: &CheckArgs,
    input: &mut dyn Read,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    run_on(Widths { out: Some(width), err: Some(width) }, args, input, out, err)
}

fn run_on(
    widths: Widths,
    args: &CheckArgs,
    input: &mut dyn Read,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    Task { args, types: &PluginTypes::default(), only: None }.run_with(widths, input, out, err)
}

/// Prints what valid files come to, or how they differ, and below each other the errors of the others, with
/// the lines that they are about.
fn text(done: &Done, widths: Widths, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<()> {
    let Done { endpoints, checked, comparison } = done;
    if let Some(file) = endpoints {
        complaints(file, widths.err, err)?;
    }
    let mut separator = "";
    for file in checked {
        complaints(file, widths.err, err)?;
        if let (Outcome::Valid(meaning), None) = (&file.outcome, comparison) {
            write!(out, "{separator}{}", meaning.text(&file.name, widths.out))?;
            separator = "\n";
        }
    }
    match (comparison, widths.out) {
        (Some(comparison), Some(width)) => write!(out, "{comparison:width$}")?,
        (Some(comparison), None) => write!(out, "{comparison}")?,
        (None, _) => {}
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
fn complaints(file: &Checked, width: Option<usize>, err: &mut dyn Write) -> io::Result<()> {
    let Checked { name, text, outcome, .. } = file;
    // With the line that it is about, and a caret.
    let mut show = |before: &str, error: &ConfigError| {
        let place = error.position().map(|Position { line, column }| excerpt(text, line, column, width));
        let what = lines(&format!("{before}{}", error.in_file(name)), width);
        write!(err, "{what}{}", place.unwrap_or_default())
    };
    match outcome {
        Outcome::Valid(meaning) => meaning.warnings().iter().try_for_each(|error| show("warning: ", error)),
        Outcome::Invalid(errors) => errors.iter().try_for_each(|error| show("", error)),
        Outcome::Unreadable(error) => show("", error),
        Outcome::NotCompared(error) => write!(err, "{}", lines(&error.message(), width)),
    }
}

/// A message on one line; on a terminal of `width` columns on several, those below the first one further in.
fn lines(text: &str, width: Option<usize>) -> String {
    if width.is_none() {
        return format!("{text}\n");
    }
    fit(text, width, 2).join("\n  ") + "\n"
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
