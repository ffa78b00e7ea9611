//! Errors of commands.

/// Error of a command. Texts are one line unless said otherwise: problem, place, remedy.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The arguments can't be understood: several lines as clap writes them, with its suggestions.
    /// Exit code 2.
    #[error("{0}")]
    Arguments(String),
    /// The command line, the configuration or another file to start with is wrong. Exit code 2.
    #[error("{0}")]
    Usage(String),
    /// Failure that may not happen again. Exit code 1.
    #[error("{0}")]
    Failed(String),
    /// Help was asked for, and is no error; or a subcommand is missing, and help is
    /// what's needed.
    #[error("{0}")]
    Help(clap::Error),
}
