//! The command line: subcommands, exit codes, and errors as one line.

pub mod capacity;
pub mod check;
pub mod compare;
pub mod demo;
pub mod doctor;
pub mod engine;
mod error;
pub mod flags;
pub mod load;
mod logging;
mod progress;
pub mod replay;
mod serve;
pub mod sim;
mod table;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::schedule::registry::PluginTypes;

use check::CheckArgs;
pub use error::CliError;
use flags::{ServeArgs, as_pflag};

/// An endpoint picker for LLM inference: a gateway asks it, for every request, which model
/// server should answer.
#[derive(Debug, Parser)]
#[command(name = "usher", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What to do. One file per subcommand.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Pick endpoints for a gateway, over Envoy's ext_proc protocol.
    Serve(Box<ServeArgs>),
    /// Run simulated vLLM servers.
    Sim(sim::SimArgs),
    /// Load an ext_proc server or a gateway with requests, and measure it.
    Load(Box<load::LoadArgs>),
    /// Run everything on this machine under the requests of a real trace.
    Demo(demo::DemoArgs),
    /// Compare configurations under a trace or a generated load, in virtual time.
    Replay(Box<replay::ReplayArgs>),
    /// Compare the decisions of two pickers on the same requests.
    Compare(compare::CompareArgs),
    /// Find out what is wrong with a gateway, its picker and the cluster around them.
    Doctor(Box<doctor::DoctorArgs>),
    /// Validate a configuration, and print the pipeline it comes to.
    Check(CheckArgs),
    /// Check capacity policies, and try them on a timeline.
    Capacity(capacity::CapacityArgs),
}

/// Runs the program: parses the arguments, does what they say, reports an error on stderr.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    main_with(arguments, &PluginTypes::default())
}

/// The same where configurations of `serve` and `check` may name these plugin types.
pub fn main_with(arguments: impl IntoIterator<Item = OsString>, types: &PluginTypes) -> ExitCode {
    let error = match parse(arguments).and_then(|command| run(command, types)) {
        Ok(code) => return code,
        Err(error) => error,
    };
    match error {
        CliError::Help(help) => {
            // Nothing can be done about a closed stdout.
            let _ = help.print();
            u8::try_from(help.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
        }
        CliError::Usage(text) => report(&text, 2),
        CliError::Failed(text) => report(&text, 1),
    }
}

fn report(text: &str, code: u8) -> ExitCode {
    eprintln!("usher: {}", one_line(text));
    ExitCode::from(code)
}

/// Reads the arguments, the first of which is the program's name.
///
/// # Errors
/// [`CliError::Usage`] for arguments that can't be understood, [`CliError::Help`] when
/// help or the version was asked for.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, CliError> {
    let command = Cli::command().mut_subcommand("serve", as_pflag);
    command
        .try_get_matches_from(arguments)
        .and_then(|matches| Cli::from_arg_matches(&matches))
        .map(|cli| cli.command)
        .map_err(usage)
}

fn run(command: Command, types: &PluginTypes) -> Result<ExitCode, CliError> {
    match command {
        Command::Serve(args) => serve::serve(*args, types).map(|()| ExitCode::SUCCESS),
        Command::Sim(args) => sim::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Load(args) => load::run(*args).map(|()| ExitCode::SUCCESS),
        Command::Demo(args) => demo::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Replay(args) => replay::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Compare(args) => compare::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Doctor(args) => doctor::run(&args),
        Command::Check(args) => Ok(check::run(&args, types)),
        Command::Capacity(args) => capacity::run(&args),
    }
}

/// clap's errors are pages; what is wrong and the tips are in its first paragraphs.
fn usage(error: clap::Error) -> CliError {
    use clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if !error.use_stderr() || error.kind() == DisplayHelpOnMissingArgumentOrSubcommand {
        return CliError::Help(error);
    }
    let page = error.render().to_string();
    let text = page.split("\n\nUsage:").next().unwrap_or(&page);
    let text = text.split("\n\nFor more information").next().unwrap_or(text);
    let text = one_line(text.strip_prefix("error: ").unwrap_or(text));
    CliError::Usage(format!("{text}; see --help"))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
