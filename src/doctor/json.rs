//! Fields of JSON, as Envoy and the API server write them.

use serde_json::Value;

/// A list; none is an empty one.
pub(super) fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A text; none is an empty one.
pub(super) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// A number, which may be written as a text, as those of 64 bits are.
pub(super) fn number(value: &Value, name: &str) -> Option<u64> {
    let value = value.get(name)?;
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

/// A flag, which may be in a wrapper.
pub(super) fn flag(value: &Value, name: &str) -> bool {
    value.get(name).and_then(Value::as_bool).unwrap_or(false)
}

/// Seconds of a duration as JSON has it: `1000s`, `0.200s`.
pub(super) fn seconds(value: &Value, name: &str) -> Option<f64> {
    text(value, name).strip_suffix('s')?.parse().ok()
}
