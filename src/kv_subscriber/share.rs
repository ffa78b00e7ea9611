//! Memory for what engines hold.

use usher_core::memory::Budget;

/// Part of the bytes that indexes may take, in 108ths, for the blocks that engines hold: 76 bytes a block,
/// beside 32 of the index.
const SHARE: usize = 76;

/// Bytes that what engines hold may take.
pub(super) fn share(budget: &Budget) -> usize {
    let all = usize::try_from(budget.prefix_index()).unwrap_or(usize::MAX);
    all / 108 * SHARE
}

/// Bytes that what engines hold may take now, of a share: no more than it has where the budget is full. Others that fill
/// it leave it half.
pub(super) fn limit(share: usize, held: usize, has_room: bool) -> usize {
    if has_room { share } else { share.min(held.max(share / 2)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_budget_leaves_half_of_the_share() {
        for (held, has_room, expected) in
            [(10, true, 100), (10, false, 50), (70, false, 70), (130, false, 100)]
        {
            assert_eq!(limit(100, held, has_room), expected, "{held}");
        }
    }
}
