//! Texts that several prompts share.

use crate::replay::workload::Piece;
use usher_core::random::mix;

/// Seeds of shared texts begin here; those of own texts are drawn.
pub(super) const SHARED: u64 = 1 << 32;

/// The shared text of this number.
pub(super) fn shared(seed: u64, number: u64, tokens: u32) -> Piece {
    Piece { seed: mix(seed) ^ mix(SHARED + number), tokens }
}
