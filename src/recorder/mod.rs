//! Writes decisions and outcomes of requests into a file, from which `usher replay` replays them
//! ([`usher_core::recording`] is the format).
//!
//! A thread that decides hands a [`Decided`] to the [`Recorder`], and an [`Ended`] when the request has ended. Both go
//! through a bounded queue to a thread of its own (`writer`), which numbers blocks and endpoints, joins the two to a
//! line and writes it. A queue that is full, or a disk, drops lines and counts them; no request waits or fails for it.

mod file;
mod members;
mod message;
mod numbers;
mod output;
mod sink;
mod writer;

pub use file::{OpenError, Unusable};
pub use message::{Decided, Ended, Picked, ProfilePicked, Refused};
pub use sink::{Counts, Recorder, UnderWay};
pub use writer::{Settings, Writer};

#[cfg(test)]
mod tests;
