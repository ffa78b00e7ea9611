//! Checks of parameters that serde can't express, and names that several plugins have as defaults.
//!
//! A plugin decodes its parameters into a struct, then checks and completes them. An error is
//! placed where the value is written.

use serde::de::value::StrDeserializer;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, IgnoredAny, IntoDeserializer};
use usher_core::config::{ConfigError, Node, Position};

/// The producer of what is cached where a configuration names no other.
pub const PREFIX_PRODUCER: &str = "approx-prefix-cache-producer";
/// The producer of what is in flight where a configuration names no other.
pub const INFLIGHT_PRODUCER: &str = "inflight-load-producer";
/// The producer of predicted latencies where a configuration names no other.
pub const LATENCY_PRODUCER: &str = "predicted-latency-producer";

/// Replaces an empty name by the default.
pub fn or_default(name: &mut String, default: &str) {
    if name.is_empty() {
        default.clone_into(name);
    }
}

/// Refuses a value that can't be, at its place among the parameters.
pub fn refused(parameters: &Node, key: &str, value: impl std::fmt::Display) -> ConfigError {
    ConfigError::at(parameters.position_of(key), format!("{key} can't be {value}"))
}

/// Checks that a number is finite and allowed.
///
/// # Errors
/// `ConfigError` with line and column for a number that fails the check.
pub fn in_range(
    parameters: &Node,
    key: &str,
    value: f64,
    default: f64,
    allowed: impl Fn(f64) -> bool,
) -> Result<(), ConfigError> {
    match value.is_finite() && allowed(value) {
        true => Ok(()),
        false => Err(refused(parameters, key, value).hint(format!("the default is {default}"))),
    }
}

/// Takes any text for a word that [`word`] reads later; for `#[serde(deserialize_with)]`.
///
/// # Errors
/// An error for a value that is no text.
pub fn any_word<'de, D: Deserializer<'de>, T: Default>(deserializer: D) -> Result<T, D::Error> {
    String::deserialize(deserializer).map(|_| T::default())
}

/// Takes anything for a value that is read later; for `#[serde(deserialize_with)]`.
///
/// # Errors
/// Never fails.
pub fn anything<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    match deserializer.is_human_readable() {
        true => IgnoredAny::deserialize(deserializer).map(|_| T::default()),
        // The documentation asks for the fields.
        false => T::deserialize(deserializer),
    }
}

/// Reads a word of a fixed set; an empty one, or none, means the default.
///
/// # Errors
/// `ConfigError` with line and column for a word that is not in the set.
pub fn word<T: Default + DeserializeOwned>(parameters: &Node, key: &str) -> Result<T, ConfigError> {
    let Some(text) = parameters.get(key).and_then(Node::text).filter(|text| !text.is_empty()) else {
        return Ok(T::default());
    };
    let word: StrDeserializer<'_, ConfigError> = text.into_deserializer();
    T::deserialize(word).map_err(|error| {
        let message = format!("{key} '{text}' is not known");
        ConfigError::at(parameters.position_of(key), message).hint(error.hint_text().unwrap_or_default())
    })
}

/// The name of a header in lower case, as headers are looked up.
///
/// # Errors
/// `ConfigError` with line and column for a name that can't be a header's.
pub fn header_name(at: Position, written: &str) -> Result<String, ConfigError> {
    let name = http::HeaderName::from_bytes(written.as_bytes()).map_err(|_| {
        ConfigError::at(at, format!("'{written}' can't be the name of a header"))
            .hint("write for example x-session-id")
    })?;
    Ok(name.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Order {
        #[default]
        First,
        Last,
    }

    #[test]
    fn unknown_words_are_refused() {
        let read = |text: &str| word::<Order>(&Node::parse(text).unwrap(), "order");
        for (text, order) in [("{}", Order::First), ("order: ''", Order::First), ("order: last", Order::Last)]
        {
            assert_eq!(read(text).unwrap(), order, "{text}");
        }
        let error = read("{order: lost}").unwrap_err();
        assert_eq!(error.to_string(), "line 1, column 9: order 'lost' is not known (did you mean `last`?)");
        let error = read("{order: upside-down}").unwrap_err();
        assert_eq!(error.hint_text(), Some("known here: first, last"));
    }

    #[test]
    fn numbers_out_of_range_are_refused_at_their_place() {
        let node = Node::parse("{a: -1}").unwrap();
        let error = in_range(&node, "a", -1.0, 5.0, |value| value > 0.0).unwrap_err();
        assert_eq!(error.to_string(), "line 1, column 5: a can't be -1 (the default is 5)");
        assert!(in_range(&node, "a", f64::INFINITY, 5.0, |_| true).is_err());
        assert!(in_range(&node, "b", 5.0, 5.0, |value| value > 0.0).is_ok());
    }
}
