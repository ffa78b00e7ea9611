//! Simulated vLLM servers, for the demo, the tests and the benchmarks.
//!
//! The [`Engine`] is a state machine that knows neither sockets nor a clock, so a
//! replay runs it in virtual time.

mod config;
mod kv;
mod model;
mod stats;

pub use config::{ConfigError, EngineConfig, SimConfig};
pub use kv::{KvCache, Lease, block_hashes};
pub use model::{Engine, EngineState, Finish, Output, Rejected, SimRequest};
pub use stats::{Histogram, Stats};

/// One draw of SplitMix64 (Steele, Lea, Flood 2014): the same number for the same
/// input, on every machine. All randomness of the simulator comes from here.
pub(crate) fn mix(input: u64) -> u64 {
    let mut z = input.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
