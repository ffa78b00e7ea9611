//! Timeout of commands that ask a running picker.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::config::units::parse_duration;

/// A shorter one has ended before any response; a longer one is a typing error.
const RANGE: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_mins(10);

/// Reads the time for a response.
pub(super) fn response_timeout(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(limit) if RANGE.contains(&limit) => Ok(limit),
        _ => Err("give a duration from 10ms to 10m, for example 5s".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_from_10_ms_to_10_minutes() {
        assert_eq!(response_timeout("10ms"), Ok(Duration::from_millis(10)));
        assert_eq!(response_timeout("10m"), Ok(Duration::from_secs(600)));
        for text in ["0s", "9ms", "11m", "soon", ""] {
            assert!(response_timeout(text).is_err(), "{text}");
        }
    }
}
