//! Where endpoints come from.

pub mod params;
