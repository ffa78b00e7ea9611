//! Random events compared with the cache of the engine that they are about.

use proptest::prelude::*;

use crate::kv_events::testing::{Engine, Step};

use super::*;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => prop::collection::vec(0..3u8, 1..7).prop_map(Step::Compute),
        8 => (any::<usize>(), 0..2u8).prop_map(|(at, tier)| Step::Evict(at, tier)),
        3 => any::<usize>().prop_map(Step::Offload),
        1 => Just(Step::Clear),
    ];
    prop::collection::vec(step, 0..80)
}

proptest! {
    /// Holds for all block sizes.
    #[test]
    fn stored_blocks_match_the_engine(steps in steps(), size in 1..9usize, block_tokens in 1..9u16) {
        let mut engine = Engine::new(size, 0, true);
        let mut bench = Bench::of_tokens(block_tokens);
        bench.apply(&[("type", "AllBlocksCleared".into())]).unwrap();
        for step in &steps {
            let Some((_, payload)) = engine.step(step) else { continue };
            prop_assert_eq!(bench.payload(&payload), [Ok(())]);
            let held: BTreeMap<u64, u8> = bench.held.iter().map(|((_, key), tier)| (*key, tier.number())).collect();
            prop_assert_eq!(held, engine.keys(bench.model, usize::from(block_tokens)), "after {:?}", step);
        }
        prop_assert!(bench.summary().complete);
        let Bench { residency, source, held, .. } = &mut bench;
        residency.remove_source(*source, &mut |change| note(held, change));
        prop_assert!(held.is_empty());
        prop_assert_eq!(residency.blocks(), 0);
    }

    /// With little room, and in any order.
    #[test]
    fn blocks_stay_within_the_limit_in_any_event_order(
        steps in steps(),
        size in 1..9usize,
        block_tokens in 1..9u16,
        room in 0..40usize,
        swaps in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
    ) {
        let mut engine = Engine::new(size, 0, false);
        let mut bench = Bench::new(Settings {
            bytes: room * Settings::BYTES_PER_BLOCK,
            waiting_bytes: 1500,
            remembered: 4,
            block_tokens: NonZeroU16::new(block_tokens).unwrap(),
        });
        let mut messages: Vec<_> = steps.iter().filter_map(|step| engine.step(step)).collect();
        let pairs = messages.len().saturating_sub(1);
        for at in swaps.iter().filter(|_| pairs > 0).map(|at| at.index(pairs)) {
            messages.swap(at, at + 1);
        }
        for (_, payload) in messages {
            bench.payload(&payload);
            prop_assert!(bench.residency.blocks() <= room);
        }
        let summary = bench.summary();
        prop_assert!(summary.blocks <= room);
        let Bench { residency, source, held, .. } = &mut bench;
        residency.reset(*source, 1, true, &mut |change| note(held, change));
        prop_assert!(held.is_empty());
        prop_assert_eq!(residency.blocks(), 0);
    }
}
