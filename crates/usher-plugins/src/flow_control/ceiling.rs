//! Ceilings of bands, and where a band stands among all, which they depend on.

/// Position of a band among all bands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandPosition {
    /// Number of bands with a higher priority.
    pub rank: usize,
    /// Number of bands; at least 1.
    pub bands: usize,
    /// Priority of the band.
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
