//! Prediction of whether an engine stores full blocks of a prompt and publishes an event.

use usher_core::prefix::Blocks;

/// Returns `true` if full blocks of the engine, of `engine` tokens each, are missing for certain. `held`:
/// leading blocks that it holds, over all prompts, of `ours` tokens each.
pub(super) fn lacks_blocks(blocks: &Blocks, held: u32, ours: u32, engine: u32) -> bool {
    let (ours, engine) = (u64::from(ours.max(1)), u64::from(engine.max(1)));
    let full = |prompt: &[u64]| prompt.len() as u64 * ours / engine;
    let needed: u64 = blocks.prompts().map(full).sum();
    // A block of the engine that ends within one of ours may be held, and doesn't show.
    let hidden = if engine.is_multiple_of(ours) { 0 } else { blocks.prompts().count() as u64 * (ours - 1) };
    needed > (u64::from(held) * ours + hidden) / engine
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts(lens: &[u64]) -> Blocks {
        Blocks::from_prompts(lens.iter().map(|len| (0..*len).collect::<Vec<u64>>()))
    }

    #[test]
    fn only_full_blocks_of_the_engine_are_missing() {
        // Tokens of the engine's blocks; full blocks of 16 tokens of prompts, and how many are held.
        let table: [(u32, &[u64], u32, bool); 17] = [
            (16, &[0], 0, false),
            (16, &[1], 0, true),
            (16, &[7], 7, false),
            (16, &[8], 7, true),
            (16, &[3, 4], 6, true),
            (16, &[3, 4], 7, false),
            // A hybrid model.
            (528, &[25], 0, false),
            (528, &[33], 0, true),
            (528, &[65], 33, false),
            (528, &[66], 33, true),
            (528, &[20, 20], 0, false),
            (64, &[7], 4, false),
            (64, &[8], 4, true),
            // A second block ends with token 48, a third with token 72.
            (24, &[2], 1, false),
            (24, &[4], 1, true),
            (1, &[2], 1, true),
            (1, &[2], 2, false),
        ];
        for (engine, lens, held, expected) in table {
            assert_eq!(
                lacks_blocks(&prompts(lens), held, 16, engine),
                expected,
                "{engine}: {held} of {lens:?}"
            );
        }
    }
}
