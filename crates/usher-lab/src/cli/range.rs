//! Values of flags with their ranges. What clap says of a value that is refused names the flag and the value.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use usher_core::config::units::parse_duration;

/// Parses a number from `low` to `high`.
pub(super) fn number<T>(low: T, high: T) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: FromStr + PartialOrd + Display + Copy,
{
    move |text| match text.parse() {
        Ok(number) if low <= number && number <= high => Ok(number),
        _ => Err(format!("write a number from {low} to {high}")),
    }
}

/// Parses a time from `low` to `high`, of which the range is written in `words`.
pub(super) fn time(
    low: Duration,
    high: Duration,
    words: &'static str,
) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| match parse_duration(text)? {
        time if low <= time && time <= high => Ok(time),
        _ => Err(format!("write a time from {words}")),
    }
}

/// Parses the time between two scrapes of a server.
///
/// # Errors
/// A message if the text is no duration, or out of range.
pub fn scrape_interval(text: &str) -> Result<Duration, String> {
    time(Duration::from_millis(50), Duration::from_secs(3600), "50ms to 1h")(text)
}

/// Parses a share of what servers can do.
///
/// # Errors
/// A message if the text is no number above 0 and up to 10.
pub(super) fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if share > 0.0 && share <= 10.0 => Ok(share),
        _ => Err("write a share above 0, of at most 10; 0.7 is 70 %".to_owned()),
    }
}

/// Parses the share by which times vary.
///
/// # Errors
/// A message if the text is no number from 0 to below 1.
pub(super) fn jitter(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..1.0).contains(&share) => Ok(share),
        _ => Err("write a number from 0 to below 1".to_owned()),
    }
}

/// Parses tokens of prompts per second; 0 is for free.
///
/// # Errors
/// A message if the text is neither 0 nor a number from 0.001.
pub(super) fn token_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate == 0.0 || (rate >= 1e-3 && rate.is_finite()) => Ok(rate),
        _ => Err("write 0, or a number from 0.001".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_beyond_a_range_are_refused_with_the_range() {
        let step = number(1u32, 9);
        assert_eq!((step("1"), step("9")), (Ok(1), Ok(9)));
        for text in ["0", "10", "-1", "1.5", "", "many"] {
            assert_eq!(step(text), Err("write a number from 1 to 9".to_owned()), "{text}");
        }
        assert_eq!(number(0.0, 1000.0)("NaN"), Err("write a number from 0 to 1000".to_owned()));
        assert_eq!(scrape_interval("50ms"), Ok(Duration::from_millis(50)));
        assert_eq!(scrape_interval("1ms"), Err("write a time from 50ms to 1h".to_owned()));
        assert_eq!(share("0.7"), Ok(0.7));
        for text in ["700", "0", "-1", "NaN", "70%"] {
            assert!(share(text).unwrap_err().contains("0.7 is 70 %"), "{text}");
        }
        assert_eq!((jitter("0"), jitter("0.99")), (Ok(0.0), Ok(0.99)));
        assert!(jitter("1").is_err() && jitter("-0.1").is_err() && jitter("NaN").is_err());
        assert_eq!((token_rate("0"), token_rate("0.001")), (Ok(0.0), Ok(0.001)));
        assert!(token_rate("1e-300").is_err() && token_rate("inf").is_err() && token_rate("-1").is_err());
    }
}
