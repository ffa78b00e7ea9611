//! The configuration, and what it may do.

use std::time::Duration;

use clap::{ArgAction, Args};

use super::pflag::{BOOL, at_most, given};
use crate::config::units::parse_bool;
use crate::settings::{ConfigSource, LocatorSettings};

/// More subsets than this is a typing error: their places alone take 16 MiB.
const MAX_SUBSETS: i64 = 1 << 20;

/// The configuration, and what it may do.
#[derive(Debug, Args)]
#[command(next_help_heading = "Configuration")]
pub struct ConfigFlags {
    /// File with the EndpointPickerConfig. Without it and --config-text, a built-in default.
    #[arg(long, alias = "config", value_name = "FILE")]
    pub config_file: Option<String>,

    /// The EndpointPickerConfig itself.
    #[arg(long, value_name = "YAML")]
    pub config_text: Option<String>,

    /// File of endpoints, read again when it changes. No discovery plugin is needed.
    #[arg(long, value_name = "FILE")]
    pub endpoints_file: Option<String>,

    /// Let an endpoints file that lists no endpoint empty the pool. By default the last endpoints stay,
    /// with a logged error.
    #[arg(long, value_name = BOOL, default_value = "false", value_parser = parse_bool, action = ArgAction::Set)]
    pub allow_empty_endpoints: bool,

    /// Allow plugins that are marked as experimental.
    #[arg(long, value_name = BOOL, default_value = "false", value_parser = parse_bool, action = ArgAction::Set)]
    pub allow_experimental_plugins: bool,

    /// Consider every endpoint, whatever subset the gateway asks for.
    #[arg(long, value_name = BOOL, default_value = "false", value_parser = parse_bool, action = ArgAction::Set)]
    pub disable_endpoint_subset_filter: bool,

    /// Time for which the endpoints of a subset are cached; a change of the pool clears the
    /// cache at once. At most 1h; 0s looks them up for every request.
    #[arg(long, value_name = "DURATION", default_value = "50ms", value_parser = at_most("1h"))]
    pub locator_ttl: Duration,

    /// Subsets whose endpoints are cached, at most.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=MAX_SUBSETS))]
    pub locator_max_subsets: u32,

    /// Send the scores of the endpoints to the gateway as dynamic metadata.
    #[arg(long, value_name = BOOL, default_value = "false", value_parser = parse_bool, action = ArgAction::Set)]
    pub emit_endpoint_scores: bool,
}

impl ConfigFlags {
    pub(super) fn locator(&self) -> LocatorSettings {
        let max_subsets = usize::try_from(self.locator_max_subsets).unwrap_or(usize::MAX);
        LocatorSettings { ttl: self.locator_ttl, max_subsets }
    }

    pub(super) fn source(&self) -> Result<ConfigSource, String> {
        match (given(&self.config_file), given(&self.config_text)) {
            (None, None) => Ok(ConfigSource::Default),
            (Some(path), None) => Ok(ConfigSource::File(path.into())),
            (None, Some(text)) => Ok(ConfigSource::Text(text.to_owned())),
            (Some(_), Some(_)) => {
                Err("--config-file and --config-text are both given; give one of them".to_owned())
            }
        }
    }
}
