//! Durations and quantities in the notations of the peers' flags and files.

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
    Duration::try_from_secs_f64(total_ns / 1e9).map_err(|_| refuse())
}

/// Parses a Kubernetes quantity into a whole number: `10Mi`, `1G`, `500`, `1e6`.
/// A fraction is rounded up, as Kubernetes does.
///
/// # Errors
/// A sentence that quotes the text; also for negative and for too large numbers.
pub fn parse_quantity(text: &str) -> Result<u64, String> {
    let refuse = || format!("{text:?} is not a quantity; write for example 500, 10Mi or 1G");
    let split = text.find(|c: char| c.is_ascii_alphabetic() && c != 'e' && c != 'E').unwrap_or(text.len());
    // `E` alone is a suffix, `1E6` an exponent.
    let (number, suffix) = match text.strip_suffix('E').or_else(|| text.strip_suffix("Ei")) {
        Some(number) => (number, &text[number.len()..]),
        None => text.split_at(split),
    };
    let factor: f64 = match suffix {
        "" => 1.0,
        "m" => 1e-3,
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
        _ => return Err(refuse()),
    };
    if !number.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Err(refuse());
    }
    let value = (number.parse::<f64>().map_err(|_| refuse())? * factor).ceil();
    // Above 2^63 an f64 no longer says what the user wrote, and nothing here is that large.
    if !(0.0..=9.2e18).contains(&value) {
        return Err(refuse());
    }
    Ok(value as u64)
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
    fn durations_as_go_writes_them() {
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
        for text in ["", "5", "-1s", "1d", "s", "1.2.3s", "50 ms", "1e3s"] {
            assert!(parse_duration(text).unwrap_err().contains(&format!("{text:?}")), "{text}");
        }
    }

    #[test]
    fn quantities_as_kubernetes_writes_them() {
        let table = [
            ("0", 0),
            ("500", 500),
            ("10Mi", 10 << 20),
            ("1G", 1_000_000_000),
            ("1.5Ki", 1536),
            ("1e6", 1_000_000),
            ("1500m", 2),
            ("2E", 2_000_000_000_000_000_000),
        ];
        for (text, value) in table {
            assert_eq!(parse_quantity(text), Ok(value), "{text}");
        }
        for text in ["", "-1", "10MB", "Mi", "1 G", "x", "inf", "nan", "99E"] {
            assert!(parse_quantity(text).is_err(), "{text}");
        }
    }

    #[test]
    fn booleans_as_go_reads_them() {
        assert_eq!(parse_bool("T"), Ok(true));
        assert_eq!(parse_bool("False"), Ok(false));
        assert!(parse_bool("yes").is_err());
    }
}
