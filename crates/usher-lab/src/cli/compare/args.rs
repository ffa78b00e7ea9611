//! The arguments of `usher compare`, and what they come to.

use std::env::current_exe;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use crate::cli::demo::TRACE;
use crate::cli::load::header;
use crate::load::trace::{Row, parse};
use usher_core::config::source;
use usher_core::config::units::parse_duration;
use usher_terminal::Output;

/// Configuration of both pickers unless another is given: Usher's default, which is llm-d-router's.
const CONFIG: (&str, &str) =
    ("the default configuration", include_str!("../../../../../deploy/config/default.yaml"));

/// Arguments of `usher compare`.
#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// Shell command of the other picker, which takes the flags of `usher serve`. Those given
    /// here go before those that the comparison adds.
    #[arg(value_name = "COMMAND")]
    pub peer: String,
    /// Shell command of the first picker. Default: `serve` of this program.
    #[arg(long, value_name = "COMMAND")]
    pub usher: Option<String>,
    /// EndpointPickerConfig of both. Default: deploy/config/default.yaml. Where it says that
    /// endpoints come from is replaced by the simulated servers.
    #[arg(long = "config-file", alias = "config", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// EndpointPickerConfig of the other picker, where it is not the same.
    #[arg(long = "peer-config-file", alias = "peer-config", value_name = "FILE")]
    pub peer_config: Option<PathBuf>,
    /// Trace whose prompts are sent, as of `usher load --trace`. Default: the demo's.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Requests, from the start of the trace; fewer if it has fewer.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = positive)]
    pub requests: usize,
    /// Simulated servers.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub servers: u16,
    /// Number of servers labelled as prefill (llm-d.ai/role); the others are decode. 0: no labels.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub prefill: u16,
    /// Requests after which the servers' load changes. 0: never.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub change_every: usize,
    /// Time between two requests, for what a picker learns after its reply.
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = parse_duration)]
    pub pause: Duration,
    /// Header of every request, "NAME: VALUE". May be given several times.
    #[arg(long = "header", value_name = "HEADER", value_parser = header)]
    pub headers: Vec<(String, String)>,
    /// Seed of the servers' loads.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Differing decisions that are listed in the text.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub show: usize,
    /// Format of the result.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "it has to be a number above 0".to_owned())
}

/// A comparison, ready to be run.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) usher: String,
    pub(super) peer: String,
    pub(super) config: Source,
    pub(super) peer_config: Source,
    pub(super) trace: String,
    pub(super) rows: Vec<Row>,
    pub(super) servers: u16,
    pub(super) prefill: u16,
    pub(super) change_every: usize,
    pub(super) pause: Duration,
    pub(super) headers: Vec<(String, String)>,
    pub(super) seed: u64,
    pub(super) show: usize,
}

/// A text, and what it is called.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) name: String,
    pub(super) text: String,
}

impl Plan {
    /// Server load that counts for a request.
    pub(super) fn step(&self, request: usize) -> usize {
        request.checked_div(self.change_every).unwrap_or_default()
    }
}

impl CompareArgs {
    /// Reads the files.
    ///
    /// # Errors
    /// One line: what can't be used, and what to do.
    pub(super) fn plan(&self) -> Result<Plan, String> {
        if self.peer.trim().is_empty() {
            return Err("COMMAND is empty; give the command of a picker, for example 'epp --v=1'".into());
        }
        if self.prefill >= self.servers {
            return Err(format!(
                "--prefill {}: none of {} servers is left to decode; raise --servers",
                self.prefill, self.servers
            ));
        }
        let usher = match &self.usher {
            Some(command) => command.clone(),
            None => {
                let program = current_exe().map_err(|error| {
                    format!("cannot find the path of this program ({error}); give --usher")
                })?;
                format!("{} serve", quoted(&program.display().to_string()))
            }
        };
        let config = self.config.as_deref().map_or_else(
            || Ok(Source { name: CONFIG.0.to_owned(), text: CONFIG.1.to_owned() }),
            read_config,
        )?;
        let peer_config = self.peer_config.as_deref().map_or_else(|| Ok(config.clone()), read_config)?;
        let (trace, text) = match &self.trace {
            None => ("the demo's trace".to_owned(), TRACE.to_owned()),
            Some(path) => {
                let text = fs::read_to_string(path);
                let text = text.map_err(|error| format!("cannot use {}: {error}", path.display()))?;
                (path.display().to_string(), text)
            }
        };
        let rows = parse(&text, self.requests).map_err(|error| format!("cannot use {trace}: {error}"))?;
        Ok(Plan {
            usher,
            peer: self.peer.clone(),
            config,
            peer_config,
            trace,
            rows,
            servers: self.servers,
            prefill: self.prefill,
            change_every: self.change_every,
            pause: self.pause,
            headers: self.headers.clone(),
            seed: self.seed,
            show: self.show,
        })
    }
}

fn read_config(path: &Path) -> Result<Source, String> {
    let name = path.display().to_string();
    match source::read_file(path) {
        Ok(text) => Ok(Source { name, text }),
        Err(error) => Err(error.in_file(&name)),
    }
}

/// A path as one word of a shell's command.
fn quoted(path: &str) -> String {
    format!("'{}'", path.replace('\'', r"'\''"))
}
