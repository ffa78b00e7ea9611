//! `usher completions` and `usher man`: what shells and manuals know of the command line.

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use usher_terminal::CliError;

/// Prints completions for a shell.
#[derive(Args, Clone, Debug)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Prints a manual page.
#[derive(Args, Clone, Debug)]
pub struct ManArgs {
    /// The command, such as serve, or capacity check. Default: the program
    pub command: Vec<String>,
}

/// Prints the completions of `command`.
///
/// # Errors
/// `CliError` if the completions can't be printed.
pub(super) fn completions(args: &CompletionsArgs, mut command: Command) -> Result<(), CliError> {
    let name = command.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut text);
    print(&text)
}

/// Prints the page of `command`, or of one of its subcommands.
///
/// # Errors
/// `CliError` if there is no such subcommand, or its page can't be printed.
pub(super) fn man(args: &ManArgs, mut command: Command) -> Result<(), CliError> {
    // Subcommands have no version of their own.
    let source = format!("{} {}", command.get_name(), env!("CARGO_PKG_VERSION"));
    command.build();
    let mut page = &command;
    for name in &args.command {
        let known = || page.get_subcommands().map(Command::get_name).collect::<Vec<_>>().join(", ");
        page = page.find_subcommand(name).ok_or_else(|| {
            let of = page.get_display_name().unwrap_or_else(|| page.get_name());
            CliError::Usage(format!("{of} has no command {name:?}; it has {}", known()))
        })?;
    }
    let mut text = Vec::new();
    let rendered = Man::new(page.clone()).source(source).render(&mut text);
    rendered.map_err(|error| CliError::Failed(format!("cannot make the page: {error}")))?;
    print(&text)
}

fn print(text: &[u8]) -> Result<(), CliError> {
    let printed = usher_terminal::print(&String::from_utf8_lossy(text));
    printed.map_err(|error| CliError::Failed(format!("cannot print: {error}")))
}
