//! Flags of outlier ejection.

use std::time::Duration;

use clap::{ArgAction, Args};

use super::pflag::{BOOL, at_most};
use crate::config::units::parse_bool;
use crate::settings::OutlierSettings;

/// Failures, successes and scrapes in a row: more than this never comes about, and is a typing error.
const MOST_IN_A_ROW: i64 = 10_000;

/// Flags of outlier ejection. Their names predate the term.
#[derive(Debug, Args)]
#[command(next_help_heading = "Outlier ejection")]
pub struct OutlierFlags {
    /// Eject endpoints that fail: they get no requests but probes, until they work again.
    #[arg(long, value_name = BOOL, default_value = "true", value_parser = parse_bool, action = ArgAction::Set)]
    pub sick_pods: bool,

    /// Failed requests in a row (status 500, 502, 503 or 504, or another endpoint had to
    /// serve) until an endpoint is ejected; 1 to 10000.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=MOST_IN_A_ROW))]
    pub sick_after_failures: u32,

    /// Failed scrapes in a row, without a successful request, until an endpoint is
    /// ejected; at most 10000. 0: never.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=MOST_IN_A_ROW))]
    pub sick_after_failed_scrapes: u32,

    /// Shortest time without the first byte of a response after which a request counts as
    /// failed; longer where similar requests usually take longer. At most 1h; 0s: never.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = at_most("1h"))]
    pub sick_first_byte_timeout: Duration,

    /// Time from an ejection to the first probe, and the shortest one after a failed probe. At
    /// most 24h.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = at_most("24h"))]
    pub sick_probe_pause: Duration,

    /// Longest time between two probes of an ejected endpoint. A failure doubles the time, a
    /// success halves it. At most 24h.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = at_most("24h"))]
    pub sick_probe_longest_pause: Duration,

    /// Successful requests in a row that end an ejection; 1 to 10000.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=MOST_IN_A_ROW))]
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
