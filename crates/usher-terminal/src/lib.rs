//! Terminal output of commands: results as text or JSON, tables, marks and colours, progress, errors as one line, and excerpts of files.

mod cells;
mod columns;
mod error;
mod excerpt;
mod header;
mod output;
#[cfg(feature = "progress")]
mod progress;
mod table;
mod terminal;
mod wrap;

pub use columns::{Column, table};
pub use error::CliError;
pub use excerpt::excerpt;
pub use header::split_header;
pub use output::{Output, print};
#[cfg(feature = "progress")]
pub use progress::Progress;
pub use table::{grouped, line};
pub use terminal::{Mark, Terminal};
pub use wrap::{PAGE, error_width, fit, misfits, paragraph, terms, width, wrap};
