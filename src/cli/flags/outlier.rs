//! Endpoints that fail: when they are demoted, and how they come back.

use std::time::Duration;

use clap::{ArgAction, Args};

use super::pflag::BOOL;
use crate::config::units::{parse_bool, parse_duration};
use crate::settings::OutlierSettings;

/// Endpoints that fail: when they are demoted, and how they come back.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sick pods")]
pub struct OutlierFlags {
    /// Send no more than a trickle of requests to an endpoint that fails, until it works
    /// again.
    #[arg(long, value_name = BOOL, default_value = "true", value_parser = parse_bool, action = ArgAction::Set)]
    pub sick_pods: bool,

    /// Requests that fail in a row (status 500, 502, 503 or 504, or another endpoint had to
    /// serve) until an endpoint is demoted.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub sick_after_failures: u32,

    /// Scrapes that fail in a row, without a request that succeeds, until an endpoint is
    /// demoted. 0: never.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub sick_after_failed_scrapes: u32,

    /// Shortest time without the first byte of a response after which a request counts as
    /// failed; longer where requests like it usually take longer. 0s: never.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    pub sick_first_byte_timeout: Duration,

    /// Pause before the first request to a demoted endpoint, and the shortest after one
    /// that fails.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    pub sick_probe_pause: Duration,

    /// The longest pause between two requests to a demoted endpoint. A failure doubles the
    /// pause, a success halves it.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    pub sick_probe_longest_pause: Duration,

    /// Requests that succeed in a row until a demoted endpoint is as good as any other.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub sick_recovery_successes: u32,
}

impl OutlierFlags {
    pub(super) fn settings(&self) -> Option<OutlierSettings> {
        self.sick_pods.then_some(OutlierSettings {
            failures: self.sick_after_failures,
            failed_scrapes: self.sick_after_failed_scrapes,
            first_byte: self.sick_first_byte_timeout,
            first_pause: self.sick_probe_pause,
            longest_pause: self.sick_probe_longest_pause,
            successes: self.sick_recovery_successes,
        })
    }
}
