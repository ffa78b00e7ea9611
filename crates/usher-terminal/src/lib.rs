//! Terminal output of commands: results as text or JSON, tables, progress, and errors as one line.

mod error;
mod output;
#[cfg(feature = "progress")]
mod progress;
mod table;

pub use error::CliError;
pub use output::Output;
#[cfg(feature = "progress")]
pub use progress::Progress;
pub use table::{grouped, line};
