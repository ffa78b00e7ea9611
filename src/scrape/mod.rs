//! What model servers say about themselves, read in the background.

pub mod exposition;
mod labels;
pub mod params;
mod selector;

pub use labels::{LabelValue, Labels};
