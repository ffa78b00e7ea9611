//! The command line, one file per subcommand.

pub mod check;
pub mod sim;
