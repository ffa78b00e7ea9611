//! The order in which blocks are evicted.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::key::Key;
use super::tests::{NAMES, Pool, check, name, prompt};
use super::*;

/// Blocks of `prompt` that an endpoint holds, and how many of them are its first ones.
fn held_and_matched(index: &PrefixIndex, endpoint: &Endpoint, prompt: &[u64]) -> (usize, usize) {
    let holder = index.holders.get(endpoint.slot());
    let held: BTreeSet<Key> = holder
        .iter()
        .flat_map(|holder| holder.lock().recent.iter().map(|(key, _)| key).collect::<Vec<_>>())
        .collect();
    let holds = |hash: &&u64| held.contains(&Key::of(**hash));
    (prompt.iter().filter(holds).count(), prompt.iter().take_while(holds).count())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
    /// Prompts are paths through a tree, as chained hashes are: whatever is evicted, the next
    /// block that goes has no block behind it that stays.
    #[test]
    fn held_blocks_of_a_prompt_are_its_head(
        adds in prop::collection::vec((name(), prompt(), 0..20usize), 0..80),
        entries in prop_oneof![10..60usize, Just(1000)],
    ) {
        let pool = Pool::of(NAMES);
        let index = PrefixIndex::new(Limits { entries, ..Limits::default() });
        for (number, (name, prompt, capacity)) in adds.iter().enumerate() {
            let endpoint = pool.endpoint(*name).unwrap();
            // The ends of prompts that share a beginning differ.
            let chained = |prompt: &[u64]| -> Vec<u64> {
                prompt.iter().scan(1u64, |before, block| {
                    *before = (*before ^ block).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
                    Some(*before)
                }).collect()
            };
            let added = chained(prompt);
            index.add(endpoint, &added, *capacity);
            for (_, earlier, _) in &adds[..=number] {
                for endpoint in pool.snapshot.endpoints() {
                    let (held, matched) = held_and_matched(&index, endpoint, &chained(earlier));
                    prop_assert_eq!(held, matched);
                }
            }
            let (held, _) = held_and_matched(&index, endpoint, &added);
            if index.entries() < entries {
                prop_assert_eq!(held, added.len().min(*capacity), "the head is kept, as far as it fits");
            }
        }
        check(&index);
    }
}

#[test]
fn the_tail_of_a_prompt_is_evicted_before_its_head() {
    let pool = Pool::of([1]);
    let endpoint = &pool.snapshot.endpoints()[0];
    let index = PrefixIndex::new(Limits::default());
    let prompt =
        |number: u64, blocks: u64| (0..blocks).map(|block| number << 32 | block).collect::<Vec<u64>>();
    let (long, other) = (prompt(1, 1000), prompt(2, 1));
    index.add(endpoint, &long, 1000);
    index.add(endpoint, &other, 1000);
    assert_eq!(held_and_matched(&index, endpoint, &long), (999, 999));
    let longer = prompt(3, 1500);
    index.add(endpoint, &longer, 1000);
    assert_eq!(held_and_matched(&index, endpoint, &longer), (1000, 1000));
    assert_eq!(index.entries(), 1000);
}
