//! `usher check`: is a configuration valid, and what does it come to?

mod learned;
mod report;

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use prometheus::Registry;
use serde_json::json;
pub use usher_terminal::Output;

use crate::config::{ConfigError, EndpointPickerConfig, source};
use crate::registry::{Pipeline, PluginTypes};
use crate::schedule::{SchedulerMetrics, State};

/// Note on a configuration that doesn't say where endpoints come from.
const NO_DISCOVERY: &str = "none: give usher serve --endpoints-file, --pool-name or --endpoint-selector";

/// Validates a configuration and prints what it comes to, defaults filled in.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// The configuration (YAML or JSON); - reads standard input
    pub file: PathBuf,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
    /// Accept plugin types that llm-d-router calls Alpha
    #[arg(long)]
    pub allow_experimental_plugins: bool,
    /// Admin port of a running picker, to warn of constants that are far from what it has learned
    #[arg(long, value_name = "URL")]
    pub admin: Option<String>,
}

/// Checks the file. 0: valid; 2: invalid or unreadable, with one line on standard
/// error; 1: the result could not be written, or the picker could not be asked.
pub(super) fn run(args: &CheckArgs, types: &PluginTypes) -> ExitCode {
    ExitCode::from(print(check(args, types, &mut io::stdin()), &mut io::stdout(), &mut io::stderr()))
}

/// The same of the built-in plugins, with streams of the caller's choice. Returns the exit code.
pub fn run_with(args: &CheckArgs, input: &mut dyn Read, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    print(check(args, &PluginTypes::default(), input), out, err)
}

fn print(checked: Result<String, (u8, String)>, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let (code, result) = match checked {
        Ok(report) => (0, out.write_all(report.as_bytes()).and_then(|()| out.flush())),
        Err((code, line)) => (code, writeln!(err, "{line}")),
    };
    if result.is_ok() { code } else { 1 }
}

/// The report, or the exit code with a line about what is wrong.
fn check(args: &CheckArgs, types: &PluginTypes, input: &mut dyn Read) -> Result<String, (u8, String)> {
    let (name, text) = read(args, input).map_err(|line| (2, line))?;
    let locate = |error: ConfigError| (2, error.in_file(&name));
    let config = EndpointPickerConfig::parse_unless_empty(&text).map_err(locate)?;
    let metrics = SchedulerMetrics::register(&Registry::new()).map_err(|error| (2, error.to_string()))?;
    let state = State::default();
    let allowed = args.allow_experimental_plugins;
    let pipeline = Pipeline::build_with(types, config.as_ref(), allowed, &metrics, &state).map_err(locate)?;
    // How often serve polls what names no interval is not known here.
    let stale = pipeline.notes_on_staleness(None);
    let (mut notes, mut warnings) = (pipeline.notes, pipeline.warnings);
    notes.extend(stale);
    if let Some(admin) = &args.admin {
        let learned = learned::learned(admin, &pipeline.resolved).map_err(|line| (1, line))?;
        warnings.extend(learned.warnings);
        notes.extend(learned.notes);
    }
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
