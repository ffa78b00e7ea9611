//! Settings: the notations of flags and files, and what `usher serve` was told.

pub mod settings;
pub mod units;
