//! The command line: subcommands, exit codes and errors.

pub mod capacity;
pub mod check;
pub mod doctor;
pub mod endpoints;
pub mod explain;
pub mod flags;
mod help;
mod logging;
mod more_errors;
mod serve;
#[cfg(feature = "lab")]
pub mod shell;
mod timeout;
pub mod version;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::RunError;
use crate::registry::PluginTypes;

use check::CheckArgs;
use flags::{ServeArgs, as_pflag};
pub use usher_terminal::CliError;

/// An endpoint picker for LLM inference: a gateway asks it, for every request, which model
/// server should serve it.
#[derive(Debug, Parser)]
#[command(name = "usher", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Subcommands of the program. One file per subcommand.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Pick endpoints for a gateway, over Envoy's ext_proc protocol.
    ///
    /// Exit code: 0 after a signal and the last stream; 2 if flags or files to start with (configuration,
    /// endpoints, policies, certificates) are missing or wrong; 1 if something else fails, as a port that is
    /// taken.
    Serve(Box<ServeArgs>),
    /// Tools to try it with.
    #[cfg(feature = "lab")]
    #[command(flatten)]
    Lab(usher_lab::cli::Command),
    /// Find out what is wrong with a gateway and its picker.
    ///
    /// Sends a few requests through the gateway that cost model servers nothing, and reads what Envoy, the
    /// picker, the servers and the Kubernetes API server say of themselves. Changes nothing. Each check
    /// ends as ok, warning, wrong or skipped; each finding has an effect and a fix.
    ///
    /// Exit code: 0 when nothing is wrong, 1 when something is, 2 for wrong usage. Warnings and
    /// checks that are skipped are not wrong.
    Doctor(Box<doctor::DoctorArgs>),
    /// Validate and explain configurations, policies and endpoints.
    ///
    /// Exit code: 0 when all files are valid; 1 when one is not, or the picker of --admin doesn't respond
    /// (`valid` in JSON is about the files alone); 2 when a file can't be read, or for wrong usage.
    Check(CheckArgs),
    /// Check capacity policies, and try them on a timeline.
    Capacity(capacity::CapacityArgs),
    /// Show the endpoints of a running picker, their load and health.
    Endpoints(endpoints::EndpointsArgs),
    /// Explain why a running picker sent a request where it did.
    Explain(Box<explain::ExplainArgs>),
    /// Print the version, and the Envoy that it is tested with.
    Version(version::VersionArgs),
    /// Print completions for a shell: bash, zsh, fish and others.
    #[cfg(feature = "lab")]
    Completions(shell::CompletionsArgs),
    /// Print the manual page of the program or of a command.
    #[cfg(feature = "lab")]
    Man(shell::ManArgs),
}

/// Runs the program: parses the arguments, does what they say, reports an error on stderr.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    main_with(arguments, &PluginTypes::default())
}

/// Runs the program with these plugin types for the configurations of `serve` and `check`.
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
        CliError::Arguments(text) => report(&text, 2),
        CliError::Usage(text) => report(&one_line(&text), 2),
        CliError::Failed(text) => report(&one_line(&text), 1),
    }
}

fn report(text: &str, code: u8) -> ExitCode {
    eprintln!("usher: {text}");
    ExitCode::from(code)
}

/// Reads the arguments, the first of which is the program's name.
///
/// # Errors
/// [`CliError::Arguments`] for arguments that can't be parsed; [`CliError::Help`] if help or the version was
/// asked for.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, CliError> {
    let (mut command, arguments) = (command(), arguments.into_iter().collect::<Vec<_>>());
    let parsed = command.try_get_matches_from_mut(&arguments);
    let parsed = parsed.and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.map(|cli| cli.command).map_err(|error| refused(error, &name(&command, &arguments)))
}

/// Name of the command that the arguments are for, with those above it.
fn name(command: &clap::Command, arguments: &[OsString]) -> String {
    let (mut command, mut name) = (command, command.get_name().to_owned());
    for argument in arguments.iter().skip(1) {
        let Some(below) = command.find_subcommand(argument) else { break };
        command = below;
        name.push(' ');
        name.push_str(below.get_name());
    }
    name
}

/// The whole command line.
fn command() -> clap::Command {
    // Not `mut_subcommand`, which makes it the last one.
    let command = Cli::command().long_version(version::long());
    help::with_help(
        command.mut_subcommands(|each| if each.get_name() == "serve" { as_pflag(each) } else { each }),
    )
}

fn run(command: Command, types: &PluginTypes) -> Result<ExitCode, CliError> {
    let files = configurations(&command);
    run_command(command, types).map_err(|error| more_errors::counted(error, &files, types))
}

/// Configuration files that a command reads, and would be ended by.
fn configurations(command: &Command) -> Vec<PathBuf> {
    match command {
        Command::Serve(args) => args.config.config_file.iter().map(PathBuf::from).collect(),
        #[cfg(feature = "lab")]
        Command::Lab(usher_lab::cli::Command::Replay(args)) => args.config.clone(),
        Command::Explain(args) => args.config_file.iter().cloned().collect(),
        _ => Vec::new(),
    }
}

fn run_command(command: Command, types: &PluginTypes) -> Result<ExitCode, CliError> {
    match command {
        Command::Serve(args) => serve::serve(*args, types).map(|()| ExitCode::SUCCESS),
        #[cfg(feature = "lab")]
        Command::Lab(command) => usher_lab::cli::run(command, &crate::replay::build),
        Command::Doctor(args) => doctor::run(&args),
        Command::Check(args) => Ok(check::Task { args: &args, types, only: None }.run()),
        Command::Capacity(args) => capacity::run(&args),
        Command::Endpoints(args) => endpoints::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Explain(args) => explain::run(&args, types).map(|()| ExitCode::SUCCESS),
        Command::Version(args) => version::run(&args).map(|()| ExitCode::SUCCESS),
        #[cfg(feature = "lab")]
        Command::Completions(args) => shell::completions(&args, self::command()).map(|()| ExitCode::SUCCESS),
        #[cfg(feature = "lab")]
        Command::Man(args) => shell::man(&args, self::command()).map(|()| ExitCode::SUCCESS),
    }
}

/// clap's error on the arguments of `command`, and where its help is.
fn refused(error: clap::Error, command: &str) -> CliError {
    use clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if !error.use_stderr() || error.kind() == DisplayHelpOnMissingArgumentOrSubcommand {
        return CliError::Help(error);
    }
    let page = error.render().to_string();
    let text = page.split("\n\nFor more information").next().unwrap_or(&page);
    let text = text.strip_prefix("error: ").unwrap_or(text);
    // Nobody means a misspelt flag to be a value.
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("tip: to pass '"));
    let text = lines.collect::<Vec<_>>().join("\n").replace("\n\n\n", "\n\n");
    CliError::Arguments(format!("{}\n\nsee `{command} --help`", text.trim_end()))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl From<RunError> for CliError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Config(text) => Self::Usage(text),
            RunError::Failed(_) | RunError::Forced => Self::Failed(error.to_string()),
        }
    }
}
