//! The `usher` program, with a scorer of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    match own_plugin::types() {
        Ok(types) => usher::cli::main_with(std::env::args_os(), &types),
        Err(error) => {
            eprintln!("own-plugin: {error}");
            ExitCode::FAILURE
        }
    }
}
