//! serde's errors reworded without Rust terms.

use std::fmt;

use serde::de::{self, Unexpected};

use super::error::ConfigError;

impl de::Error for ConfigError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::of_value(message.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let expected = plain_words(&expected.to_string());
        let error = Self::of_value(format!("expected {expected}, found {}", shown(found)));
        match found {
            Unexpected::Bool(_) | Unexpected::Signed(_) | Unexpected::Float(_) if expected == "text" => {
                error.hint("put it in quotes")
            }
            Unexpected::Str(text) if expected.contains("number") && text.parse::<f64>().is_ok() => {
                error.hint("write it without quotes")
            }
            _ if expected == "a number" => error.hint("write for example 2 or 0.5"),
            _ => error,
        }
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        Self::of_value(format!("unknown value '{variant}'"))
            .hint(format!("known here: {}", expected.join(", ")))
            .did_you_mean(variant, expected.iter().copied())
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new(format!("'{field}' is missing"))
    }
}

/// Description of the expected type, in plain words.
fn plain_words(expected: &str) -> String {
    let words = match expected {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" | "u64" | "usize" => "a whole number that is not negative",
        "i8" | "i16" | "i64" | "isize" => "a whole number",
        "i32" => "a whole number from -2147483648 to 2147483647",
        "f32" | "f64" => "a number",
        "a string" => "text",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        other if other.starts_with("struct ") || other.starts_with("map") => "a map",
        other => other,
    };
    words.to_owned()
}

fn shown(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(value) => value.to_string(),
        Unexpected::Signed(value) => value.to_string(),
        Unexpected::Unsigned(value) => value.to_string(),
        Unexpected::Float(value) => value.to_string(),
        Unexpected::Str(value) => format!("'{value}'"),
        Unexpected::Unit => "nothing".to_owned(),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "a map".to_owned(),
        other => other.to_string(),
    }
}
