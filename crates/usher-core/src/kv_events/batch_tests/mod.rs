//! Payloads written by an encoder that isn't ours, as each engine and version writes them.

mod bad;
mod golden;
mod properties;

use rmpv::Value;

use super::*;

/// An event that owns its content.
#[derive(Clone, Debug, Default, PartialEq)]
struct Store {
    hashes: Vec<u64>,
    parent: Option<u64>,
    tokens: Vec<u32>,
    block_size: u32,
    lora_id: Option<u64>,
    lora_name: Option<String>,
    medium: Option<String>,
    extra_keys: Vec<Vec<String>>,
    mm_keys: Vec<Vec<String>>,
    cache_salt: Option<String>,
    group: Option<u32>,
    group_kind: Option<String>,
    reused: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Owned {
    Stored(Store),
    Removed { hashes: Vec<u64>, medium: Option<String>, group: Option<u32> },
    Cleared(Option<String>),
}

fn string(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn strings(keys: &ExtraKeys<'_>) -> Vec<Vec<String>> {
    keys.iter().map(|keys| keys.iter().map(string).collect()).collect()
}

impl Owned {
    fn of(event: &Event<'_>) -> Self {
        let text = |text: Option<&str>| text.map(str::to_owned);
        match event {
            Event::Stored(stored) => Self::Stored(Store {
                hashes: stored.hashes.iter().collect(),
                parent: stored.parent,
                tokens: stored.tokens.iter().collect(),
                block_size: stored.block_size,
                lora_id: stored.lora_id,
                lora_name: text(stored.lora_name),
                medium: text(stored.medium),
                extra_keys: strings(&stored.extra_keys),
                mm_keys: strings(&stored.mm_keys),
                cache_salt: stored.cache_salt.map(string),
                group: stored.group,
                group_kind: text(stored.group_kind),
                reused: stored.reused,
            }),
            Event::Removed(removed) => Self::Removed {
                hashes: removed.hashes.iter().collect(),
                medium: text(removed.medium),
                group: removed.group,
            },
            Event::Cleared { medium } => Self::Cleared(text(*medium)),
        }
    }
}

fn written(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).unwrap();
    bytes
}

fn decoded(payload: &[u8], dialect: Dialect) -> Vec<Result<Owned, Skip>> {
    let batch = Batch::decode(payload, dialect).unwrap();
    let events: Vec<_> = batch.events().map(|event| event.map(|event| Owned::of(&event))).collect();
    assert_eq!(events.len(), batch.len());
    assert_eq!(batch.is_empty(), events.is_empty());
    events
}

fn list(values: impl IntoIterator<Item = Value>) -> Value {
    Value::Array(values.into_iter().collect())
}

fn numbers(values: &[u64]) -> Value {
    list(values.iter().map(|number| (*number).into()))
}

fn map(fields: &[(&str, Value)]) -> Value {
    Value::Map(fields.iter().map(|(name, value)| ((*name).into(), value.clone())).collect())
}

/// A batch as vLLM sends it, of one event.
fn batch_of(event: Value) -> Vec<u8> {
    written(&list([1_763_870_000.25.into(), list([event]), 0.into()]))
}

const HASH: u64 = 0xfedc_ba98_7654_3210;

/// The first field values of a store, in vLLM's order.
fn full() -> Vec<Value> {
    let extra = list([list(["sql".into(), list(["img".into(), 3.into()]), "salt".into()]), Value::Nil]);
    vec![
        "BlockStored".into(),
        numbers(&[HASH, 2]),
        7.into(),
        numbers(&[1, 2, 3, 70_000]),
        2.into(),
        4.into(),
        "GPU".into(),
        "sql".into(),
        extra,
        1.into(),
        "full_attention".into(),
        Value::Nil,
        "LOCAL".into(),
        Value::Nil,
        "session".into(),
    ]
}

/// Events of the first batches, so many of them.
fn expected(fields: usize) -> Owned {
    let some = |at: usize, text: &str| (fields > at).then(|| text.to_owned());
    let keys = || vec![["sql", "img", "salt"].map(str::to_owned).to_vec(), vec![]];
    Owned::Stored(Store {
        hashes: vec![HASH, 2],
        parent: Some(7),
        tokens: vec![1, 2, 3, 70_000],
        block_size: 2,
        lora_id: (fields > 5).then_some(4),
        medium: some(6, "GPU"),
        lora_name: some(7, "sql"),
        extra_keys: if fields > 8 { keys() } else { vec![] },
        group: (fields > 9).then_some(1),
        group_kind: some(10, "full_attention"),
        ..Store::default()
    })
}

const NAMES: [&str; 15] = [
    "type",
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "locality",
    "ownership",
    "session_id",
];
