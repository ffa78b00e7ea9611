//! Events of engines, borrowed from their payload.

use xxhash_rust::xxh3::xxh3_64;

use super::msgpack::{Head, Reader, Truncated};

/// One event of a batch.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Blocks that the engine holds from now on, or once more, or in another medium as well.
    Stored(Stored<'a>),
    /// Blocks that one copy in a medium is gone of.
    Removed(Removed<'a>),
    /// All blocks are gone.
    Cleared {
        /// Only those of this medium.
        medium: Option<&'a str>,
    },
}

/// `BlockStored`: consecutive blocks of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    /// The engine's hashes, a block each.
    pub hashes: Hashes<'a>,
    /// Hash of the block before the first. `None` at the start of a sequence, which some engines write as 0.
    pub parent: Option<u64>,
    /// Tokens of all blocks. Empty where only the medium is new (offloading).
    pub tokens: Tokens<'a>,
    /// Tokens of a block; 0 in placeholders.
    pub block_size: u32,
    /// Adapter by number, before vLLM#27577; of a textual one a hash.
    pub lora_id: Option<u64>,
    /// Adapter by name.
    pub lora_name: Option<&'a str>,
    /// `None` is the GPU.
    pub medium: Option<&'a str>,
    /// Strings beside the tokens that distinguish blocks, per block (vLLM#33304).
    pub extra_keys: ExtraKeys<'a>,
    /// Hashes of images and the like, per block (`mm_keys` of TensorRT-LLM).
    pub mm_keys: ExtraKeys<'a>,
    /// Cache salt of the sequence, where it has a field of its own (SGLang).
    pub cache_salt: Option<&'a [u8]>,
    /// KV cache group (vLLM#37688).
    pub group: Option<u32>,
    /// Attention of the group (vLLM#40984).
    pub group_kind: Option<&'a str>,
    /// The engine reports blocks that it has reported before (vLLM#51699): no further copy.
    pub reused: bool,
}

/// `BlockRemoved`: blocks of any sequences.
#[derive(Clone, Copy, Debug)]
pub struct Removed<'a> {
    /// The engine's hashes.
    pub hashes: Hashes<'a>,
    /// `None` is the GPU.
    pub medium: Option<&'a str>,
    /// KV cache group. `None`: whichever it is.
    pub group: Option<u32>,
}

/// Hashes of an event, which were checked.
#[derive(Clone, Copy, Debug)]
pub struct Hashes<'a> {
    len: u32,
    items: Reader<'a>,
}

/// Tokens of an event, which were checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tokens<'a> {
    len: u32,
    items: Option<Reader<'a>>,
}

/// Extra keys of an event, block by block.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExtraKeys<'a> {
    blocks: u32,
    items: Option<Reader<'a>>,
}

impl<'a> Hashes<'a> {
    /// Reads the next value to its end; `None` if that is no list of hashes.
    pub(super) fn read(values: &mut Reader<'a>) -> Option<Self> {
        let Ok(Head::Array(len)) = values.head() else { return None };
        let items = *values;
        (0..len).try_for_each(|_| hash(values).map(drop))?;
        Some(Self { len, items })
    }

    /// Number of hashes.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns `true` if there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The hashes in their order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + Clone + use<'a> {
        let mut items = self.items;
        (0..self.len).map_while(move |_| hash(&mut items))
    }
}

/// Reads a hash: an integer of any width, of which the bits count, or the last eight bytes of a digest.
pub(super) fn hash(value: &mut Reader<'_>) -> Option<u64> {
    match value.head().ok()? {
        Head::Unsigned(number) => Some(number),
        Head::Negative(number) => Some(number as u64),
        Head::Binary(digest) | Head::Text(digest) => {
            let last = digest.len().saturating_sub(8);
            let number = digest.get(last..)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
            (!digest.is_empty()).then_some(number)
        }
        _ => None,
    }
}

impl<'a> Tokens<'a> {
    /// Reads the next value to its end; `None` if that is no list of tokens.
    pub(super) fn read(values: &mut Reader<'a>) -> Option<Self> {
        let len = match values.head().ok()? {
            Head::Array(len) => len,
            Head::Nil => 0,
            _ => return None,
        };
        let items = *values;
        (0..len).try_for_each(|_| token(values).map(drop))?;
        Some(Self { len, items: Some(items) })
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns `true` if there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The tokens in their order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + Clone + use<'a> {
        let mut items = self.items;
        (0..self.len).map_while(move |_| token(items.as_mut()?))
    }
}

/// Reads a token. SGLang with EAGLE sends each together with the next one; the first of the pair counts. TensorRT-LLM
/// has digests of images among them, which no prompt has.
#[inline]
fn token(items: &mut Reader<'_>) -> Option<u32> {
    let mut pair = *items;
    if let Some(token) = items.small() {
        return Some(token);
    }
    let token = match pair.head().ok()? {
        Head::Array(2) => (pair.small()?, pair.small()?).0,
        Head::Text(digest) => xxh3_64(digest) as u32,
        _ => return None,
    };
    *items = pair;
    Some(token)
}

impl<'a> ExtraKeys<'a> {
    /// `None` if the value is no list with a list or nothing for each block.
    pub(super) fn read(mut value: Reader<'a>) -> Option<Self> {
        let blocks = match value.head().ok()? {
            Head::Array(blocks) => blocks,
            Head::Nil => return Some(Self::default()),
            // The session of SGLang's arrays.
            Head::Text(_) => return Some(Self::default()),
            _ => return None,
        };
        let items = value;
        (0..blocks).try_for_each(|_| keys_of_block(&mut value).map(drop))?;
        Some(Self { blocks, items: Some(items) })
    }

    /// Number of blocks that there are keys for, none included.
    pub fn len(&self) -> usize {
        self.blocks as usize
    }

    /// Returns `true` if there are none for any block.
    pub fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// The keys of each block in their order. Of an identifier with an offset the identifier counts, of a map its
    /// `hash`, as the place follows from the tokens; other things than texts and bytes are left out.
    pub fn iter(&self) -> impl Iterator<Item = BlockKeys<'a>> + Clone + use<'a> {
        let mut items = self.items;
        (0..self.blocks).map_while(move |_| keys_of_block(items.as_mut()?))
    }
}

/// Extra keys of one block.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockKeys<'a> {
    items: u32,
    reader: Option<Reader<'a>>,
}

impl<'a> BlockKeys<'a> {
    /// The keys in their order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a> {
        let mut reader = self.reader;
        (0..self.items).filter_map(move |_| key(reader.as_mut()?).ok()?)
    }
}

/// Reads the extra keys of the next block.
fn keys_of_block<'a>(items: &mut Reader<'a>) -> Option<BlockKeys<'a>> {
    match items.head().ok()? {
        Head::Nil => Some(BlockKeys::default()),
        Head::Array(len) => {
            let keys = BlockKeys { items: len, reader: Some(*items) };
            items.skip_many(u64::from(len)).ok()?;
            Some(keys)
        }
        _ => None,
    }
}

/// Reads one extra key, if it counts.
fn key<'a>(items: &mut Reader<'a>) -> Result<Option<&'a [u8]>, Truncated> {
    let mut value = items.value()?;
    Ok(match value.head()? {
        Head::Text(key) | Head::Binary(key) => Some(key),
        Head::Array(1..) => match value.head()? {
            Head::Text(key) | Head::Binary(key) => Some(key),
            _ => None,
        },
        Head::Map(fields) => field_of(value, fields, b"hash")?,
        _ => None,
    })
}

/// The text that a map has under a name.
pub(super) fn field_of<'a>(
    mut pairs: Reader<'a>,
    len: u32,
    name: &[u8],
) -> Result<Option<&'a [u8]>, Truncated> {
    let mut found = None;
    for _ in 0..len {
        let (mut key, mut value) = (pairs.value()?, pairs.value()?);
        if key.head() == Ok(Head::Text(name))
            && let Ok(Head::Text(text)) = value.head()
        {
            found = Some(text);
        }
    }
    Ok(found)
}
