//! Durations and quantities in the notations of llm-d-router's flags and files.

use std::time::Duration;

/// Parses a duration as Go writes it: `300ms`, `1.5h`, `2h45m`, `0`.
///
/// Units are `ns`, `us`/`µs`, `ms`, `s`, `m`, `h`. Negative durations are refused,
/// as no setting of ours has a use for one.
///
/// # Errors
/// A sentence that quotes the text and shows the notation.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let refuse = || format!("{text:?} is not a duration; write for example 50ms, 30s or 1h30m");
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(refuse());
    }
    let mut total_ns = 0f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(refuse)?;
        let number: f64 = rest[..digits].parse().map_err(|_| refuse())?;
        rest = &rest[digits..];
        let unit_end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let unit_ns = match &rest[..unit_end] {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return Err(refuse()),
        };
        total_ns += number * unit_ns;
        rest = &rest[unit_end..];
    }
    // Go's limit, 292 years. Beyond it a point in time could overflow.
    if total_ns > i64::MAX as f64 {
        return Err(format!(
            "{text:?} is longer than a duration can be; write for example 50ms, 30s or 1h30m"
        ));
    }
    Duration::try_from_secs_f64(total_ns / 1e9).map_err(|_| refuse())
}

/// Parses a Kubernetes quantity into a whole number: `10Mi`, `1G`, `500`, `1e6`.
/// A fraction is rounded up, as Kubernetes does.
///
/// # Errors
/// A sentence that quotes the text; also for negative and for too large numbers.
pub fn parse_quantity(text: &str) -> Result<u64, String> {
    let refuse = || format!("{text:?} is not a quantity; write for example 500, 10Mi or 1G");
    if text.starts_with('-') {
        return Err(format!("{text:?} is negative; write for example 500, 10Mi or 1G"));
    }
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let number: f64 = number.parse().map_err(|_| refuse())?;
    let value = (number * factor(suffix).ok_or_else(refuse)?).ceil();
    // Above 2^63 an f64 no longer says what the user wrote, and nothing here is that large.
    if !(0.0..=9.2e18).contains(&value) {
        return Err(format!("{text:?} is too large; the most is 9.2e18"));
    }
    Ok(value as u64)
}

/// Factor of a number with this suffix; `None`: unknown. An exponent counts as a suffix: a number
/// has one or the other.
pub fn factor(suffix: &str) -> Option<f64> {
    Some(match suffix {
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1024f64.powi(2),
        "Gi" => 1024f64.powi(3),
        "Ti" => 1024f64.powi(4),
        "Pi" => 1024f64.powi(5),
        "Ei" => 1024f64.powi(6),
        _ => 10f64.powi(i32::from(suffix.strip_prefix(['e', 'E'])?.parse::<i16>().ok()?)),
    })
}

/// Parses a boolean as Go's flags and feature gates do: `1`, `t`, `true`, `0`, `f`,
/// `false`, in lower, upper or title case.
///
/// # Errors
/// A sentence that quotes the text.
pub fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("{text:?} is not a boolean; write true or false")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_as_in_go() {
        let table = [
            ("0", 0),
            ("50ms", 50_000),
            ("1.5s", 1_500_000),
            ("2h45m", 9_900_000_000),
            ("1m0.5s", 60_500_000),
            ("250us", 250),
            ("250µs", 250),
            ("+3s", 3_000_000),
        ];
        for (text, micros) in table {
            assert_eq!(parse_duration(text), Ok(Duration::from_micros(micros)), "{text}");
        }
        for text in
            ["", "5", "-1s", "1d", "s", "1.2.3s", "50 ms", "1e3s", "2562048h", "99999999999999999999h"]
        {
            assert!(parse_duration(text).unwrap_err().contains(&format!("{text:?}")), "{text}");
        }
    }

    #[test]
    fn quantities_are_parsed_as_in_kubernetes() {
        let table = [
            ("0", 0),
            ("500", 500),
            ("10Mi", 10 << 20),
            ("1G", 1_000_000_000),
            ("1.5Ki", 1536),
            ("1e6", 1_000_000),
            ("5E3", 5000),
            ("25e-1", 3),
            ("+7", 7),
            (".5k", 500),
            ("1500m", 2),
            ("2000000001n", 3),
            ("1u", 1),
            ("2E", 2_000_000_000_000_000_000),
        ];
        for (text, value) in table {
            assert_eq!(parse_quantity(text), Ok(value), "{text}");
        }
        for text in ["", "+", ".", "10MB", "Mi", "1 G", "x", "inf", "nan", "1e3Ki", "1e", "1.2.3", "--1", "é"]
        {
            assert!(parse_quantity(text).unwrap_err().starts_with(&format!("{text:?} is ")), "{text}");
        }
        assert!(parse_quantity("-1").unwrap_err().contains("is negative"));
        for text in ["99E", "1e400", "1e99999"] {
            assert!(parse_quantity(text).is_err(), "{text}");
        }
    }

    #[test]
    fn booleans_are_parsed_as_in_go() {
        assert_eq!(parse_bool("T"), Ok(true));
        assert_eq!(parse_bool("False"), Ok(false));
        assert!(parse_bool("yes").is_err());
    }
}
