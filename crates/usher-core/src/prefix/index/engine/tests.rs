//! The index compared with a list of what each endpoint reported.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::prefix::index::tests::Pool;

#[derive(Clone, Debug)]
enum Step {
    /// An endpoint, a block of the prompt, and the tier that it is in from now on.
    Set(u32, u64, Option<u8>),
    /// An endpoint is about to hold so many leading blocks.
    Speculate(u32, u64),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let tier = prop_oneof![3 => Just(Some(0)), 1 => (1..4u8).prop_map(Some), 2 => Just(None)];
    let step = prop_oneof![
        8 => (0..70u32, 0..12u64, tier).prop_map(|(name, block, tier)| Step::Set(name, block, tier)),
        2 => (0..70u32, 1..12u64).prop_map(|(name, blocks)| Step::Speculate(name, blocks)),
        1 => (1..5u64).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..400)
}

fn blocks(hashes: impl IntoIterator<Item = u64>) -> Arc<Blocks> {
    // Spread, as hashes are.
    let spread: Vec<u64> =
        hashes.into_iter().map(|hash| (hash + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    Arc::new(Blocks::from_prompts([spread]))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn engine_index_matches_reference_model(steps in steps(), ms in 1..9u64) {
        let pool = Pool::of(0..70);
        let index = EngineIndex::new();
        let weights = TierWeights::default().with(1, 0.8).with(2, 0.5);
        let prompt = blocks(0..12);
        let mut now_ms = 0;
        let mut reported: BTreeMap<(u32, u64), u8> = BTreeMap::new();
        let mut speculative: BTreeMap<(u32, u64), u64> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Set(name, block, tier) => {
                    index.set(pool.endpoint(name).unwrap().slot(), prompt.hashes()[block as usize], tier);
                    speculative.remove(&(name, block));
                    match tier {
                        Some(tier) => reported.insert((name, block), tier),
                        None => reported.remove(&(name, block)),
                    };
                }
                Step::Speculate(name, count) => {
                    index.speculate(pool.endpoint(name).unwrap(), &blocks(0..count), now_ms, now_ms + ms);
                    speculative.retain(|_, until| *until > now_ms);
                    for block in 0..count {
                        let until = speculative.entry((name, block)).or_default();
                        *until = (now_ms + ms).max(*until);
                    }
                }
                Step::Wait(ms) => {
                    now_ms += ms;
                    index.expire(now_ms);
                    speculative.retain(|_, until| *until > now_ms);
                }
            }
        }
        prop_assert_eq!(index.speculative_blocks(), speculative.len());
        let mut matched = Vec::new();
        index.find(&prompt, pool.snapshot.all().view(), &weights, &mut matched);
        for (endpoint, found) in pool.snapshot.endpoints().iter().zip(&matched) {
            let name: u32 = endpoint.name().parse().unwrap();
            let held = (0..12).map_while(|block| {
                let tier = reported.get(&(name, block)).map(|tier| weights.of(*tier));
                tier.or_else(|| speculative.contains_key(&(name, block)).then_some(1.0))
            });
            let expected = held.fold(EngineMatch::default(), |sum, weight| EngineMatch {
                blocks: sum.blocks + 1,
                weighted: sum.weighted + weight,
            });
            prop_assert_eq!(found.blocks, expected.blocks, "{}", name);
            prop_assert!((found.weighted - expected.weighted).abs() < 1e-9, "{}", name);
        }
    }
}

#[test]
fn matches_of_prompts_are_summed_over_candidates() {
    let pool = Pool::of(0..3);
    let index = EngineIndex::new();
    let slot = |name| pool.endpoint(name).unwrap().slot();
    for (name, hash) in [(0, 1), (0, 2), (0, 9), (1, 1), (2, 1)] {
        index.set(slot(name), hash, Some(0));
    }
    let prompts = Blocks::from_prompts([vec![1, 2, 3], vec![9], vec![8, 1]]);
    let mut matched = Vec::new();
    index.find(&prompts, pool.snapshot.all().narrowed(&[0, 1]).view(), &TierWeights::default(), &mut matched);
    assert_eq!(matched.iter().map(|found| found.blocks).collect::<Vec<_>>(), [3, 1, 0]);
}

#[test]
fn removed_block_is_no_longer_speculative() {
    let pool = Pool::of(0..1);
    let index = EngineIndex::new();
    let endpoint = pool.endpoint(0).unwrap();
    index.set(endpoint.slot(), 1, Some(0));
    index.speculate(endpoint, &Arc::new(Blocks::from_prompts([vec![1, 2]])), 0, 10);
    index.set(endpoint.slot(), 1, None);
    let mut matched = Vec::new();
    index.find(
        &Blocks::from_prompts([vec![1]]),
        pool.snapshot.all().view(),
        &TierWeights::default(),
        &mut matched,
    );
    assert_eq!(matched[0].blocks, 0);
    assert_eq!(index.speculative_blocks(), 1, "the other may still come");
}

#[test]
fn speculative_blocks_are_bounded() {
    let pool = Pool::of(0..1);
    let index = EngineIndex::new();
    let endpoint = pool.endpoint(0).unwrap();
    let most = Speculative::MAX_BLOCKS as u64;
    index.speculate(endpoint, &blocks(0..most), 0, 10);
    assert_eq!(index.speculative_blocks() as u64, most);
    index.speculate(endpoint, &blocks([most]), 5, 15);
    assert_eq!(index.speculative_blocks() as u64, most, "no room");
    index.speculate(endpoint, &blocks([most]), 10, 20);
    assert_eq!(index.speculative_blocks(), 1, "the first are over");
    index.expire(20);
    assert_eq!(index.speculative_blocks(), 0);
}

#[test]
fn repeated_speculation_takes_no_more_memory() {
    let pool = Pool::of(0..2);
    let index = EngineIndex::new();
    let prompt = || blocks(0..4096);
    let speculate =
        |name, now_ms| index.speculate(pool.endpoint(name).unwrap(), &prompt(), now_ms, now_ms + 10);
    speculate(0, 0);
    let once = index.bytes();
    (0..300).for_each(|_| speculate(0, 1));
    assert!(index.bytes() < once + once / 8, "{} and {once} bytes", index.bytes());
    index.expire(10);
    assert_eq!(index.speculative_blocks(), 4096, "the last time counts");
    // Requests that are no longer than each other share all blocks but the last.
    (0..300).for_each(|end| {
        let longer = blocks((0..4095).chain([20_000 + end]));
        index.speculate(pool.endpoint(1).unwrap(), &longer, 1, 20);
    });
    let queued = Speculative::MAX_QUEUED * size_of::<u64>();
    assert!(index.bytes() < 4 * once + queued, "{} bytes", index.bytes());
    // What the engine reports is forgotten with its request.
    prompt().hashes().iter().for_each(|hash| index.set(pool.endpoint(0).unwrap().slot(), *hash, Some(0)));
    index.expire(20);
    assert_eq!(index.speculative_blocks(), 0);
    speculate(1, 20);
    assert_eq!(index.speculative_blocks(), 4096);
}

#[test]
fn a_status_is_kept_by_slot() {
    let pool = Pool::of(0..3);
    let index = EngineIndex::new();
    assert_eq!(index.status(2), EngineStatus::Unknown);
    index.set_status(pool.endpoint(2).unwrap().slot(), EngineStatus::Partial);
    index.set_status(pool.endpoint(1).unwrap().slot(), EngineStatus::Complete);
    let statuses: BTreeSet<_> = (0..4).map(|slot| format!("{slot} {:?}", index.status(slot))).collect();
    assert_eq!(statuses, ["0 Unknown", "1 Complete", "2 Partial", "3 Unknown"].map(str::to_owned).into());
}

#[test]
fn removed_blocks_free_their_memory() {
    let pool = Pool::of(0..2);
    let index = EngineIndex::new();
    let all = blocks(0..50_000);
    for hash in all.hashes() {
        index.set(pool.endpoint(0).unwrap().slot(), *hash, Some(0));
    }
    let full = index.bytes();
    assert!((500_000..1_600_000).contains(&full), "{full} bytes");
    for hash in all.hashes() {
        index.set(pool.endpoint(0).unwrap().slot(), *hash, None);
    }
    assert!(index.bytes() < full / 4, "{} bytes", index.bytes());
}

#[test]
fn speculative_blocks_are_not_reported_as_held() {
    let (pool, index, prompt) = (Pool::of(0..70), EngineIndex::new(), blocks(0..12));
    let slot = |name: u32| pool.endpoint(name).unwrap().slot();
    for (name, count) in [(1, 5), (66, 12)] {
        prompt.hashes()[..count].iter().enumerate().for_each(|(at, hash)| {
            index.set(slot(name), *hash, Some(u8::from(at % 2 == 1)));
        });
    }
    index.speculate(pool.endpoint(1).unwrap(), &prompt, 0, 10);
    let reported = [0, 1, 66].map(|name| index.reported(slot(name), prompt.hashes()));
    assert_eq!(reported, [0, 5, 12]);
}

#[test]
fn batched_changes_equal_single_ones() {
    let (pool, index, prompt) = (Pool::of(0..3), EngineIndex::new(), blocks(0..40));
    let slot = |name: u32| &**pool.endpoint(name).unwrap().slot();
    let all = |tier| prompt.hashes().iter().map(move |hash| (slot(1), *hash, tier)).collect::<Vec<_>>();
    index.set_all(&all(Some(0)));
    assert_eq!(index.reported(slot(1), prompt.hashes()), 40);
    // Into another tier, and one out of it again.
    let mut changes = all(Some(1));
    changes.push((slot(1), prompt.hashes()[7], None));
    changes.push((slot(2), prompt.hashes()[0], Some(0)));
    index.set_all(&changes);
    assert_eq!([1, 2].map(|name| index.reported(slot(name), &prompt.hashes()[..7])), [7, 1]);
    assert_eq!(index.reported(slot(1), &prompt.hashes()[7..8]), 0);
    index.set_all(&all(None));
    assert_eq!(index.reported(slot(1), prompt.hashes()), 0);
}
