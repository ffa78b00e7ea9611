//! `usher capacity`: policies, checked and tried.

mod check;
mod compare;
mod release;
mod simulate;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::CliError;
use super::check::Output;
use crate::capacity::policy::Policy;
use crate::capacity::policy::file::{self, Read};
use crate::capacity::resource::definitions;
use crate::config::source;

/// What to do with a policy.
#[derive(Args, Debug)]
pub struct CapacityArgs {
    #[command(subcommand)]
    command: CapacityCommand,
}

#[derive(Debug, Subcommand)]
enum CapacityCommand {
    /// Validate policies, and print what they come to.
    Check(CheckArgs),
    /// Say what a policy does with a timeline.
    Simulate(SimulateArgs),
    /// Compare a policy with an HPA and with pods that stay, under a trace, in virtual time.
    Compare(Box<compare::CompareArgs>),
    /// Let pods go that wait at a gate that nobody opens.
    Release(release::ReleaseArgs),
    /// Print the definitions of CapacityPolicy and ClusterTopology, for kubectl apply.
    Crds,
}

#[derive(Args, Clone, Debug)]
struct CheckArgs {
    /// The policies (YAML or JSON, one document each); - reads standard input
    file: PathBuf,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Args, Clone, Debug)]
struct SimulateArgs {
    /// The policy
    #[arg(long)]
    policy: PathBuf,
    /// Which policy of the file, where it has several
    #[arg(long)]
    name: Option<String>,
    /// What the group was like, a JSON object per line and tick; - reads standard input
    #[arg(long)]
    timeline: PathBuf,
    /// How to print plans
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Runs a subcommand.
///
/// # Errors
/// [`CliError::Usage`] for files that can't be read and policies that make no sense;
/// [`CliError::Failed`] for a timeline with a broken line, and when the result can't be printed.
pub fn run(args: &CapacityArgs) -> Result<ExitCode, CliError> {
    match &args.command {
        CapacityCommand::Check(args) => check::run(args),
        CapacityCommand::Simulate(args) => simulate::run(args),
        CapacityCommand::Compare(args) => compare::run(args),
        CapacityCommand::Release(args) => release::run(args),
        CapacityCommand::Crds => crds(),
    }
    .map(|()| ExitCode::SUCCESS)
}

/// Reads the policy of a file, or the one of this name where there are several.
fn read_one(path: &Path, name: Option<&str>) -> Result<Policy, CliError> {
    let mut policies: Vec<Policy> = read(path)?.into_iter().map(|read| read.policy).collect();
    let file = path.display();
    let names = || policies.iter().map(|policy| policy.name.as_str()).collect::<Vec<_>>().join(", ");
    let place = match name {
        Some(name) => policies.iter().position(|policy| policy.name == *name).ok_or_else(|| {
            CliError::Usage(format!("{file}: there is no policy '{name}'; there are: {}", names()))
        })?,
        None if policies.len() == 1 => 0,
        None => {
            return Err(CliError::Usage(format!(
                "{file}: there are several policies; choose one with --name: {}",
                names()
            )));
        }
    };
    Ok(policies.swap_remove(place))
}

/// Prints the definitions of custom resources.
fn crds() -> Result<(), CliError> {
    let text = definitions().map(|definition| definition.yaml()).join("---\n");
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| CliError::Failed(format!("cannot print the definitions: {error}")))
}

/// Reads a file of policies. What looks wrong and may be meant goes to standard error.
fn read(path: &Path) -> Result<Vec<Read>, CliError> {
    let (name, text) = if path.as_os_str() == "-" {
        ("<stdin>".to_owned(), source::read(std::io::stdin()))
    } else {
        (path.display().to_string(), source::read_file(path))
    };
    let text = text.map_err(|error| CliError::Usage(error.in_file(&name)))?;
    let policies = file::parse(&text).map_err(|errors| {
        let more = match errors.len() - 1 {
            0 => String::new(),
            1 => " (and one more error)".to_owned(),
            more => format!(" (and {more} more errors)"),
        };
        let first = errors.first().map(|error| error.in_file(&name)).unwrap_or_default();
        // All of them, where one line per error can be read; the last is the one that ends the command.
        errors.iter().skip(1).for_each(|error| eprintln!("usher: {}", error.in_file(&name)));
        CliError::Usage(first + &more)
    })?;
    for warning in policies.iter().flat_map(|read| &read.warnings) {
        eprintln!("usher: warning: {}", warning.in_file(&name));
    }
    Ok(policies)
}
