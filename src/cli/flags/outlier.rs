//! Flags of outlier ejection.

use std::time::Duration;

use clap::{ArgAction, Args};

use super::pflag::{BOOL, at_most};
use crate::config::units::parse_bool;
use crate::settings::OutlierSettings;

/// Failures, successes and scrapes in a row: more than this never comes about, and is a typing error.
const MOST_IN_A_ROW: i64 = 10_000;

/// Flags of outlier ejection.
#[derive(Debug, Args)]
#[command(next_help_heading = "Outlier ejection")]
pub struct OutlierFlags {
    /// Eject endpoints that fail: they get no requests but probes, until they work again.
    #[arg(long, alias = "sick-pods", value_name = BOOL, default_value = "true", value_parser = parse_bool, action = ArgAction::Set)]
    pub outlier_detection: bool,

    /// Failed requests in a row (status 500, 502, 503 or 504, or another endpoint had to
    /// serve) until an endpoint is ejected; 1 to 10000.
    #[arg(long, alias = "sick-after-failures", value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=MOST_IN_A_ROW))]
    pub outlier_consecutive_failures: u32,

    /// Failed scrapes in a row, without a successful request, until an endpoint is
    /// ejected; at most 10000. 0: never.
    #[arg(long, alias = "sick-after-failed-scrapes", value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=MOST_IN_A_ROW))]
    pub outlier_consecutive_failed_scrapes: u32,

    /// Shortest time without the first byte of a response after which a request counts as
    /// failed; longer where similar requests usually take longer. At most 1h; 0s: never.
    #[arg(long, alias = "sick-first-byte-timeout", value_name = "DURATION", default_value = "2s", value_parser = at_most("1h"))]
    pub outlier_first_byte_timeout: Duration,

    /// Time from an ejection to the first probe, and the shortest one after a failed probe. At
    /// most 24h.
    #[arg(long, alias = "sick-probe-pause", value_name = "DURATION", default_value = "1s", value_parser = at_most("24h"))]
    pub outlier_probe_interval: Duration,

    /// Longest time between two probes of an ejected endpoint. A failure doubles the time, a
    /// success halves it. At most 24h.
    #[arg(long, alias = "sick-probe-longest-pause", value_name = "DURATION", default_value = "2s", value_parser = at_most("24h"))]
    pub outlier_max_probe_interval: Duration,

    /// Successful requests in a row that end an ejection; 1 to 10000.
    #[arg(long, alias = "sick-recovery-successes", value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=MOST_IN_A_ROW))]
    pub outlier_consecutive_successes: u32,
}

impl OutlierFlags {
    pub(super) fn settings(&self) -> Option<OutlierSettings> {
        self.outlier_detection.then_some(OutlierSettings {
            failures: self.outlier_consecutive_failures,
            failed_scrapes: self.outlier_consecutive_failed_scrapes,
            first_byte: self.outlier_first_byte_timeout,
            first_pause: self.outlier_probe_interval,
            longest_pause: self.outlier_max_probe_interval,
            successes: self.outlier_consecutive_successes,
        })
    }
}
