//! Logs and traces.

use clap::{ArgAction, Args};
use tracing::Level;

use super::pflag::{BOOL, given};
use super::unused::Unused;
use crate::config::units::{parse_bool, parse_quantity};
use crate::settings::{LogSettings, RecordingSettings};

/// Logs and traces.
#[derive(Debug, Args)]
#[command(next_help_heading = "Logs and traces")]
pub struct LogFlags {
    /// Log verbosity: up to 2 info (membership, configuration), from 3 debug (each decision). Higher
    /// values log the same.
    #[arg(short = 'v', long = "v", value_name = "LEVEL", default_value_t = 2)]
    pub v: i32,

    /// Log format: json or console. By default console, and json with --zap-devel=false.
    #[arg(long, value_name = "FORMAT")]
    pub zap_encoder: Option<String>,

    /// Log level instead of -v: debug, info, error, panic, or a verbosity.
    #[arg(long, value_name = "LEVEL")]
    pub zap_log_level: Option<String>,

    /// Development defaults of the log: the console format.
    #[arg(long, value_name = BOOL, default_value = "true", value_parser = parse_bool, action = ArgAction::Set)]
    pub zap_devel: bool,

    /// Last decisions that are kept for usher explain and /decisions of the admin port; 0 keeps none.
    /// At most 65536.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = decision_records)]
    pub decision_records: usize,

    /// Record decisions and outcomes of requests into this file, for usher replay --recording: lengths, times and
    /// numbers in place of text. An existing recording is appended to.
    #[arg(long, value_name = "FILE")]
    pub record: Option<String>,

    /// Maximum total size of the recording, at least 64Ki. At half of it FILE is rotated to FILE.1, overwriting
    /// the previous one.
    #[arg(long, value_name = "SIZE", default_value = "256Mi", value_parser = record_size)]
    pub record_max_bytes: u64,

    /// Accepted for compatibility: there are no stack traces in the log.
    #[arg(long, value_name = "LEVEL")]
    pub zap_stacktrace_level: Option<String>,

    /// Accepted for compatibility: times are written as in RFC 3339.
    #[arg(long, value_name = "ENCODING")]
    pub zap_time_encoding: Option<String>,

    /// Trace requests, where an OTEL_ variable names a collector: OTEL_EXPORTER_OTLP_ENDPOINT.
    #[arg(long, value_name = BOOL, default_value = "true", value_parser = parse_bool, action = ArgAction::Set)]
    pub tracing: bool,
}

impl LogFlags {
    pub(super) fn settings(&self, unused: &mut Unused) -> Result<LogSettings, String> {
        let level = match given(&self.zap_log_level) {
            None => of_verbosity(self.v),
            Some("debug") => Level::DEBUG,
            Some("info") => Level::INFO,
            Some("error" | "panic") => Level::ERROR,
            Some(text) => match text.parse() {
                Ok(verbosity) if verbosity > 0 => of_verbosity(verbosity),
                _ => {
                    return Err(format!(
                        "--zap-log-level: {text:?} is no level; write debug, info, error, panic or a number from 1"
                    ));
                }
            },
        };
        let json = match given(&self.zap_encoder) {
            None => !self.zap_devel,
            Some("json") => true,
            Some("console") => false,
            Some(text) => {
                return Err(format!("--zap-encoder: {text:?} is no format; write json or console"));
            }
        };
        unused.note(
            given(&self.zap_stacktrace_level).is_some(),
            "--zap-stacktrace-level",
            "there are no stack traces in the log",
        );
        unused.note(
            given(&self.zap_time_encoding).is_some_and(|encoding| !encoding.starts_with("rfc3339")),
            "--zap-time-encoding",
            "times are written as in RFC 3339",
        );
        Ok(LogSettings { level, json })
    }

    pub(super) fn recording(&self) -> Result<Option<RecordingSettings>, String> {
        match self.record.as_deref() {
            None => Ok(None),
            // A variable that isn't set, most likely: without an error nothing would be recorded.
            Some("") => {
                Err("--record: there is no file name; write --record FILE, or leave the flag out".to_owned())
            }
            Some(file) => Ok(Some(RecordingSettings { file: file.into(), max_bytes: self.record_max_bytes })),
        }
    }
}

/// Most decisions that can be kept.
const MOST_RECORDS: usize = 1 << 16;

fn decision_records(text: &str) -> Result<usize, String> {
    let number: usize = text.parse().map_err(|_| "no whole number".to_owned())?;
    if number > MOST_RECORDS { Err(format!("at most {MOST_RECORDS}")) } else { Ok(number) }
}

/// Smallest recording.
const LEAST_RECORDING: u64 = 64 << 10;

fn record_size(text: &str) -> Result<u64, String> {
    match parse_quantity(text)? {
        ..LEAST_RECORDING => Err(format!("{text:?} is too little; write at least 64Ki")),
        bytes => Ok(bytes),
    }
}

/// llm-d-router's verbosities: 2 default, 3 verbose, 4 debug, 5 trace.
fn of_verbosity(verbosity: i32) -> Level {
    match verbosity {
        ..=2 => Level::INFO,
        3 | 4 => Level::DEBUG,
        5.. => Level::TRACE,
    }
}
