//! Parameters as the documentation lists them, taken from the struct that a plugin reads.

use std::fmt;
use std::iter::once;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{self, DeserializeOwned, Deserializer, IntoDeserializer, Visitor};
use serde_json::Value;

/// One parameter of a plugin type, for the documentation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Parameter {
    /// The key; of a nested struct with the keys that lead to it, as in `algorithm.type`.
    pub name: String,
    /// The default as it is written; empty: it has to be given.
    pub default: String,
    /// The unit; empty for what has none.
    pub unit: String,
    /// Meaning, in a sentence.
    pub meaning: String,
}

/// The documented fields of a struct, in the order of their declaration.
pub(crate) fn parameters<T: JsonSchema + DeserializeOwned>() -> Vec<Parameter> {
    let settings = SchemaSettings::default().with(|settings| settings.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let mut rows = Vec::new();
    add(schema.as_value(), "", &mut Vec::new(), declared::<T>, &mut rows);
    rows
}

/// Adds a row for every documented field of a struct. `path`: the fields that lead to it.
fn add<'a>(
    schema: &'a Value,
    prefix: &str,
    path: &mut Vec<&'a str>,
    declared: fn(&[&str]) -> &'static [&'static str],
    rows: &mut Vec<Parameter>,
) {
    let Some(Value::Object(properties)) = schema.get("properties") else { return };
    let order = declared(path);
    let mut fields: Vec<(&String, &Value)> = properties.iter().collect();
    fields.sort_by_key(|(name, _)| order.iter().position(|declared| declared == name).unwrap_or(usize::MAX));
    for (name, field) in fields {
        let listed = schema.get("required").and_then(Value::as_array);
        let is_required = field.get("x-required").is_some()
            || listed.is_some_and(|all| all.iter().any(|required| required == name));
        let parts = structure(field);
        if is_required || parts.is_none() {
            rows.extend(row(format!("{prefix}{name}"), field, is_required));
        }
        let (parts, prefix) = match (parts, field.get("items").and_then(structure)) {
            (Some(parts), _) => (parts, format!("{prefix}{name}.")),
            (None, Some(item)) => (item, format!("{prefix}{name}[].")),
            (None, None) => continue,
        };
        path.push(name);
        add(parts, &prefix, path, declared, rows);
        path.pop();
    }
}

/// The struct that a value is, if it is there.
fn structure(schema: &Value) -> Option<&Value> {
    let choices = schema.get("anyOf").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    once(schema).chain(choices).find(|schema| schema.get("properties").is_some())
}

fn row(name: String, field: &Value, is_required: bool) -> Option<Parameter> {
    // The first paragraph says what it means; what follows is for readers of the code.
    let meaning = field.get("description")?.as_str()?.split("\n\n").next()?.replace('\n', " ");
    let unit = field.get("x-unit").and_then(Value::as_str).unwrap_or_default().to_owned();
    let default = if is_required { String::new() } else { written(field.get("default")) };
    Some(Parameter { name, default, unit, meaning })
}

/// A default as it is written in a configuration.
fn written(default: Option<&Value>) -> String {
    match default {
        None | Some(Value::Null) => "none".to_owned(),
        Some(Value::String(text)) if text.is_empty() => "none".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(number @ Value::Number(_)) => {
            number.as_f64().filter(|_| number.is_f64()).map_or_else(|| number.to_string(), |n| n.to_string())
        }
        Some(other) => other.to_string(),
    }
}

/// Fields of the struct at a path, in the order of their declaration, which a schema doesn't keep.
fn declared<T: DeserializeOwned>(path: &[&str]) -> &'static [&'static str] {
    match T::deserialize(Probe(path)) {
        Err(Found(fields)) => fields,
        Ok(_) => &[],
    }
}

/// Reads nothing: follows a path through a type, and fails with the fields at its end.
#[derive(Clone, Copy)]
struct Probe<'a>(&'a [&'a str]);

/// Fields that a probe found.
#[derive(Debug)]
struct Found(&'static [&'static str]);

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fields {:?}", self.0)
    }
}

impl std::error::Error for Found {}

impl de::Error for Found {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self(&[])
    }
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Found;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Found> {
        Err(Found(&[]))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Found> {
        visitor.visit_some(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Found> {
        visitor.visit_seq(SeqDeserializer::new(once(self)))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Found> {
        match self.0 {
            [] => Err(Found(fields)),
            [next, rest @ ..] => visitor.visit_map(MapDeserializer::new(once((*next, Probe(rest))))),
        }
    }

    /// A type that takes anything in a configuration shows its fields here.
    fn is_human_readable(&self) -> bool {
        false
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct newtype_struct tuple tuple_struct map enum identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de, Found> for Probe<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    /// Not listed.
    #[derive(Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "camelCase", default)]
    struct Params {
        /// The port.
        ///
        /// 8000 is what vLLM listens on.
        #[schemars(extend("x-unit" = "port"))]
        some_port: u16,
        /// Highest fill level, over
        /// two lines.
        limit: f64,
        /// Not written: any.
        #[schemars(extend("default" = "no limit"))]
        at_most: Option<u64>,
        /// Ignored.
        #[serde(skip_serializing)]
        older: Option<String>,
        /// No row of its own.
        algorithm: Algorithm,
        /// Has to be there.
        #[schemars(extend("x-required" = true))]
        gate: Gate,
        /// A list.
        items: Vec<Item>,
        undocumented: bool,
        /// A text.
        a_text: String,
    }

    impl Default for Params {
        fn default() -> Self {
            Self {
                some_port: 8000,
                limit: 1.0,
                at_most: None,
                older: None,
                algorithm: Algorithm::default(),
                gate: Gate::default(),
                items: Vec::new(),
                undocumented: false,
                a_text: String::new(),
            }
        }
    }

    #[derive(Default, Serialize, Deserialize, JsonSchema)]
    #[serde(default)]
    struct Algorithm {
        /// Type of the algorithm.
        #[serde(rename = "type")]
        name: Word,
        /// Bounds.
        bounds: Option<Bounds>,
    }

    #[derive(Default, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    enum Word {
        #[default]
        First,
    }

    #[derive(Serialize, Deserialize, JsonSchema)]
    struct Bounds {
        /// The upper one.
        z: f64,
        /// The lower one.
        a: f64,
    }

    #[derive(Default, Serialize, Deserialize, JsonSchema)]
    #[serde(default)]
    struct Gate {
        /// Width.
        #[schemars(extend("x-unit" = "m"))]
        width: f64,
    }

    #[derive(Serialize, Deserialize, JsonSchema)]
    struct Item {
        /// Name of the item.
        name: String,
        /// Number of the item.
        number: Option<u32>,
    }

    #[test]
    fn parameter_rows_come_from_the_struct() {
        let rows = parameters::<Params>();
        let rows: Vec<[&str; 4]> = rows
            .iter()
            .map(|row| [&row.name, &row.default, &row.unit, &row.meaning].map(String::as_str))
            .collect();
        let expected = [
            ["somePort", "8000", "port", "The port."],
            ["limit", "1", "", "Highest fill level, over two lines."],
            ["atMost", "no limit", "", "Not written: any."],
            ["older", "none", "", "Ignored."],
            ["algorithm.type", "first", "", "Type of the algorithm."],
            ["algorithm.bounds.z", "", "", "The upper one."],
            ["algorithm.bounds.a", "", "", "The lower one."],
            ["gate", "", "", "Has to be there."],
            ["gate.width", "0", "m", "Width."],
            ["items", "[]", "", "A list."],
            ["items[].name", "", "", "Name of the item."],
            ["items[].number", "none", "", "Number of the item."],
            ["aText", "none", "", "A text."],
        ];
        assert_eq!(rows, expected);
    }
}
