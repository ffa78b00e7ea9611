//! What all of Usher knows, at the bottom of its imports: the configuration file, what requests say,
//! endpoints and what they are doing, who holds which prefix, the memory budget, and metrics.

pub mod config;
pub mod endpoints;
pub mod memory;
pub mod metrics;
pub mod prefix;
pub mod random;
pub mod request;
