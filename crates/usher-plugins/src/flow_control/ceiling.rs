//! Ceilings of bands, and where a band stands among all, which they depend on.

/// Where a band stands among all bands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandPosition {
    /// How many bands have a higher priority.
    pub rank: usize,
    /// How many bands there are; at least 1.
    pub bands: usize,
    /// Its priority.
    pub priority: i32,
    /// The lowest priority of all.
    pub lowest: i32,
    /// The highest priority of all.
    pub highest: i32,
}

/// Up to where a band may fill the pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ceiling {
    /// While the saturation is below this.
    Below(f64),
    /// In one of so many milliseconds, and then a single request.
    OneIn(u64),
}
