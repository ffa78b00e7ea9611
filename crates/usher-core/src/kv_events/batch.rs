//! Batches of events, as vLLM, SGLang and TensorRT-LLM publish them.
//!
//! Sources: vLLM's `distributed/kv_events.py`, SGLang's `disaggregation/kv_events.py` and TensorRT-LLM#17023. A batch
//! and each of its events is an array of positional fields or, since vLLM#42892 and sglang#37482, a map with names.
//! Both levels are read in both forms, whichever engine sends them.

use xxhash_rust::xxh3::xxh3_64;

use super::event::{Event, ExtraKeys, Hashes, Removed, Stored, Tokens, field_of, hash};
use super::msgpack::{Head, Reader, Truncated};
use super::skip::Skip;

/// Meaning of the positional fields of a store behind its medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// vLLM's, which TensorRT-LLM has taken over.
    #[default]
    Vllm,
    /// SGLang's: the salt follows the medium, or a map that it is in, and the session.
    Sglang,
}

/// Reason why nothing of a payload can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// Payload that ends within a value, or that is not MessagePack.
    #[error("payload ends within a value")]
    Truncated,
    /// MessagePack without a list of events.
    #[error("payload has no list of events")]
    NoEvents,
}

impl From<Truncated> for BatchError {
    fn from(Truncated: Truncated) -> Self {
        Self::Truncated
    }
}

/// A payload whose end is known to be there.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    dialect: Dialect,
    events: u32,
    items: Reader<'a>,
    timestamp: Option<f64>,
    rank: Option<u32>,
}

impl<'a> Batch<'a> {
    /// Reads all of a payload but the content of its events.
    pub fn decode(payload: &'a [u8], dialect: Dialect) -> Result<Self, BatchError> {
        let mut reader = Reader::new(payload);
        let (mut events, mut timestamp, mut rank) = (None, None, None);
        match reader.head()? {
            Head::Array(fields) => {
                for field in 0..fields {
                    let value = reader.value()?;
                    match field {
                        0 => timestamp = Some(value),
                        1 => events = Some(value),
                        2 => rank = Some(value),
                        _ => {}
                    }
                }
            }
            Head::Map(fields) => {
                for _ in 0..fields {
                    let (name, value) = (reader.value()?, reader.value()?);
                    match text(name) {
                        Some(b"ts") => timestamp = Some(value),
                        Some(b"events") => events = Some(value),
                        Some(b"data_parallel_rank" | b"attn_dp_rank") => rank = Some(value),
                        _ => {}
                    }
                }
            }
            _ => return Err(BatchError::NoEvents),
        }
        let mut items = events.ok_or(BatchError::NoEvents)?;
        let Head::Array(events) = items.head()? else { return Err(BatchError::NoEvents) };
        let timestamp = timestamp.and_then(seconds);
        Ok(Self { dialect, events, items, timestamp, rank: rank.and_then(number) })
    }

    /// Number of events.
    pub fn len(&self) -> usize {
        self.events as usize
    }

    /// Returns `true` if there is no event.
    pub fn is_empty(&self) -> bool {
        self.events == 0
    }

    /// Time at which the engine made the batch, in seconds since 1970, if known.
    pub fn timestamp(&self) -> Option<f64> {
        self.timestamp
    }

    /// Data parallel rank that the batch names. That of the socket it came from is to be preferred.
    pub fn rank(&self) -> Option<u32> {
        self.rank
    }

    /// The events in their order. One that can't be read costs only itself.
    pub fn events(&self) -> impl Iterator<Item = Result<Event<'a>, Skip>> + Clone + use<'a> {
        let (mut items, dialect) = (self.items, self.dialect);
        (0..self.events).map(move |_| event(&mut items, dialect))
    }
}

/// Field of an event that counts.
#[derive(Clone, Copy, Debug)]
enum Field {
    Hashes,
    Parent,
    Tokens,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    ExtraKeys,
    MmKeys,
    Group,
    GroupKind,
    Locality,
    Ownership,
    CacheSalt,
    Origin,
    /// One that makes no difference.
    Other,
}

const FIELDS: usize = Field::Other as usize + 1;

impl Field {
    /// vLLM's `BlockStored` behind its tag.
    const STORED: [Self; 13] = [
        Self::Hashes,
        Self::Parent,
        Self::Tokens,
        Self::BlockSize,
        Self::LoraId,
        Self::Medium,
        Self::LoraName,
        Self::ExtraKeys,
        Self::Group,
        Self::GroupKind,
        Self::Other,
        Self::Locality,
        Self::Ownership,
    ];
    /// SGLang's.
    const STORED_SGLANG: [Self; 7] = [
        Self::Hashes,
        Self::Parent,
        Self::Tokens,
        Self::BlockSize,
        Self::LoraId,
        Self::Medium,
        Self::CacheSalt,
    ];
    /// `BlockRemoved`.
    const REMOVED: [Self; 5] = [Self::Hashes, Self::Medium, Self::Group, Self::Locality, Self::Ownership];
    /// `AllBlocksCleared`, which names a medium in ATOM only.
    const CLEARED: [Self; 1] = [Self::Medium];

    fn named(name: &[u8]) -> Self {
        match name {
            b"block_hashes" => Self::Hashes,
            b"parent_block_hash" => Self::Parent,
            b"token_ids" => Self::Tokens,
            b"block_size" => Self::BlockSize,
            b"lora_id" => Self::LoraId,
            b"medium" => Self::Medium,
            b"lora_name" => Self::LoraName,
            b"extra_keys" => Self::ExtraKeys,
            b"mm_keys" => Self::MmKeys,
            b"group_idx" => Self::Group,
            b"kv_cache_spec_kind" => Self::GroupKind,
            b"locality" => Self::Locality,
            b"ownership" => Self::Ownership,
            b"cache_salt" => Self::CacheSalt,
            b"origin" => Self::Origin,
            _ => Self::Other,
        }
    }
}

/// Values of an event's fields. Nothing and nil are the same.
struct Values<'a> {
    /// The long ones are read where they are passed, so that their ends need not be looked for first. `None` for
    /// hashes that are missing or can't be read, and for tokens that can't be read.
    hashes: Option<Hashes<'a>>,
    tokens: Option<Tokens<'a>>,
    others: [Option<Reader<'a>>; FIELDS],
}

/// Kinds of events.
#[derive(Clone, Copy, Debug)]
enum Tag {
    Stored,
    Removed,
    Cleared,
}

impl Tag {
    fn read(value: Reader<'_>) -> Result<Self, Skip> {
        match text(value).ok_or(Skip::Malformed)? {
            b"BlockStored" => Ok(Self::Stored),
            b"BlockRemoved" => Ok(Self::Removed),
            b"AllBlocksCleared" => Ok(Self::Cleared),
            _ => Err(Skip::UnknownEvent),
        }
    }
}

/// Reads the next event, of which all is there, to its end.
fn event<'a>(items: &mut Reader<'a>, dialect: Dialect) -> Result<Event<'a>, Skip> {
    let read = match items.head() {
        Ok(Head::Array(fields @ 1..)) => by_position(items, fields, dialect),
        Ok(Head::Map(fields)) => by_name(items, fields),
        _ => return Err(Skip::Malformed),
    };
    let (tag, values) = read.map_err(|Truncated| Skip::Malformed)??;
    match tag {
        Tag::Stored => {
            let stored = stored(&values).ok_or(Skip::Malformed)?;
            values.check_owner(Skip::Malformed)?;
            Ok(Event::Stored(stored))
        }
        Tag::Removed => {
            let removed = removed(&values).ok_or(Skip::MalformedRemoval)?;
            values.check_owner(Skip::MalformedRemoval)?;
            Ok(Event::Removed(removed))
        }
        Tag::Cleared => {
            let medium = values.text(Field::Medium).ok_or(Skip::MalformedRemoval)?;
            Ok(Event::Cleared { medium })
        }
    }
}

fn by_position<'a>(
    items: &mut Reader<'a>,
    fields: u32,
    dialect: Dialect,
) -> Result<Result<(Tag, Values<'a>), Skip>, Truncated> {
    let mut values = Values::new();
    let tag = match Tag::read(items.value()?) {
        Ok(tag) => tag,
        Err(skip) => {
            items.skip_many(u64::from(fields) - 1)?;
            return Ok(Err(skip));
        }
    };
    let order: &[Field] = match (tag, dialect) {
        (Tag::Stored, Dialect::Vllm) => &Field::STORED,
        (Tag::Stored, Dialect::Sglang) => &Field::STORED_SGLANG,
        (Tag::Removed, _) => &Field::REMOVED,
        (Tag::Cleared, _) => &Field::CLEARED,
    };
    let mut order = order.iter();
    for _ in 1..fields {
        let field = match order.next().unwrap_or(&Field::Other) {
            // SGLang's, whatever the dialect.
            Field::LoraName if matches!(Reader::head(&mut { *items }), Ok(Head::Map(_))) => Field::CacheSalt,
            field => *field,
        };
        values.read(field, items)?;
    }
    Ok(Ok((tag, values)))
}

fn by_name<'a>(items: &mut Reader<'a>, fields: u32) -> Result<Result<(Tag, Values<'a>), Skip>, Truncated> {
    let (mut tag, mut values) = (Err(Skip::Malformed), Values::new());
    for _ in 0..fields {
        match text(items.value()?) {
            Some(b"type") => tag = Tag::read(items.value()?),
            Some(name) => values.read(Field::named(name), items)?,
            None => items.skip()?,
        }
    }
    Ok(tag.map(|tag| (tag, values)))
}

impl<'a> Values<'a> {
    fn new() -> Self {
        Self { hashes: None, tokens: Some(Tokens::default()), others: [None; FIELDS] }
    }

    /// Reads the next value as that of a field.
    fn read(&mut self, field: Field, items: &mut Reader<'a>) -> Result<(), Truncated> {
        match field {
            Field::Hashes => self.hashes = list(items, Hashes::read)?,
            Field::Tokens => self.tokens = list(items, Tokens::read)?,
            field => {
                let value = items.value()?;
                self.others[field as usize] = (!value.is_nil()).then_some(value);
            }
        }
        Ok(())
    }

    fn get(&self, field: Field) -> Option<Reader<'a>> {
        self.others[field as usize]
    }

    /// Value of a field by `read`: `Some(None)` without the field, `None` if it can't be read.
    fn optional<T>(&self, field: Field, read: impl FnOnce(Reader<'a>) -> Option<T>) -> Option<Option<T>> {
        match self.get(field) {
            Some(value) => read(value).map(Some),
            None => Some(None),
        }
    }

    fn text(&self, field: Field) -> Option<Option<&'a str>> {
        self.optional(field, |value| std::str::from_utf8(text(value)?).ok())
    }

    /// Checks that the blocks are the publisher's own.
    fn check_owner(&self, malformed: Skip) -> Result<(), Skip> {
        let locality = self.text(Field::Locality).ok_or(malformed)?;
        if locality.is_some_and(|locality| !locality.eq_ignore_ascii_case("LOCAL")) {
            return Err(Skip::Remote);
        }
        let owner = self.text(Field::Ownership).ok_or(malformed)?;
        if owner.is_some_and(|owner| !owner.is_empty()) { Err(Skip::Owned) } else { Ok(()) }
    }
}

/// Reads a list to its end, or skips what is none.
fn list<'a, T>(
    items: &mut Reader<'a>,
    read: impl FnOnce(&mut Reader<'a>) -> Option<T>,
) -> Result<Option<T>, Truncated> {
    let start = *items;
    let list = read(items);
    if list.is_none() {
        *items = start;
        items.skip()?;
    }
    Ok(list)
}

fn stored<'a>(values: &Values<'a>) -> Option<Stored<'a>> {
    let lora_id = |mut value: Reader<'a>| match value.head().ok()? {
        Head::Unsigned(number) => Some(number),
        Head::Text(name) => Some(xxh3_64(name)),
        _ => None,
    };
    Some(Stored {
        hashes: values.hashes?,
        parent: values.optional(Field::Parent, |mut value| hash(&mut value))?.filter(|hash| *hash != 0),
        tokens: values.tokens?,
        block_size: values.optional(Field::BlockSize, number)?.unwrap_or_default(),
        lora_id: values.optional(Field::LoraId, lora_id)?,
        lora_name: values.text(Field::LoraName)?.filter(|name| !name.is_empty()),
        medium: values.text(Field::Medium)?,
        extra_keys: values.optional(Field::ExtraKeys, ExtraKeys::read)?.unwrap_or_default(),
        mm_keys: values.optional(Field::MmKeys, ExtraKeys::read)?.unwrap_or_default(),
        cache_salt: values.optional(Field::CacheSalt, salt)?.filter(|salt| !salt.is_empty()),
        group: values.optional(Field::Group, number)?,
        group_kind: values.text(Field::GroupKind)?,
        reused: values.text(Field::Origin)?.is_some_and(|origin| origin.eq_ignore_ascii_case("REUSED")),
    })
}

fn removed<'a>(values: &Values<'a>) -> Option<Removed<'a>> {
    Some(Removed {
        hashes: values.hashes?,
        medium: values.text(Field::Medium)?,
        group: values.optional(Field::Group, number)?,
    })
}

/// Reads a salt: a text, or the metadata that it is in.
fn salt(mut value: Reader<'_>) -> Option<&[u8]> {
    match value.head().ok()? {
        Head::Text(salt) => Some(salt),
        Head::Map(fields) => field_of(value, fields, b"cache_salt").ok().map(Option::unwrap_or_default),
        _ => None,
    }
}

fn text(mut value: Reader<'_>) -> Option<&[u8]> {
    match value.head() {
        Ok(Head::Text(text)) => Some(text),
        _ => None,
    }
}

fn number(mut value: Reader<'_>) -> Option<u32> {
    match value.head() {
        Ok(Head::Unsigned(number)) => u32::try_from(number).ok(),
        _ => None,
    }
}

fn seconds(mut value: Reader<'_>) -> Option<f64> {
    match value.head().ok()? {
        Head::Float(seconds) => Some(seconds).filter(|seconds| seconds.is_finite()),
        Head::Unsigned(seconds) => Some(seconds as f64),
        _ => None,
    }
}

#[cfg(test)]
#[path = "batch_tests/mod.rs"]
mod tests;
