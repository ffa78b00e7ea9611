//! Values of YAML's plain scalars: YAML 1.1 as Kubernetes' reader has it, so
//! that `yes` is true, `010` is eight and `1_000` is a thousand.

use super::node::Value;

/// The value of an unquoted scalar.
pub(super) fn resolve(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Value::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Value::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" => return Value::Float(f64::NAN),
        _ => {}
    }
    number(text).unwrap_or_else(|| Value::Text(text.to_owned()))
}

fn number(text: &str) -> Option<Value> {
    let (negative, unsigned) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") {
        return Some(Value::Float(if negative { f64::NEG_INFINITY } else { f64::INFINITY }));
    }
    // Rust would also read words such as `infinity` and `nan`.
    if !unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let digits = unsigned.replace('_', "");
    let whole = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => radix(&digits[2..], 16),
        [b'0', b'b' | b'B', ..] => radix(&digits[2..], 2),
        [b'0', b'o' | b'O', ..] => radix(&digits[2..], 8),
        [b'0', _, ..] => radix(&digits[1..], 8),
        _ => radix(&digits, 10),
    };
    if let Some(whole) = whole {
        return Some(Value::Int(if negative { -whole } else { whole }));
    }
    let float_like =
        digits.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'));
    let value: f64 = float_like.then(|| digits.parse().ok()).flatten()?;
    Some(Value::Float(if negative { -value } else { value }))
}

fn radix(digits: &str, radix: u32) -> Option<i64> {
    // `from_str_radix` takes a sign, which the caller has already read.
    digits
        .bytes()
        .all(|b| b.is_ascii_alphanumeric())
        .then(|| i64::from_str_radix(digits, radix).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_booleans_parse_as_in_kubernetes() {
        let text = |t: &str| Value::Text(t.to_owned());
        let table = [
            ("", Value::Null),
            ("~", Value::Null),
            ("yes", Value::Bool(true)),
            ("Off", Value::Bool(false)),
            ("yEs", text("yEs")),
            ("17", Value::Int(17)),
            ("-17", Value::Int(-17)),
            ("+1_000", Value::Int(1000)),
            ("0x1F", Value::Int(31)),
            ("010", Value::Int(8)),
            ("0o17", Value::Int(15)),
            ("09", Value::Float(9.0)),
            ("0b101", Value::Int(5)),
            ("0", Value::Int(0)),
            ("0.5", Value::Float(0.5)),
            (".5", Value::Float(0.5)),
            ("-1.5e3", Value::Float(-1500.0)),
            ("99999999999999999999", Value::Float(1e20)),
            ("-.inf", Value::Float(f64::NEG_INFINITY)),
            ("inf", text("inf")),
            ("nan", text("nan")),
            ("-", text("-")),
            ("--1", text("--1")),
            ("1-1", text("1-1")),
            ("0x", text("0x")),
            ("0x-1", text("0x-1")),
            ("60s", text("60s")),
            ("10Mi", text("10Mi")),
            ("1.2.3", text("1.2.3")),
            ("2026-01-02", text("2026-01-02")),
            ("é", text("é")),
        ];
        for (word, value) in table {
            assert_eq!(resolve(word), value, "{word:?}");
        }
        assert!(matches!(resolve(".nan"), Value::Float(f) if f.is_nan()));
    }
}
