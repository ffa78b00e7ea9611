//! Kubernetes quantities.

use crate::config::units::factor;

/// Thousandths of the unit (CPU, byte, device), rounded up; `None` if not a quantity. The notation is that of
/// `k8s.io/apimachinery`'s resource.Quantity.
pub(super) fn milli(text: &str) -> Option<i64> {
    let text = text.trim();
    let end = text
        .char_indices()
        .find(|(_, c)| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-')))
        .map_or(text.len(), |(at, _)| at);
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().ok()?;
    let milli = number * factor(unit)? * 1000.0;
    // Beyond 2^53 thousandths the last digits are lost, which is 9 TB.
    milli.is_finite().then(|| (milli - 1e-6).ceil() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubernetes_quantities_are_parsed() {
        for (text, expected) in [
            ("0", Some(0)),
            ("1", Some(1000)),
            ("100m", Some(100)),
            ("1.5", Some(1500)),
            ("2Ki", Some(2_048_000)),
            ("1G", Some(1_000_000_000_000)),
            ("1e3", Some(1_000_000)),
            ("1E2", Some(100_000)),
            ("20E", Some(i64::MAX)),
            ("1n", Some(1)),
            ("500u", Some(1)),
            ("", None),
            ("Gi", None),
            ("1x", None),
            ("1 Gi", None),
        ] {
            assert_eq!(milli(text), expected, "{text:?}");
        }
    }
}
