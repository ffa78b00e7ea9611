//! Settings: the notations of flags and files.

pub mod units;
