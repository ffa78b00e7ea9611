//! Events applied one by one.

#[path = "property_tests.rs"]
mod properties;

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use rmpv::Value;

use crate::kv_events::{Batch, Chain, Dialect, Skip, prompt_keys};

use super::*;

/// A residency, one of its sources, and what its changes add up to.
struct Bench {
    residency: Residency,
    source: SourceId,
    epoch: u64,
    model: Chain,
    block_tokens: u16,
    held: BTreeMap<(SourceId, u64), Tier>,
}

/// Fields of an event by their names, for [`Bench::apply`].
type Fields<'a> = &'a [(&'a str, Value)];

fn numbers(values: &[u64]) -> Value {
    Value::Array(values.iter().map(|number| (*number).into()).collect())
}

fn note(held: &mut BTreeMap<(SourceId, u64), Tier>, change: Change) {
    let before = match change.tier {
        Some(tier) => held.insert((change.source, change.key), tier),
        None => held.remove(&(change.source, change.key)),
    };
    assert_ne!(before, change.tier, "a change that is none: {change:?}");
}

impl Bench {
    fn new(settings: Settings) -> Self {
        let mut residency = Residency::new(settings, Media::default());
        let source = residency.add_source();
        let (epoch, model, block_tokens) = (0, Chain::of_model(b"m"), settings.block_tokens.get());
        Self { residency, source, epoch, model, block_tokens, held: BTreeMap::new() }
    }

    fn of_tokens(block_tokens: u16) -> Self {
        Self::new(Settings { block_tokens: NonZeroU16::new(block_tokens).unwrap(), ..Settings::default() })
    }

    fn payload(&mut self, payload: &[u8]) -> Vec<Result<(), Skip>> {
        let Self { residency, source, epoch, model, held, .. } = self;
        let batch = Batch::decode(payload, Dialect::Vllm).unwrap();
        let mut sink = |change| note(held, change);
        batch.events().map(|event| residency.apply(*source, *epoch, *model, event, &mut sink)).collect()
    }

    fn apply(&mut self, fields: Fields<'_>) -> Result<(), Skip> {
        let event = Value::Map(fields.iter().map(|(name, value)| ((*name).into(), value.clone())).collect());
        let batch = Value::Array(vec![1.5.into(), Value::Array(vec![event]), Value::Nil]);
        let mut payload = Vec::new();
        rmpv::encode::write_value(&mut payload, &batch).unwrap();
        self.payload(&payload)[0]
    }

    /// Stores a text, a token per letter, behind a block. `more` are other fields.
    fn store(
        &mut self,
        text: &str,
        size: usize,
        parent: Option<u64>,
        hashes: &[u64],
        more: Fields<'_>,
    ) -> Result<(), Skip> {
        let tokens: Vec<u64> = text.bytes().map(u64::from).collect();
        let mut fields = vec![
            ("type", "BlockStored".into()),
            ("block_hashes", numbers(hashes)),
            ("parent_block_hash", parent.map_or(Value::Nil, Into::into)),
            ("token_ids", numbers(&tokens)),
            ("block_size", size.into()),
        ];
        fields.extend(more.iter().cloned());
        self.apply(&fields)
    }

    fn remove(&mut self, hashes: &[u64], more: Fields<'_>) -> Result<(), Skip> {
        let mut fields = vec![("type", "BlockRemoved".into()), ("block_hashes", numbers(hashes))];
        fields.extend(more.iter().cloned());
        self.apply(&fields)
    }

    /// Tiers of the leading blocks of a prompt that are held, up to the first that is not.
    fn match_as(&self, model: Chain, prompt: &str, extras: &[(usize, &str)]) -> Vec<u8> {
        let tokens: Vec<u32> = prompt.bytes().map(u32::from).collect();
        let mut keys = Vec::new();
        let extras = extras.iter().map(|(at, extra)| (*at, extra.as_bytes()));
        prompt_keys(model, &tokens, NonZeroU16::new(self.block_tokens).unwrap(), extras, &mut keys);
        let tiers = keys.iter().map_while(|key| self.held.get(&(self.source, *key)));
        tiers.map(|tier| tier.number()).collect()
    }

    fn matched(&self, prompt: &str) -> Vec<u8> {
        self.match_as(self.model, prompt, &[])
    }

    fn summary(&self) -> Summary {
        self.residency.summary(self.source).unwrap()
    }
}

const CPU: (&str, &str) = ("medium", "CPU");

fn field((name, value): (&'static str, &str)) -> (&'static str, Value) {
    (name, value.into())
}

#[test]
fn blocks_follow_their_parents() {
    let mut bench = Bench::of_tokens(4);
    bench.store("abcd", 4, None, &[1], &[]).unwrap();
    bench.store("efghijkl", 4, Some(1), &[2, 3], &[]).unwrap();
    assert_eq!(bench.matched("abcdefghijkl"), [0, 0, 0]);
    assert!(bench.matched("efgh").is_empty());
    bench.remove(&[2], &[]).unwrap();
    assert_eq!(bench.matched("abcdefghijkl"), [0]);
    bench.store("efgh", 4, Some(1), &[2], &[]).unwrap();
    assert_eq!(bench.matched("abcdefghijkl"), [0, 0, 0]);
    assert_eq!(
        bench.summary(),
        Summary { blocks: 3, waiting: 0, complete: false, block_tokens: 4, evicted: 0 }
    );
    bench.apply(&[("type", "AllBlocksCleared".into())]).unwrap();
    assert!(bench.held.is_empty());
    assert_eq!(
        bench.summary(),
        Summary { blocks: 0, waiting: 0, complete: true, block_tokens: 4, evicted: 0 }
    );
}

#[test]
fn stores_wait_for_their_parents() {
    let mut bench = Bench::of_tokens(4);
    bench.store("ijkl", 4, Some(2), &[3], &[]).unwrap();
    bench.store("mnop", 4, Some(2), &[4], &[]).unwrap();
    bench.store("qrst", 4, Some(4), &[5], &[]).unwrap();
    bench.store("efgh", 4, Some(1), &[2], &[]).unwrap();
    bench.store("efgh", 4, Some(1), &[2], &[]).unwrap();
    assert!(bench.held.is_empty());
    assert_eq!(bench.summary().waiting, 4);
    // Copies and removals count while they wait.
    bench.remove(&[2, 3], &[]).unwrap();
    bench.store("abcd", 4, None, &[1], &[]).unwrap();
    assert_eq!(bench.summary().waiting, 0);
    assert_eq!(bench.matched("abcdefghmnopqrst"), [0, 0, 0, 0]);
    assert_eq!(bench.matched("abcdefghijkl"), [0, 0], "removed before its parent came");
    assert_eq!(bench.held.len(), 4);
}

#[test]
fn waiting_stores_are_bounded() {
    let settings = Settings { waiting_bytes: 2000, ..Settings::default() };
    let mut bench = Bench::new(Settings { block_tokens: NonZeroU16::new(4).unwrap(), ..settings });
    bench.apply(&[("type", "AllBlocksCleared".into())]).unwrap();
    let results: Vec<_> =
        (0..10).map(|at| bench.store(&format!("abc{at}"), 4, Some(1000), &[at], &[])).collect();
    assert_eq!(results.iter().filter(|result| **result == Err(Skip::UnknownParent)).count(), 3);
    assert!(results.iter().all(|result| matches!(result, Ok(()) | Err(Skip::UnknownParent))));
    assert_eq!((bench.summary().waiting, bench.summary().blocks), (7, 7), "the oldest went");
    bench.store("wxyz", 4, None, &[1000], &[]).unwrap();
    assert_eq!(bench.held.len(), 8);
    assert!(!bench.summary().complete);
}

#[test]
fn copies_are_counted_by_tier_and_group() {
    let mut bench = Bench::of_tokens(4);
    let gpu = |bench: &mut Bench| bench.store("abcd", 4, None, &[1], &[]).unwrap();
    gpu(&mut bench);
    gpu(&mut bench);
    bench.store("", 0, None, &[1], &[field(CPU)]).unwrap();
    assert_eq!(bench.matched("abcd"), [0]);
    bench.remove(&[1], &[]).unwrap();
    assert_eq!(bench.matched("abcd"), [0], "one of two copies");
    bench.remove(&[1], &[]).unwrap();
    assert_eq!(bench.matched("abcd"), [1]);
    bench.remove(&[1], &[]).unwrap();
    assert_eq!(bench.matched("abcd"), [1], "another tier");
    bench.remove(&[1], &[field(CPU)]).unwrap();
    assert!(bench.held.is_empty());
    bench.store("", 0, None, &[1], &[field(CPU)]).unwrap();
    assert_eq!(bench.matched("abcd"), [1], "offloaded after it was evicted");
    assert_eq!(bench.store("", 0, None, &[1, 9], &[field(CPU)]), Err(Skip::UnknownBlock));
    bench.store("", 0, None, &[1], &[("origin", "REUSED".into()), field(CPU)]).unwrap();
    bench.remove(&[1], &[field(CPU)]).unwrap();
    assert_eq!(bench.matched("abcd"), [1], "two copies, as one report was of the same");
    bench.apply(&[("type", "AllBlocksCleared".into()), field(CPU)]).unwrap();
    assert!(bench.held.is_empty());
}

#[test]
fn only_groups_of_full_attention_count() {
    let mut bench = Bench::of_tokens(4);
    let group = |group: u64, kind: Option<&str>| {
        let kind = kind.map(|kind| ("kv_cache_spec_kind", kind.into()));
        [("group_idx", group.into())].into_iter().chain(kind).collect::<Vec<(&str, Value)>>()
    };
    for (number, kind) in [(1, "sliding_window"), (2, "mamba"), (3, "chunked_local_attention")] {
        // Those have the whole span with few hashes.
        let skipped = bench.store("abcdefgh", 4, None, &[1], &group(number, Some(kind)));
        assert_eq!(skipped, Err(Skip::OtherGroup));
    }
    assert!(bench.held.is_empty());
    bench.store("abcd", 4, None, &[1], &group(0, Some("full_attention"))).unwrap();
    assert_eq!(
        bench.store("abcd", 4, None, &[1], &group(1, None)),
        Err(Skip::OtherGroup),
        "published before"
    );
    assert_eq!(bench.remove(&[1], &group(1, None)), Err(Skip::OtherGroup));
    assert_eq!(bench.matched("abcd"), [0]);
    bench.store("abcd", 4, None, &[1], &group(4, Some("mla_attention"))).unwrap();
    bench.store("abcd", 4, None, &[1], &group(5, None)).unwrap();
    bench.remove(&[1], &group(0, None)).unwrap();
    bench.remove(&[1], &group(4, None)).unwrap();
    assert_eq!(bench.matched("abcd"), [0], "vLLM between #37688 and #40984 sends no kind");
    bench.remove(&[1], &group(5, None)).unwrap();
    assert!(bench.held.is_empty());
}

#[test]
fn invalid_events_are_skipped() {
    let mut bench = Bench::of_tokens(4);
    bench.store("abcd", 4, None, &[1], &[]).unwrap();
    for (text, size, parent, hashes, more, skip) in [
        ("efgh", 0, Some(1), vec![2], vec![], Skip::Placeholder),
        ("efghi", 4, Some(1), vec![2], vec![], Skip::Unaligned),
        ("efgh", 4, Some(1), vec![2, 3], vec![], Skip::Unaligned),
        ("efgh", 4, Some(2), vec![2], vec![], Skip::SelfParent),
        ("efghijkl", 4, Some(1), vec![2, 2], vec![], Skip::SelfParent),
        ("efgh", 4, Some(1), vec![2], vec![("medium", "EXTERNAL".into())], Skip::UnknownMedium),
        ("efgh", 4, Some(1), vec![2], vec![("group_idx", 256.into())], Skip::OtherGroup),
        ("efgh", 70_000, Some(1), vec![2], vec![], Skip::Malformed),
        ("", 0, Some(1), vec![2], vec![], Skip::UnknownBlock),
    ] {
        assert_eq!(bench.store(text, size, parent, &hashes, &more), Err(skip), "{skip:?}");
    }
    let many: Vec<u64> = (0..=1 << 17).collect();
    assert_eq!(bench.store("", 0, None, &many, &[]), Err(Skip::Malformed));
    assert_eq!(bench.remove(&[1], &[("medium", "moon".into())]), Err(Skip::UnknownMedium));
    assert_eq!(bench.matched("abcdefgh"), [0]);
    assert_eq!(bench.held.len(), 1);
}

#[test]
fn source_is_complete_until_a_block_is_unknown() {
    let mut bench = Bench::of_tokens(4);
    for (kind, tokens, skip, complete) in [
        ("BlockMoved", "abcd", Err(Skip::UnknownEvent), false),
        ("BlockStored", "abc", Err(Skip::Unaligned), false),
        ("BlockStored", "", Err(Skip::UnknownBlock), false),
        ("BlockStored", "abcd", Ok(()), true),
        ("BlockRemoved", "", Ok(()), true),
    ] {
        bench.apply(&[("type", "AllBlocksCleared".into())]).unwrap();
        assert!(bench.summary().complete);
        assert_eq!(bench.store(tokens, 4, None, &[1], &[("type", kind.into())]), skip, "{kind} {tokens}");
        assert_eq!(bench.summary().complete, complete, "{kind} {tokens}");
    }
    bench.apply(&[("type", "AllBlocksCleared".into())]).unwrap();
    assert_eq!(bench.remove(&[1], &[("group_idx", "0".into())]), Err(Skip::MalformedRemoval));
    assert!(!bench.summary().complete);
}

/// Keys of each block besides its tokens.
fn extra(values: &[&[&str]]) -> (&'static str, Value) {
    let keys = values.iter().map(|keys| Value::Array(keys.iter().map(|key| (*key).into()).collect()));
    ("extra_keys", Value::Array(keys.collect()))
}

#[test]
fn adapters_salts_and_images_share_no_blocks() {
    let mut bench = Bench::of_tokens(4);
    bench.store("abcdefgh", 4, None, &[1, 2], &[]).unwrap();
    bench.store("abcd", 4, None, &[3], &[extra(&[&["salt"]])]).unwrap();
    bench.store("abcd", 4, None, &[4], &[("lora_name", "sql".into()), extra(&[&["sql", "salt"]])]).unwrap();
    bench.store("abcd", 4, None, &[5], &[("lora_id", 3.into())]).unwrap();
    bench.store("abcd", 4, None, &[6], &[("cache_salt", "other".into())]).unwrap();
    bench.store("efgh", 4, Some(1), &[8], &[extra(&[&["cat", "dog"]])]).unwrap();
    let segment = Value::Map(vec![("hash".into(), "cow".into())]);
    let mm_keys = Value::Array(vec![Value::Array(vec![segment])]);
    bench.store("efgh", 4, Some(1), &[11], &[("mm_keys", mm_keys)]).unwrap();
    // One whose parent comes later has its own, too.
    bench.store("ijkl", 4, Some(9), &[10], &[extra(&[&["cat"]])]).unwrap();
    bench.store("efgh", 4, Some(3), &[9], &[]).unwrap();
    let (base, adapter) = (bench.model, Chain::of_model(b"sql"));
    for (model, extras, matched) in [
        (base, vec![], 2),
        (base, vec![(0, "salt")], 2),
        (base, vec![(0, "salt"), (8, "cat")], 3),
        (base, vec![(0, "other")], 1),
        (base, vec![(0, "none")], 0),
        (base, vec![(4, "cat"), (4, "dog")], 2),
        (base, vec![(4, "dog"), (4, "cat")], 1),
        (base, vec![(4, "cow")], 2),
        (adapter, vec![(0, "salt")], 1),
        (adapter, vec![], 0),
        (base.with_lora_id(3), vec![], 1),
    ] {
        assert_eq!(bench.match_as(model, "abcdefghijkl", &extras).len(), matched, "{extras:?}");
    }
}

#[test]
fn a_salt_may_be_named_as_the_adapter() {
    let mut bench = Bench::of_tokens(4);
    bench.store("abcd", 4, None, &[1], &[("lora_name", "sql".into()), extra(&[&["sql", "sql"]])]).unwrap();
    bench.store("efgh", 4, Some(1), &[2], &[("lora_name", "sql".into()), extra(&[&["sql"]])]).unwrap();
    let adapter = Chain::of_model(b"sql");
    assert_eq!(bench.match_as(adapter, "abcdefgh", &[(0, "sql")]).len(), 2);
    assert!(bench.match_as(adapter, "abcdefgh", &[]).is_empty());
}

#[test]
fn small_engine_blocks_count_once_they_fill_an_index_block() {
    let mut bench = Bench::of_tokens(4);
    bench.store("ab", 2, None, &[1], &[]).unwrap();
    assert!(bench.held.is_empty());
    bench.store("cdefg", 1, Some(1), &[2, 3, 4, 5, 6], &[]).unwrap();
    assert_eq!(bench.matched("abcdefgh"), [0]);
    bench.store("h", 1, Some(6), &[7], &[field(CPU)]).unwrap();
    bench.store("X", 1, Some(6), &[8], &[]).unwrap();
    assert_eq!(bench.matched("abcdefgh"), [0, 1], "as slow as its slowest part");
    assert_eq!(bench.matched("abcdefgX"), [0, 0]);
    bench.remove(&[5], &[]).unwrap();
    assert_eq!(bench.held.len(), 1, "both had it");
    bench.store("f", 1, Some(4), &[5], &[field(CPU)]).unwrap();
    assert_eq!((bench.matched("abcdefgh"), bench.matched("abcdefgX")), (vec![0, 1], vec![0, 1]));
    bench.remove(&[1], &[]).unwrap();
    assert!(bench.matched("abcdefgh").is_empty());
    assert_eq!(bench.held.len(), 2);
}

#[test]
fn engine_blocks_of_any_size_are_split_into_index_blocks() {
    let mut bench = Bench::of_tokens(4);
    bench.store("abcdefgh", 8, None, &[1], &[]).unwrap();
    assert_eq!(bench.matched("abcdefghijkl"), [0, 0]);
    bench.store("ijklmn", 6, Some(1), &[2], &[]).unwrap();
    assert_eq!(bench.matched("abcdefghijklmnop"), [0, 0, 0]);
    bench.store("opqrst", 6, Some(2), &[3], &[field(CPU)]).unwrap();
    assert_eq!(bench.matched("abcdefghijklmnopqrst"), [0, 0, 0, 1, 1]);
    bench.remove(&[2], &[]).unwrap();
    assert_eq!(bench.held.len(), 3, "two of the first, one of the last");
    bench.remove(&[1, 3], &[]).unwrap();
    assert_eq!(bench.held.len(), 1, "that on the host");
}

#[test]
fn blocks_starting_inside_an_index_block_take_more_memory() {
    let bytes = |text: &str| {
        let mut bench = Bench::of_tokens(4);
        let (first, second) = text.split_at(text.len() / 2);
        for at in 0..1000u64 {
            let adapter = at.to_string();
            let more = [field(("lora_name", adapter.as_str()))];
            bench.store(first, first.len(), None, &[2 * at], &more).unwrap();
            bench.store(second, second.len(), Some(2 * at), &[2 * at + 1], &more).unwrap();
        }
        assert_eq!(bench.residency.blocks(), 2000);
        bench.residency.bytes()
    };
    assert!(bytes("abcd") > bytes("abcdefgh"), "their parents are remembered with them");
}

#[test]
fn a_hash_with_another_content_is_another_block() {
    let mut bench = Bench::of_tokens(4);
    bench.store("abcdefgh", 4, None, &[1, 2], &[]).unwrap();
    bench.store("wxyz", 4, None, &[1], &[]).unwrap();
    assert_eq!(bench.matched("wxyz"), [0]);
    assert!(bench.matched("abcdefgh").is_empty(), "the first block is gone");
    bench.remove(&[1, 2], &[]).unwrap();
    assert!(bench.held.is_empty());
    bench.store("abcd", 4, None, &[1], &[]).unwrap();
    assert_eq!(bench.matched("abcd"), [0]);
}

#[test]
fn events_of_old_epochs_and_removed_sources_are_ignored() {
    let mut bench = Bench::of_tokens(4);
    let other = bench.residency.add_source();
    bench.store("abcd", 4, None, &[1], &[]).unwrap();
    bench.store("efgh", 4, Some(9), &[2], &[]).unwrap();
    let Bench { residency, source, held, .. } = &mut bench;
    residency.reset(*source, 5, true, &mut |change| note(held, change));
    assert!(bench.held.is_empty());
    assert_eq!(
        bench.summary(),
        Summary { blocks: 0, waiting: 0, complete: true, block_tokens: 4, evicted: 0 }
    );
    assert_eq!(bench.store("abcd", 4, None, &[1], &[]), Err(Skip::Outdated));
    bench.epoch = 5;
    bench.store("abcd", 4, None, &[9], &[]).unwrap();
    assert_eq!(bench.held.len(), 1, "what waited is gone");
    let Bench { residency, source, held, .. } = &mut bench;
    residency.remove_source(*source, &mut |change| note(held, change));
    assert!(bench.held.is_empty() && bench.residency.summary(bench.source).is_none());
    assert_eq!(bench.store("abcd", 4, None, &[1], &[]), Err(Skip::Outdated));
    assert_eq!(bench.residency.blocks(), 0);
    let gone = std::mem::replace(&mut bench.source, other);
    assert_ne!(gone, bench.residency.add_source(), "numbers are used once");
}

#[test]
fn coldest_tails_are_evicted_first() {
    let bytes = 40 * Settings::BYTES_PER_BLOCK;
    let block_tokens = NonZeroU16::new(1).unwrap();
    let mut bench = Bench::new(Settings { bytes, block_tokens, ..Settings::default() });
    bench.apply(&[("type", "AllBlocksCleared".into())]).unwrap();
    let hashes = |base: u64, len: u64| (0..len).map(|at| base + at).collect::<Vec<u64>>();
    // A shared prompt that is published once, and many that go on behind it.
    bench.store("sharedprompt", 1, None, &hashes(1, 12), &[]).unwrap();
    for round in 1..20u64 {
        let text: String =
            ["A", &"ab".repeat(5)].concat().chars().map(|c| ((c as u8) + round as u8) as char).collect();
        bench.store(&text, 1, Some(12), &hashes(100 * round, 11), &[]).unwrap();
        assert!(bench.residency.blocks() <= 40);
        assert_eq!(bench.matched("sharedprompt").len(), 12, "its children are hotter");
    }
    assert!(bench.residency.blocks() > 35);
    assert!(!bench.summary().complete);
    let stored = 12 + 19 * 11;
    assert_eq!(bench.summary().evicted, stored - bench.residency.blocks() as u64);
    assert_eq!(bench.residency.blocks(), bench.held.len());
}

#[test]
fn cold_blocks_are_evicted_before_pending_stores() {
    let bytes = 40 * Settings::BYTES_PER_BLOCK;
    let block_tokens = NonZeroU16::new(1).unwrap();
    let mut bench = Bench::new(Settings { bytes, block_tokens, ..Settings::default() });
    let text = "x".repeat(36);
    bench.store(&text, 1, None, &(100..136).collect::<Vec<u64>>(), &[]).unwrap();
    bench.store("bcd", 1, Some(1), &[2, 3, 4], &[]).unwrap();
    for hash in 10..20 {
        bench.store("y", 1, None, &[hash], &[("lora_id", hash.into())]).unwrap();
    }
    assert_eq!(bench.summary().waiting, 1);
    bench.store("a", 1, None, &[1], &[]).unwrap();
    assert_eq!(bench.matched("abcd").len(), 4);
    assert!((20..36).contains(&bench.matched(&text).len()));
    // Where all wait, the oldest go.
    for hash in 200..300 {
        let _ = bench.store("z", 1, Some(1000 + hash), &[hash], &[]);
    }
    assert!(bench.summary().blocks <= 40 && bench.summary().waiting < 40);
}

#[test]
fn unheld_blocks_are_remembered_for_a_while() {
    let block_tokens = NonZeroU16::new(1).unwrap();
    let mut bench = Bench::new(Settings { remembered: 3, block_tokens, ..Settings::default() });
    for (hash, text) in (0..10).zip(["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]) {
        bench.store(text, 1, None, &[hash], &[]).unwrap();
    }
    bench.remove(&[0, 1, 2, 3, 4, 5, 6, 7], &[]).unwrap();
    assert_eq!(bench.summary().blocks, 5);
    assert_eq!(bench.store("", 0, None, &[4], &[field(CPU)]), Err(Skip::UnknownBlock));
    bench.store("", 0, None, &[5], &[field(CPU)]).unwrap();
    assert_eq!(bench.matched("f"), [1]);
}
