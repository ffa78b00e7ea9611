//! What model servers say about themselves.

pub mod params;
mod selector;
