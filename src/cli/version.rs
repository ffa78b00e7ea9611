//! `usher version`: which build this is.

use std::fmt::{self, Display, Formatter};

use clap::Args;
use serde::Serialize;
use usher_terminal::{CliError, Output};

use crate::version::{COMMIT, ENVOY, FEATURES, VERSION};

/// Prints which build this is.
#[derive(Args, Clone, Debug)]
pub struct VersionArgs {
    /// Format of the result
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// A build.
#[derive(Debug, Serialize)]
struct Build {
    version: &'static str,
    commit: &'static str,
    features: &'static [&'static str],
    /// Version of Envoy that it is tested with.
    envoy: &'static str,
}

const BUILD: Build = Build { version: VERSION, commit: COMMIT, features: FEATURES, envoy: ENVOY };

/// Prints the build.
///
/// # Errors
/// `CliError` if the text can't be printed.
pub(super) fn run(args: &VersionArgs) -> Result<(), CliError> {
    let text = match args.output {
        Output::Text => Ok(format!("usher {}\n", long())),
        Output::Json => Output::Json.render(&BUILD),
    };
    let printed = text.map_err(std::io::Error::from).and_then(|text| usher_terminal::print(&text));
    printed.map_err(|error| CliError::Failed(format!("cannot print the version: {error}")))
}

/// The version with everything about the build, as it follows the program's name.
pub(super) fn long() -> String {
    BUILD.to_string()
}

impl Display for Build {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { version, commit, features, envoy } = self;
        let features = match features {
            [] => "none".to_owned(),
            features => features.join(", "),
        };
        write!(f, "{version}\ncommit    {commit}\nfeatures  {features}\nEnvoy     tested with {envoy}")
    }
}
