//! A document as a tree in which every value knows its place.

use super::error::Position;

/// A value and where it begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Position of its beginning.
    pub at: Position,
    /// The value itself.
    pub value: Value,
}

/// A value of the JSON model, which is what configurations are made of.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `null`, or an empty value.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Any other number, or one that is too large.
    Float(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// A map in the order of the file; no key appears twice.
    Map(Vec<Entry>),
}

/// One entry of a map.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Position of the key's beginning.
    pub at: Position,
    /// The value.
    pub value: Node,
}

impl Node {
    /// An empty map at a place.
    pub fn empty_map(at: Position) -> Self {
        Self { at, value: Value::Map(Vec::new()) }
    }

    /// The entries, if this is a map.
    pub fn entries(&self) -> &[Entry] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The value under a key, if this is a map that has it.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entries().iter().find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// Mutable value under a key, if this is a map that has it.
    pub(super) fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        match &mut self.value {
            Value::Map(entries) => {
                entries.iter_mut().find(|entry| entry.key == key).map(|entry| &mut entry.value)
            }
            _ => None,
        }
    }

    /// The items, if this is a list.
    pub fn items(&self) -> &[Node] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    /// The value under a key, unless it is nothing; keys of maps in maps have dots between them.
    pub fn find(&self, key: &str) -> Option<&Node> {
        key.split('.').try_fold(self, Self::get).filter(|node| node.value != Value::Null)
    }

    /// Position of the value at a path of keys with dots between them, or of the innermost map on that path if
    /// there is no such value.
    pub fn position_of(&self, key: &str) -> Position {
        let mut node = self;
        for part in key.split('.') {
            match node.get(part) {
                Some(inner) if inner.value != Value::Null => node = inner,
                _ => break,
            }
        }
        node.at
    }

    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}
