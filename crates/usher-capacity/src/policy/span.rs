//! Values of a policy that serde has no type for.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use usher_core::config::units;

/// A duration as Go writes it: `15s`, `5m`, `1h30m`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GoDuration(pub Duration);

impl GoDuration {
    /// The duration, or a default.
    pub(crate) fn or(span: Option<Self>, default: Duration) -> Duration {
        span.map_or(default, |span| span.0)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Text(text) = Text::deserialize(deserializer)?;
        units::parse_duration(&text).map(Self).map_err(D::Error::custom)
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}ms", self.0.as_millis()))
    }
}

/// The same notation as [`units::parse_duration`]. The API server evaluates durations in rules, and needs a
/// bound of their length.
impl JsonSchema for GoDuration {
    fn schema_name() -> Cow<'static, str> {
        "GoDuration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": 32,
            "pattern": r"^\+?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$",
        })
    }
}

/// Text, or a number as written: `"1:4"`, `0.25`, `1`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Text(pub String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text or a number")
            }

            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(Text(text.to_owned()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Text, E> {
                Ok(Text(value.to_string()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Text, E> {
                Ok(Text(value.to_string()))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Text, E> {
                // The shortest text that means the number, which is how it was written.
                Ok(Text(value.to_string()))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// A ratio. Whole numbers need no quotes in a custom resource, decimals do, as no type has both.
impl JsonSchema for Text {
    fn schema_name() -> Cow<'static, str> {
        "Text".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        const DECIMAL: &str = r" *([0-9]+(\.[0-9]{0,9})?|\.[0-9]{1,9}) *";
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "maxLength": 64,
            "pattern": format!("^{DECIMAL}([:/]{DECIMAL})?$"),
            "minimum": 0,
        })
    }
}
