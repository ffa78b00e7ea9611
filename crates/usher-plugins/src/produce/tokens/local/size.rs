//! Memory of a tokenizer, estimated from its file before it is read.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Bytes of an entry of a hash table, beside its key and value: hash tables of the standard library and of ahash.
const CONTROL: u64 = 1;
/// Bytes of a string on the heap beside its text, with what the allocator rounds up.
const HEAP: u64 = 12;
/// Bytes that any tokenizer takes: patterns of words, added tokens.
const BASE: u64 = 1 << 20;
/// Bytes of a node of a unigram model's trie: a hash table with few children.
const NODE: u64 = 320;
/// Nodes of the trie for each byte of the vocabulary's text: beginnings are shared.
const NODES_IN_8: u64 = 5;
/// Bytes of a merge while it is read: its two texts, as they are kept until the type of all is known and once more.
const MERGE_READ: u64 = 240;

/// Lengths of a tokenizer.json.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    /// Bytes of the file.
    pub(super) file: u64,
    pub(super) model: ModelSize,
}

/// Lengths of its model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ModelSize {
    pub(super) kind: ModelKind,
    /// Entries of the vocabulary, and bytes of their text.
    pub(super) entries: u64,
    pub(super) text: u64,
    pub(super) merges: u64,
}

/// Type of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) enum ModelKind {
    #[serde(rename = "BPE")]
    Bpe,
    WordPiece,
    WordLevel,
    Unigram,
    /// None is named: it is the first that the file fits.
    #[default]
    #[serde(skip)]
    Unknown,
}

impl Size {
    /// Lengths of a file.
    ///
    /// # Errors
    /// `serde_json::Error` if the text is no tokenizer.
    pub(super) fn of(text: &str) -> serde_json::Result<Self> {
        #[derive(Deserialize)]
        struct File {
            model: Model,
        }
        #[derive(Deserialize)]
        struct Model {
            #[serde(default, rename = "type")]
            kind: ModelKind,
            #[serde(default)]
            vocab: Count,
            #[serde(default)]
            merges: Count,
        }
        let File { model: Model { kind, vocab, merges } } = serde_json::from_str(text)?;
        let model = ModelSize { kind, entries: vocab.entries, text: vocab.text, merges: merges.entries };
        Ok(Self { file: text.len() as u64, model })
    }

    /// Bytes that it takes once it is read.
    pub(super) fn loaded(&self) -> u64 {
        let ModelSize { kind, entries, text, merges } = self.model;
        let strings = text + entries * HEAP;
        // From text to number and back.
        let both = 2 * (table(entries, 32) + strings);
        BASE + both
            + match kind {
                ModelKind::Unigram => text * NODES_IN_8 / 8 * NODE,
                _ => table(merges, 16),
            }
    }

    /// Bytes that it takes at most while it is read.
    pub(super) fn loading(&self) -> u64 {
        let ModelSize { kind, entries, text, merges } = self.model;
        let read = match kind {
            // Everything is kept until the type is known, and once more.
            ModelKind::Unknown => self.file * 12 + merges * MERGE_READ,
            _ => text + entries * (32 + HEAP) + merges * MERGE_READ,
        };
        self.file + self.loaded() + read
    }
}

/// Bytes of a hash table with so many entries of this size: it doubles when seven eighths are used.
fn table(entries: u64, entry: u64) -> u64 {
    if entries == 0 { 0 } else { (entries * 8 / 7 + 1).next_power_of_two() * (entry + CONTROL) }
}

/// Entries of a list or an object, and bytes of the texts that begin them.
#[derive(Default)]
struct Count {
    entries: u64,
    text: u64,
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Entries)
    }
}

struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Count;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list or an object")
    }

    fn visit_unit<E>(self) -> Result<Count, E> {
        Ok(Count::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Count, A::Error> {
        let mut count = Count::default();
        while let Some((Length(text), IgnoredAny)) = map.next_entry()? {
            count.entries += 1;
            count.text += text;
        }
        Ok(count)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Count, A::Error> {
        let mut count = Count::default();
        while let Some(Length(text)) = list.next_element()? {
            count.entries += 1;
            count.text += text;
        }
        Ok(count)
    }
}

/// Bytes of a text, or of the first in a list.
struct Length(u64);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(First)
    }
}

struct First;

impl<'de> Visitor<'de> for First {
    type Value = Length;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, or a list that begins with one")
    }

    fn visit_str<E>(self, text: &str) -> Result<Length, E> {
        Ok(Length(text.len() as u64))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Length, A::Error> {
        let first = list.next_element::<Length>()?;
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(first.unwrap_or(Length(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vocabulary_sizes_are_counted_in_all_forms() {
        let table = [
            (
                r#"{"model":{"type":"BPE","vocab":{"a":0,"b\u00e9":1},"merges":["a b","c d"]}}"#,
                (ModelKind::Bpe, 2, 4, 2),
            ),
            (r#"{"model":{"merges":[["a","b"]],"vocab":{"ab":7},"type":"BPE"}}"#, (ModelKind::Bpe, 1, 2, 1)),
            (
                r#"{"model":{"type":"Unigram","vocab":[["<unk>",0.0],["ab",-1.5]]}}"#,
                (ModelKind::Unigram, 2, 7, 0),
            ),
            (r#"{"x":[{}],"model":{"vocab":{"a":1}}}"#, (ModelKind::Unknown, 1, 1, 0)),
            (r#"{"model":{"type":"WordPiece","vocab":null}}"#, (ModelKind::WordPiece, 0, 0, 0)),
        ];
        for (file, (kind, entries, text, merges)) in table {
            let model = ModelSize { kind, entries, text, merges };
            assert_eq!(Size::of(file).unwrap(), Size { file: file.len() as u64, model }, "{file}");
        }
        for wrong in ["", "{}", r#"{"model":7}"#, r#"{"model":{"type":"Other"}}"#, r#"{"model":{"vocab":7}}"#]
        {
            assert!(Size::of(wrong).is_err(), "{wrong}");
        }
    }
}
