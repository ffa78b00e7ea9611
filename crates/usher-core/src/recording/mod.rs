//! Format of recordings: what `usher serve --record` writes, and `usher replay --recording` reads.
//!
//! A recording is lines of JSON, each an object with one key, its kind ([`Line`]). A [`Header`] comes first, and again
//! wherever a picker goes on in the same file: what follows it belongs to its run. Then come endpoints, as they join and
//! leave, and a line for each request once it has ended. Fields and kinds of lines may be added without a
//! new [`VERSION`]; readers ignore those that they don't know.
//!
//! Nothing of a prompt is in it. Blocks of prompts, flows and sessions are numbered in the order in which they are first
//! seen: equal numbers of one run are equal texts, and that is all that a number says.

mod header;
mod line;

pub use header::{Header, Probe, probe};
pub use line::{
    BlockRun, Ending, EndpointLine, EndpointLoad, Gone, Line, Outcome, Pick, ProfilePicks, Refusal,
    RequestLine,
};

/// Name of the format, in every header.
pub const FORMAT: &str = "usher-recording";

/// Version that this program writes, and the newest that it reads.
pub const VERSION: u32 = 1;

/// Tokens of a numbered block of a prompt, [four bytes](crate::request::estimate) each.
pub const BLOCK_TOKENS: u32 = 32;

/// Blocks of a request that are numbered; the rest of a longer prompt counts as its own.
pub const MAX_BLOCKS: usize = 8192;

/// Bytes of an endpoint's labels; more are left out.
pub const MAX_LABELS: usize = 16 << 10;

/// Longest line in bytes. Every line that is written is shorter; readers skip longer ones.
pub const MAX_LINE: usize = 1 << 20;
