//! `usher capacity`: policies, checked and tried.

mod check;
#[cfg(feature = "lab")]
mod compare;
mod policies;
mod release;
mod simulate;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::capacity::resource::definitions;
use usher_terminal::CliError;

/// Commands for capacity policies.
#[derive(Args, Debug)]
pub struct CapacityArgs {
    #[command(subcommand)]
    command: CapacityCommand,
}

#[derive(Debug, Subcommand)]
enum CapacityCommand {
    /// Validate policy files and print the resulting policies.
    Check(check::CheckArgs),
    /// Simulate a policy on a timeline.
    Simulate(simulate::SimulateArgs),
    /// Compare a policy with an HPA and with pods that stay, under a trace, in virtual time.
    #[cfg(feature = "lab")]
    Compare(Box<compare::CompareArgs>),
    /// Release pods from scheduling gates that no policy opens.
    Release(release::ReleaseArgs),
    /// Print the definitions of CapacityPolicy and ClusterTopology, for kubectl apply.
    Crds,
}

/// Runs a subcommand.
///
/// # Errors
/// [`CliError::Usage`] for files that can't be read and invalid policies; [`CliError::Failed`] for a timeline
/// with a broken line, and if the result can't be printed.
pub fn run(args: &CapacityArgs) -> Result<ExitCode, CliError> {
    match &args.command {
        CapacityCommand::Check(args) => return Ok(check::run(args)),
        CapacityCommand::Simulate(args) => simulate::run(args),
        #[cfg(feature = "lab")]
        CapacityCommand::Compare(args) => compare::run(args),
        CapacityCommand::Release(args) => release::run(args),
        CapacityCommand::Crds => crds(),
    }
    .map(|()| ExitCode::SUCCESS)
}

/// Prints the definitions of custom resources.
fn crds() -> Result<(), CliError> {
    let text = definitions().map(|definition| definition.yaml()).join("---\n");
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| CliError::Failed(format!("cannot print the definitions: {error}")))
}
