//! Random events and bytes.

use proptest::prelude::*;

use super::*;

fn stores() -> impl Strategy<Value = Store> {
    let text = || prop::option::of("[a-z0-9@]{1,9}");
    (
        (prop::collection::vec(any::<u64>(), 0..6), prop::option::of(1u64..), 0u32..5000),
        prop::collection::vec((any::<u32>(), 0..32u32).prop_map(|(token, shift)| token >> shift), 0..40),
        (prop::option::of(any::<u64>()), text(), text()),
        prop::collection::vec(prop::collection::vec("[a-z]{0,5}", 0..3), 0..5),
        (prop::option::of(any::<u32>()), text()),
    )
        .prop_map(
            |((hashes, parent, block_size), tokens, (lora_id, lora_name, medium), extra_keys, group)| Store {
                hashes,
                parent,
                tokens,
                block_size,
                lora_id,
                lora_name,
                medium,
                extra_keys,
                group: group.0,
                group_kind: group.1,
                ..Store::default()
            },
        )
}

fn events() -> impl Strategy<Value = Owned> {
    prop_oneof![
        6 => stores().prop_map(Owned::Stored),
        3 => (prop::collection::vec(any::<u64>(), 0..9), prop::option::of("[A-Z]{1,5}"), any::<Option<u32>>())
            .prop_map(|(hashes, medium, group)| Owned::Removed { hashes, medium, group }),
        1 => Just(Owned::Cleared(None)),
    ]
}

/// Hashes as integers, negative ones, or digests.
fn hash_value(hash: u64, style: u8) -> Value {
    match style % 3 {
        0 => hash.into(),
        1 => (hash as i64).into(),
        _ => [vec![0xee; 24], hash.to_be_bytes().to_vec()].concat().into(),
    }
}

fn or_nil<T: Into<Value>>(value: Option<T>) -> Value {
    value.map_or(Value::Nil, Into::into)
}

fn fields(event: &Owned, style: u8) -> Vec<(&'static str, Value)> {
    let hashes = |hashes: &[u64]| list(hashes.iter().map(|hash| hash_value(*hash, style)));
    match event {
        Owned::Stored(store) => {
            let keys = store.extra_keys.iter().map(|keys| match &keys[..] {
                [] => Value::Nil,
                keys => list(keys.iter().enumerate().map(|(at, key)| match at {
                    1 => list([key.as_str().into(), 5.into()]),
                    _ => key.as_str().into(),
                })),
            });
            NAMES[..11]
                .iter()
                .copied()
                .zip([
                    "BlockStored".into(),
                    hashes(&store.hashes),
                    or_nil(store.parent.map(|parent| hash_value(parent, style))),
                    list(store.tokens.iter().map(|token| (*token).into())),
                    store.block_size.into(),
                    or_nil(store.lora_id),
                    or_nil(store.medium.as_deref()),
                    or_nil(store.lora_name.as_deref()),
                    list(keys),
                    or_nil(store.group),
                    or_nil(store.group_kind.as_deref()),
                ])
                .collect()
        }
        Owned::Removed { hashes: removed, medium, group } => vec![
            ("type", "BlockRemoved".into()),
            ("block_hashes", hashes(removed)),
            ("medium", or_nil(medium.as_deref())),
            ("group_idx", or_nil(*group)),
        ],
        Owned::Cleared(medium) => {
            vec![("type", "AllBlocksCleared".into()), ("medium", or_nil(medium.as_deref()))]
        }
    }
}

fn encoded(events: &[Owned], style: u8, form: u8) -> Vec<u8> {
    let events = list(events.iter().map(|event| {
        let fields = fields(event, style);
        if form & 1 == 0 { list(fields.into_iter().map(|(_, value)| value)) } else { map(&fields) }
    }));
    written(&match form & 6 {
        0 => list([1.5.into(), events, 2.into()]),
        2 => list([1.5.into(), events, Value::Nil]),
        4 => list([1.5.into(), events]),
        _ => map(&[("ts", 1.5.into()), ("events", events)]),
    })
}

/// Reads all that there is, and returns how many things that was.
fn read_all(payload: &[u8]) -> usize {
    [Dialect::Vllm, Dialect::Sglang]
        .into_iter()
        .filter_map(|dialect| Batch::decode(payload, dialect).ok())
        .map(|batch| batch.events().map(|event| event.map_or(1, |event| things(&event))).sum())
        .max()
        .unwrap_or(0)
}

fn things(event: &Event<'_>) -> usize {
    match event {
        Event::Stored(stored) => {
            assert_eq!(stored.hashes.iter().count(), stored.hashes.len());
            assert_eq!(stored.tokens.iter().count(), stored.tokens.len());
            assert_eq!(stored.extra_keys.iter().count(), stored.extra_keys.len());
            let keys: usize = stored.extra_keys.iter().map(|keys| keys.iter().count()).sum();
            stored.hashes.len() + stored.tokens.len() + stored.extra_keys.len() + keys
        }
        Event::Removed(removed) => {
            assert_eq!(removed.hashes.iter().count(), removed.hashes.len());
            removed.hashes.len()
        }
        Event::Cleared { .. } => 1,
    }
}

proptest! {
    #[test]
    fn encoded_batches_are_decoded(events in prop::collection::vec(events(), 0..8), style: u8, form: u8) {
        let payload = encoded(&events, style, form);
        let expected: Vec<_> = events.into_iter().map(Ok).collect();
        prop_assert_eq!(decoded(&payload, Dialect::Vllm), expected);
    }

    #[test]
    fn truncated_payload_is_cut(events in prop::collection::vec(events(), 0..8), form: u8, at: prop::sample::Index) {
        let payload = encoded(&events, 0, form);
        let cut = &payload[..at.index(payload.len())];
        prop_assert_eq!(Batch::decode(cut, Dialect::Vllm).unwrap_err(), BatchError::Truncated);
    }

    /// All lengths are those of bytes that are there, so whoever collects needs no more than these allow.
    #[test]
    fn damaged_payloads_yield_no_more_than_their_bytes(
        events in prop::collection::vec(events(), 0..8),
        form: u8,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let mut payload = encoded(&events, 0, form);
        for (at, byte) in damage {
            let at = at.index(payload.len());
            payload[at] = byte;
        }
        prop_assert!(read_all(&payload) <= payload.len());
    }

    #[test]
    fn arbitrary_bytes_yield_no_more_than_their_bytes(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(read_all(&bytes) <= bytes.len());
    }
}
