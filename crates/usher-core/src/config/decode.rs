//! Reads a tree into types, strictly: unknown keys and wrong types are errors
//! at their place.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer,
    MapAccess, SeqAccess, Unexpected, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::error::{ConfigError, Position};
use super::node::{Entry, Node, Value};

/// Names under which [`Positioned`] asks the tree for places.
const POSITIONED: &str = "$usher::Positioned";
const POSITIONED_FIELDS: &[&str] = &["line", "column", "value"];

impl Node {
    /// Reads this value as a `T`. Keys that `T` doesn't know are refused; keys
    /// without a value count as absent, as in llm-d-router's reader.
    ///
    /// # Errors
    /// `ConfigError` with line and column for the first thing that doesn't fit.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        T::deserialize(self).map_err(|error| error.or_at(self.at))
    }
}

/// A value with its place in the file. Can be read from a [`Node`] only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positioned<T> {
    /// Position of its beginning.
    pub at: Position,
    /// The value.
    pub value: T,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Positioned<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Parts<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Parts<T> {
            type Value = Positioned<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value with its place")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Positioned<T>, A::Error> {
                let missing = || de::Error::custom("a place needs a line, a column and a value");
                let line = seq.next_element()?.ok_or_else(missing)?;
                let column = seq.next_element()?.ok_or_else(missing)?;
                let value = seq.next_element()?.ok_or_else(missing)?;
                Ok(Positioned { at: Position { line, column }, value })
            }
        }
        deserializer.deserialize_struct(POSITIONED, POSITIONED_FIELDS, Parts(PhantomData))
    }
}

/// A subtree is read as it is, to be read into its own type later.
impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Positioned::<Value>::deserialize(deserializer).map(|Positioned { at, value }| Self { at, value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }

            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
                Ok(Value::Bool(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
                Ok(Value::Int(value))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
                Ok(Value::Float(value))
            }

            fn visit_str<E>(self, value: &str) -> Result<Value, E> {
                Ok(Value::Text(value.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Value::List(items))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
                let mut entries = Vec::new();
                while let Some((Positioned { at, value: key }, value)) = map.next_entry()? {
                    entries.push(Entry { key, at, value });
                }
                Ok(Value::Map(entries))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = ConfigError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        let result = match &self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Int(value) => visitor.visit_i64(*value),
            // llm-d-router's reader goes through JSON, where 3.0 and 3 are the same.
            Value::Float(value) if value.fract() == 0.0 && value.abs() < 9e15 => {
                visitor.visit_i64(*value as i64)
            }
            Value::Float(value) => visitor.visit_f64(*value),
            Value::Text(value) => visitor.visit_borrowed_str(value),
            Value::List(items) => visitor.visit_seq(Items(items.iter())),
            Value::Map(entries) => {
                visitor.visit_map(Entries { rest: entries.iter(), current: None, skip_null: false })
            }
        };
        result.map_err(|error: ConfigError| error.or_at(self.at))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ConfigError> {
        visitor.visit_newtype_struct(self).map_err(|error: ConfigError| error.or_at(self.at))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ConfigError> {
        if name == POSITIONED {
            return visitor.visit_seq(Parts { at: self.at, value: self, step: 0 });
        }
        // serde would also take a list as the fields in their order.
        let Value::Map(entries) = &self.value else {
            return Err(
                <ConfigError as de::Error>::invalid_type(self.value.unexpected(), &visitor).or_at(self.at)
            );
        };
        if let Some(entry) = entries.iter().find(|entry| !fields.contains(&entry.key.as_str())) {
            return Err(unknown_field(entry, fields));
        }
        let entries = Entries { rest: entries.iter(), current: None, skip_null: true };
        visitor.visit_map(entries).map_err(|error| error.or_at(self.at))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ConfigError> {
        match &self.value {
            Value::Text(text) => visitor.visit_enum(Word(text)),
            _ => self.deserialize_any(visitor),
        }
        .map_err(|error| error.or_at(self.at))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

fn unknown_field(entry: &Entry, fields: &[&str]) -> ConfigError {
    let error = ConfigError::at(entry.at, format!("unknown field '{}'", entry.key));
    let error = match fields {
        [] => error.hint("nothing can be set here"),
        fields if fields.len() <= 12 => error.hint(format!("known here: {}", fields.join(", "))),
        _ => error,
    };
    error.did_you_mean(&entry.key, fields.iter().copied())
}

impl Value {
    fn unexpected(&self) -> Unexpected<'_> {
        match self {
            Self::Null => Unexpected::Unit,
            Self::Bool(value) => Unexpected::Bool(*value),
            Self::Int(value) => Unexpected::Signed(*value),
            Self::Float(value) => Unexpected::Float(*value),
            Self::Text(text) => Unexpected::Str(text),
            Self::List(_) => Unexpected::Seq,
            Self::Map(_) => Unexpected::Map,
        }
    }
}

struct Items<'de>(std::slice::Iter<'de, Node>);

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = ConfigError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ConfigError> {
        self.0.next().map(|node| seed.deserialize(node).map_err(|error| error.or_at(node.at))).transpose()
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

struct Entries<'de> {
    rest: std::slice::Iter<'de, Entry>,
    current: Option<&'de Entry>,
    skip_null: bool,
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = ConfigError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, ConfigError> {
        let skip_null = self.skip_null;
        self.current = self.rest.find(|entry| !(skip_null && entry.value.value == Value::Null));
        self.current
            .map(|entry| seed.deserialize(Key(entry)).map_err(|error| error.or_at(entry.at)))
            .transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, ConfigError> {
        match self.current.take() {
            Some(entry) => seed
                .deserialize(&entry.value)
                .map_err(|error| error.or_at(entry.value.at).in_field(&entry.key)),
            None => Err(ConfigError::new("a value without a key")),
        }
    }
}

#[derive(Clone, Copy)]
struct Key<'de>(&'de Entry);

impl<'de> Deserializer<'de> for Key<'de> {
    type Error = ConfigError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ConfigError> {
        visitor.visit_borrowed_str(&self.0.key)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ConfigError> {
        match name {
            POSITIONED => visitor.visit_seq(Parts { at: self.0.at, value: self, step: 0 }),
            _ => self.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Line, column and value, one after the other.
struct Parts<D> {
    at: Position,
    value: D,
    step: u8,
}

impl<'de, D: Deserializer<'de, Error = ConfigError> + Copy> SeqAccess<'de> for Parts<D> {
    type Error = ConfigError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ConfigError> {
        self.step += 1;
        match self.step {
            1 => seed.deserialize(self.at.line.into_deserializer()).map(Some),
            2 => seed.deserialize(self.at.column.into_deserializer()).map(Some),
            3 => seed.deserialize(self.value).map(Some),
            _ => Ok(None),
        }
    }
}

/// One word of a fixed set.
struct Word<'de>(&'de str);

impl<'de> EnumAccess<'de> for Word<'de> {
    type Error = ConfigError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), ConfigError> {
        let word: StrDeserializer<'_, ConfigError> = self.0.into_deserializer();
        Ok((seed.deserialize(word)?, self))
    }
}

impl<'de> VariantAccess<'de> for Word<'de> {
    type Error = ConfigError;

    fn unit_variant(self) -> Result<(), ConfigError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _seed: T) -> Result<T::Value, ConfigError> {
        Err(ConfigError::new("expected a map"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, _visitor: V) -> Result<V::Value, ConfigError> {
        Err(ConfigError::new("expected a list"))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, ConfigError> {
        Err(ConfigError::new("expected a map"))
    }
}
