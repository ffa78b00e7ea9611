//! Memory for what engines hold.

use usher_core::memory::IndexShare;

/// Bytes of a block: of what an engine holds, and of the index beside it.
const HELD: usize = 76;
const INDEXED: usize = 32;
/// Weight of the index among others.
pub(super) const WEIGHT: u32 = (HELD + INDEXED) as u32;

/// Bytes that what engines hold may take.
pub(super) fn share(of: &IndexShare) -> usize {
    usize::try_from(of.bytes()).unwrap_or(usize::MAX) / (HELD + INDEXED) * HELD
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
