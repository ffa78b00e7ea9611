//! Checks of untrusted bytes, each a function of one input.
//!
//! The fuzz targets and the test `fuzz_corpus` call the same functions. A property
//! that does not hold is a panic. Most compare Usher's incremental code with code
//! that reads the whole input at once and isn't ours (`serde_json`, `envoy-types`,
//! `prost`, `prometheus-parse`, `rmpv`, `tokenizers`), and every input is fed in several splits.
//!
//! Inputs are text where that is possible: the first line chooses what is done
//! (see [`input`]), the rest is the data.

mod bodies;
mod chat;
mod connection;
mod estimate;
mod exchange;
mod exposition;
mod first_token;
mod found;
mod frames;
mod input;
mod kv_events;
mod page;
mod pool;
#[path = "../../tests/support/protos.rs"]
mod protos;
mod recording;
mod reference;
mod request_body;
mod script;
mod tree;
mod usage;
mod wire;
mod zmtp;

pub use chat::chat;
pub use connection::connection;
pub use exchange::exchange;
pub use exposition::exposition;
pub use kv_events::kv_events;
pub use page::page;
pub use recording::recording;
pub use request_body::request_body;
pub use usage::{usage_json, usage_sse};
pub use wire::wire;
pub use zmtp::zmtp;
