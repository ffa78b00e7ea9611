//! Weights of tiers of memory.

/// Tiers at most.
pub(super) const TIERS: usize = 16;

/// Weight of a block by the tier that it is in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierWeights([f64; TIERS]);

impl TierWeights {
    /// Weight of a tier that none is given for.
    pub const FULL: f64 = 1.0;

    /// Gives a tier a weight.
    #[must_use]
    pub fn with(mut self, tier: u8, weight: f64) -> Self {
        if let Some(slot) = self.0.get_mut(usize::from(tier)) {
            *slot = weight;
        }
        self
    }

    /// Weight of a tier.
    pub fn of(&self, tier: u8) -> f64 {
        self.0.get(usize::from(tier)).copied().unwrap_or(Self::FULL)
    }
}

impl Default for TierWeights {
    /// All tiers count in full.
    fn default() -> Self {
        Self([Self::FULL; TIERS])
    }
}
