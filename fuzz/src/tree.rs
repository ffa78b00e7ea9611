//! JSON as `serde_json` reads it, level by level: slices of the text with their
//! place, members in order, names that come twice included.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Returns `true` if bytes are one JSON document. Text need not be UTF-8, lone surrogates
/// and numbers beyond all types are allowed, and nesting has no limit.
pub fn is_json(bytes: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(bytes).is_ok()
}

/// Depth of the brackets of a text, those inside of strings included.
pub fn nesting(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in text.bytes() {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// A value in a text.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    /// Its first byte in the text.
    pub start: usize,
    /// As it stands there, without white space around it.
    pub raw: &'a str,
}

/// Kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Object,
    Array,
    String,
    Number,
    True,
    False,
    Null,
}

impl<'a> Node<'a> {
    /// The document of a text; `None` when it is not JSON.
    pub fn of(text: &'a str) -> Option<Self> {
        let raw: &RawValue = serde_json::from_str(text).ok()?;
        Some(Self { start: 0, raw: text }.part(raw))
    }

    /// One past its last byte.
    pub fn end(self) -> usize {
        self.start + self.raw.len()
    }

    pub fn kind(self) -> Kind {
        match self.raw.as_bytes()[0] {
            b'{' => Kind::Object,
            b'[' => Kind::Array,
            b'"' => Kind::String,
            b't' => Kind::True,
            b'f' => Kind::False,
            b'n' => Kind::Null,
            _ => Kind::Number,
        }
    }

    /// Text between the quotes of a string, with its escapes.
    pub fn inside(self) -> &'a str {
        &self.raw[1..self.raw.len() - 1]
    }

    /// The text of a string; `None` when it is none, or holds lone surrogates.
    pub fn text(self) -> Option<String> {
        serde_json::from_str(self.raw).ok()
    }

    /// The members of an object: name and value. Empty for other values.
    pub fn members(self) -> Vec<(Node<'a>, Node<'a>)> {
        if self.kind() != Kind::Object {
            return Vec::new();
        }
        let Members(members) = serde_json::from_str(self.raw).expect("it was read before");
        members.into_iter().map(|(name, value)| (self.part(name), self.part(value))).collect()
    }

    /// The last member with this name.
    pub fn last(self, name: &str) -> Option<Node<'a>> {
        self.members().into_iter().rev().find(|(key, _)| key.is_name(name)).map(|(_, value)| value)
    }

    /// The elements of an array. Empty for other values.
    pub fn elements(self) -> Vec<Node<'a>> {
        if self.kind() != Kind::Array {
            return Vec::new();
        }
        let elements: Vec<&RawValue> = serde_json::from_str(self.raw).expect("it was read before");
        elements.into_iter().map(|element| self.part(element)).collect()
    }

    /// Returns `true` if this is the name of a member that the scanner knows as `name`:
    /// what is longer than 64 bytes with its escapes is nobody's name.
    pub fn is_name(self, name: &str) -> bool {
        self.inside().len() <= 64 && self.text().is_some_and(|text| text == name)
    }

    fn part(self, part: &'a RawValue) -> Node<'a> {
        let offset = part.get().as_ptr().addr() - self.raw.as_ptr().addr();
        Node { start: self.start + offset, raw: part.get() }
    }
}

struct Members<'a>(Vec<(&'a RawValue, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}
