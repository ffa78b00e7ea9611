//! Payloads of KV events.

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use rmpv::Value;
use usher_core::kv_events::{
    Batch, Chain, Change, Dialect, Event, Media, Reply, Residency, ResidencySettings, Skip, Topic,
};

use super::input::Input;

/// The first line chooses tokens of a block and room, the rest is a payload.
///
/// - What is read is what `rmpv` reads, and no more than there are bytes.
/// - Whatever is applied, blocks stay within their room, and are all gone at the end.
pub fn kv_events(bytes: &[u8]) {
    let input = Input::of(bytes);
    // Frames are no more than their bytes.
    let _ = (Topic::read(input.data), Reply::read(&[b"", input.data, input.data]));
    let theirs = rmpv::decode::read_value(&mut &*input.data);
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let ours = Batch::decode(input.data, dialect);
        match &theirs {
            // They read the byte that is never used as nil.
            Ok(_) if input.data.contains(&0xc1) => {}
            Ok(value) => {
                let events = events_of(value);
                assert_eq!(ours.map(|batch| batch.len()).ok(), events.map(<[Value]>::len));
                if let (Ok(batch), Some(events)) = (ours, events) {
                    batch.events().zip(events).for_each(|(ours, theirs)| check(ours, theirs));
                }
            }
            // They go no deeper than some; we don't go down.
            Err(rmpv::decode::Error::DepthLimitExceeded) => {}
            Err(_) => assert!(ours.is_err(), "they can't read it"),
        }
        if let Ok(batch) = ours {
            let things: usize = batch.events().map(things).sum();
            assert!(things <= input.data.len(), "{things} of {} bytes", input.data.len());
            apply(&input, batch);
        }
    }
}

fn named<'a>(pairs: &'a [(Value, Value)], name: &str) -> Option<&'a Value> {
    pairs.iter().rev().find(|(key, _)| is_text(key, name)).map(|(_, value)| value)
}

fn is_text(value: &Value, text: &str) -> bool {
    matches!(value, Value::String(string) if string.as_bytes() == text.as_bytes())
}

fn events_of(batch: &Value) -> Option<&[Value]> {
    let events = match batch {
        Value::Array(fields) => fields.get(1)?,
        Value::Map(pairs) => named(pairs, "events")?,
        _ => return None,
    };
    events.as_array().map(Vec::as_slice)
}

/// Checks what doesn't need the meaning of all fields: type, hashes and tokens.
fn check(ours: Result<Event<'_>, Skip>, theirs: &Value) {
    let field = |at: usize, name: &str| match theirs {
        Value::Array(fields) => fields.get(at),
        Value::Map(pairs) => named(pairs, name),
        _ => None,
    };
    let tag = field(0, "type");
    let is = |name: &str| tag.is_some_and(|tag| is_text(tag, name));
    let is_known = ["BlockStored", "BlockRemoved", "AllBlocksCleared"].into_iter().any(is);
    match ours {
        Err(Skip::UnknownEvent) => assert!(!is_known && matches!(tag, Some(Value::String(_)))),
        Err(Skip::MalformedRemoval) => assert!(is("BlockRemoved") || is("AllBlocksCleared")),
        Err(_) => assert!(!is("AllBlocksCleared")),
        Ok(Event::Cleared { .. }) => assert!(is("AllBlocksCleared")),
        Ok(Event::Removed(removed)) => {
            assert!(is("BlockRemoved"));
            assert_eq!(removed.hashes.iter().map(Some).collect::<Vec<_>>(), hashes(field(1, "block_hashes")));
        }
        Ok(Event::Stored(stored)) => {
            assert!(is("BlockStored"));
            assert_eq!(stored.hashes.iter().map(Some).collect::<Vec<_>>(), hashes(field(1, "block_hashes")));
            let theirs = tokens(field(3, "token_ids"));
            assert_eq!(stored.tokens.len(), theirs.len());
            let same = |(ours, theirs): (u32, &Option<u32>)| theirs.is_none_or(|theirs| ours == theirs);
            assert!(stored.tokens.iter().zip(&theirs).all(same), "{theirs:?}");
        }
    }
}

fn hashes(list: Option<&Value>) -> Vec<Option<u64>> {
    let hash = |value: &Value| match value {
        Value::Integer(number) => number.as_u64().or(number.as_i64().map(|number| number as u64)),
        Value::Binary(_) | Value::String(_) => {
            let bytes = match value {
                Value::String(text) => text.as_bytes(),
                value => value.as_slice().unwrap_or_default(),
            };
            let mut last = [0; 8];
            let len = bytes.len().min(8);
            last[8 - len..].copy_from_slice(&bytes[bytes.len() - len..]);
            (!bytes.is_empty()).then_some(u64::from_be_bytes(last))
        }
        _ => None,
    };
    list.and_then(Value::as_array).map(|list| list.iter().map(hash).collect()).unwrap_or_default()
}

/// The tokens, but for digests.
fn tokens(list: Option<&Value>) -> Vec<Option<u32>> {
    let token = |value: &Value| value.as_u64().and_then(|token| u32::try_from(token).ok());
    let first = |value: &Value| match value.as_array().map(Vec::as_slice) {
        Some([first, second]) => token(second).and(token(first)),
        Some(_) => None,
        None => token(value),
    };
    list.and_then(Value::as_array).map(|list| list.iter().map(first).collect()).unwrap_or_default()
}

fn things(event: Result<Event<'_>, Skip>) -> usize {
    match event {
        Ok(Event::Stored(stored)) => {
            let keys: usize = stored.extra_keys.iter().map(|keys| keys.iter().count()).sum();
            stored.hashes.iter().count() + stored.tokens.iter().count() + keys
        }
        Ok(Event::Removed(removed)) => removed.hashes.iter().count(),
        Ok(Event::Cleared { .. }) | Err(_) => 1,
    }
}

fn apply(input: &Input<'_>, batch: Batch<'_>) {
    let room = usize::from(input.setting(1));
    let mut residency = Residency::new(
        ResidencySettings {
            block_tokens: NonZeroU16::new(u16::from(input.setting(0) % 8) + 1).expect("at least 1"),
            bytes: room * ResidencySettings::BYTES_PER_BLOCK,
            waiting_bytes: 2000,
            remembered: 3,
        },
        Media::default(),
    );
    let (source, model) = (residency.add_source(), Chain::of_model(b"m"));
    let mut held = BTreeMap::new();
    let mut sink = |change: Change| match change.tier {
        Some(tier) => drop(held.insert(change.key, tier)),
        None => drop(held.remove(&change.key)),
    };
    // Twice, as copies count.
    for event in batch.events().chain(batch.events()) {
        let _ = residency.apply(source, 0, model, event, &mut sink);
        assert!(residency.blocks() <= room, "{} blocks in room for {room}", residency.blocks());
    }
    residency.remove_source(source, &mut sink);
    assert_eq!(residency.blocks(), 0);
    assert!(held.is_empty(), "{held:?} outlive their source");
}
