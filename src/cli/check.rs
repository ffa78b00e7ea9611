//! `usher check`: is a configuration valid, and what does it come to?

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use prometheus::Registry;
use serde_json::{Value, json};

use crate::config::{ConfigError, EndpointPickerConfig, source};
use crate::schedule::registry::{Origin, Pipeline, Resolved, ResolvedPlugin, Use};
use crate::schedule::{SchedulerMetrics, State};

/// What follows from a configuration that doesn't say where endpoints come from.
const NO_DISCOVERY: &str =
    "none: give usher serve --endpoints-file, Kubernetes discovery is not in this version";

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
    let config = EndpointPickerConfig::parse(&text).map_err(locate)?;
    let metrics = SchedulerMetrics::register(&Registry::new()).map_err(|error| error.to_string())?;
    let state = State::default();
    let pipeline = Pipeline::build(Some(&config), args.allow_experimental_plugins, &metrics, &state);
    let pipeline = pipeline.map_err(locate)?;
    let mut notes = pipeline.notes;
    if pipeline.discovery.is_none() {
        notes.push(format!("dataLayer.discovery: {NO_DISCOVERY}"));
    }
    Ok(match args.output {
        Output::Text => text_report(&name, &pipeline.resolved, &notes),
        Output::Json => json_report(&pipeline.resolved, &notes),
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

fn json_report(resolved: &Resolved, notes: &[String]) -> String {
    format!("{:#}\n", json!({"valid": true, "pipeline": resolved, "notes": notes}))
}

/// The report as it is put together. Writing to a string can't fail.
struct Report(String);

impl Report {
    fn line(&mut self, title: &str, text: &str) {
        let line = format!("{title:<18}{text}");
        let _ = writeln!(self.0, "{}", line.trim_end());
    }

    /// A title before the first of several texts.
    fn lines(&mut self, title: &str, texts: impl IntoIterator<Item = String>) {
        let mut title = title;
        for text in texts {
            self.line(title, &text);
            title = "";
        }
    }
}

fn text_report(name: &str, resolved: &Resolved, notes: &[String]) -> String {
    let mut report = Report(format!("{name} is valid\n\n"));
    for profile in &resolved.profiles {
        report.line("profile", &format!("{}{}", profile.name, mark(profile.defaulted)));
        report.lines("  filters", profile.filters.iter().cloned());
        report.lines("  scorers", profile.scorers.iter().map(|s| format!("{} × {}", s.plugin, s.weight)));
        report.line("  picker", &used(&profile.picker));
    }
    report.line("profile handler", &used(&resolved.profile_handler));
    report.lines("parsers", resolved.parsers.iter().map(used));
    report.line("discovery", &resolved.discovery.as_ref().map_or(NO_DISCOVERY.to_owned(), used));
    report.lines(
        "data sources",
        resolved
            .sources
            .iter()
            .map(|source| format!("{} → {}", used(&source.source), source.extractors.join(", "))),
    );
    report.line("saturation", &used(&resolved.saturation_detector));
    let gates = &resolved.feature_gates;
    report.line(
        "feature gates",
        &format!(
            "flowControl={}, haPopulateNonLeaderDatastore={}",
            gates.flow_control, gates.ha_populate_non_leader_datastore
        ),
    );
    report.0.push('\n');
    report.lines("plugins", resolved.plugins.iter().map(plugin));
    if !notes.is_empty() {
        report.0.push('\n');
    }
    report.lines("notes", notes.iter().cloned());
    report.0
}

fn mark(defaulted: bool) -> &'static str {
    if defaulted { " (default)" } else { "" }
}

fn used(plugin: &Use) -> String {
    format!("{}{}", plugin.plugin, mark(plugin.defaulted))
}

/// Name, type if it differs, parameters and origin.
fn plugin(plugin: &ResolvedPlugin) -> String {
    let mut text = plugin.name.clone();
    if plugin.name != plugin.plugin_type {
        let _ = write!(text, " = {}", plugin.plugin_type);
    }
    if let Value::Object(parameters) = &plugin.parameters {
        for (key, value) in parameters.iter().filter(|(_, value)| !value.is_null()) {
            let _ = write!(text, " {key}={value}");
        }
    }
    let _ = match plugin.origin {
        Origin::Declared(at) => write!(text, " (line {})", at.line),
        Origin::Defaulted => write!(text, "{}", mark(true)),
    };
    text
}
