//! How long a request would wait for its first token at each endpoint, in seconds:
//!
//! ```text
//! ttft(e) = (backlog(e) + uncached(request, e)) / rate(e) + slot_wait(e)
//! ```
//!
//! The backlog is the part of the prompts sent there that is yet to be computed,
//! the rate is learned from first tokens, and the wait for a slot from how long
//! requests hold one. A [`Model`] keeps what is booked and learned;
//! `expected-ttft-scorer` and the joint choice of a pair read it.

mod backlog;
mod booking;
mod model;
mod rate;
mod running;

pub use backlog::Backlog;
pub use booking::{Booked, Work};
pub use model::{Model, Table};
pub(in crate::schedule) use running::running;
