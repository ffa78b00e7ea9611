//! `usher capacity check`: `usher check` of files that have to be policies.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::cli::check::{self, Output, Task};
use crate::config::FileKind;
use crate::registry::PluginTypes;
use crate::settings::MemoryBudget;

#[derive(Args, Clone, Debug)]
pub(super) struct CheckArgs {
    /// Files of policies and topologies (YAML or JSON, one document each); - reads standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Format of the result, errors included
    #[arg(long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

pub(super) fn run(args: &CheckArgs) -> ExitCode {
    let CheckArgs { files, output } = args.clone();
    let args = check::CheckArgs {
        files,
        output,
        allow_experimental_plugins: false,
        compare: None,
        endpoints_file: None,
        admin: None,
        memory_budget: MemoryBudget::Off,
    };
    Task { args: &args, types: &PluginTypes::default(), only: Some(FileKind::Policy) }.run()
}
