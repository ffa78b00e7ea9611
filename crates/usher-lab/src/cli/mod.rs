//! Commands of these tools, a file each.

pub mod compare;
pub mod demo;
pub mod engine;
pub mod load;
pub mod range;
pub mod replay;
pub mod sim;

use std::process::ExitCode;

use clap::Subcommand;
use usher_terminal::CliError;

use crate::replay::Build;

/// A command of the tools.
#[derive(Debug, Subcommand)]
pub enum Command {
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
}

/// Runs a command. `build` builds the configurations that are replayed.
///
/// # Errors
/// One line: what failed, where, what to do.
pub fn run(command: Command, build: &Build<'_>) -> Result<ExitCode, CliError> {
    match command {
        Command::Sim(args) => sim::run(&args)?,
        Command::Load(args) => load::run(*args)?,
        Command::Demo(args) => demo::run(&args)?,
        Command::Replay(args) => replay::run(&args, build)?,
        Command::Compare(args) => compare::run(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}
