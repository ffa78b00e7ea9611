//! `usher check`: is a configuration valid, and what does it come to?

mod report;

use std::fmt::Display;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use prometheus::Registry;
use serde::Serialize;
use serde_json::json;

use crate::config::{ConfigError, EndpointPickerConfig, source};
use crate::schedule::registry::Pipeline;
use crate::schedule::{SchedulerMetrics, State};

/// What follows from a configuration that doesn't say where endpoints come from.
const NO_DISCOVERY: &str = "none: give usher serve --endpoints-file, --pool-name or --endpoint-selector";

/// Validates a configuration and prints what it comes to, defaults filled in.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// The configuration (YAML or JSON); - reads standard input
    pub file: PathBuf,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
    /// Accept plugin types that the peer calls Alpha
    #[arg(long)]
    pub allow_experimental_plugins: bool,
}

/// How a result is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Text,
    /// For machines.
    Json,
}

impl Output {
    /// A result as it is printed: its text, or JSON that ends with a line's end.
    pub(super) fn render(self, report: &(impl Display + Serialize)) -> serde_json::Result<String> {
        Ok(match self {
            Self::Text => report.to_string(),
            Self::Json => serde_json::to_string_pretty(report)? + "\n",
        })
    }

    /// Prints a result on standard output.
    pub(super) fn print(self, report: &(impl Display + Serialize)) -> io::Result<()> {
        let text = self.render(report)?;
        let mut out = io::stdout();
        out.write_all(text.as_bytes()).and_then(|()| out.flush())
    }
}

/// Checks the file. 0: valid; 2: invalid or unreadable, with one line on standard
/// error; 1: the result could not be written.
pub fn run(args: &CheckArgs) -> ExitCode {
    ExitCode::from(run_with(args, &mut io::stdin(), &mut io::stdout(), &mut io::stderr()))
}

/// [`run`] with streams of the caller's choice. Returns the exit code.
pub fn run_with(args: &CheckArgs, input: &mut dyn Read, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let (code, result) = match check(args, input) {
        Ok(report) => (0, out.write_all(report.as_bytes()).and_then(|()| out.flush())),
        Err(line) => (2, writeln!(err, "{line}")),
    };
    if result.is_ok() { code } else { 1 }
}

fn check(args: &CheckArgs, input: &mut dyn Read) -> Result<String, String> {
    let (name, text) = read(args, input)?;
    let locate = |error: ConfigError| error.in_file(&name);
    let config = EndpointPickerConfig::parse_unless_empty(&text).map_err(locate)?;
    let metrics = SchedulerMetrics::register(&Registry::new()).map_err(|error| error.to_string())?;
    let state = State::default();
    let pipeline = Pipeline::build(config.as_ref(), args.allow_experimental_plugins, &metrics, &state);
    let pipeline = pipeline.map_err(locate)?;
    // How often serve polls what names no interval is not known here.
    let stale = pipeline.notes_on_staleness(None);
    let (mut notes, warnings) = (pipeline.notes, pipeline.warnings);
    notes.extend(stale);
    if pipeline.discovery.is_none() {
        notes.push(format!("dataLayer.discovery: {NO_DISCOVERY}"));
    }
    let title = match config {
        Some(_) => format!("{name} is valid"),
        None => format!("{name} is empty, which asks for the built-in configuration"),
    };
    let resolved = &pipeline.resolved;
    Ok(match args.output {
        Output::Text => report::text(&title, resolved, (&warnings, &notes), NO_DISCOVERY),
        Output::Json => {
            let report = json!({"valid": true, "pipeline": resolved, "warnings": warnings, "notes": notes});
            format!("{report:#}\n")
        }
    })
}

fn read(args: &CheckArgs, input: &mut dyn Read) -> Result<(String, String), String> {
    let (name, text) = if args.file.as_os_str() == "-" {
        ("<stdin>".to_owned(), source::read(input))
    } else {
        (args.file.display().to_string(), source::read_file(&args.file))
    };
    match text {
        Ok(text) => Ok((name, text)),
        Err(error) => Err(error.in_file(&name)),
    }
}
