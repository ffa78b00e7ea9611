//! Recordings of `usher serve --record` ([`usher_core::recording`]): what production decided and measured.
//!
//! 1. `read` takes lines, `collect` makes requests and endpoints of them, in the order of arrival.
//! 2. `replayed` makes [`Arrival`](super::Arrival)s and servers of these, and the outcomes that were measured.
//! 3. [`fit`] finds the constants with which simulated engines take the times that were measured.

mod collect;
mod fit;
mod read;
mod replayed;

pub use collect::{Member, Recorded, Recording};
pub use fit::{Constants, Fit, Fixed, Slower, fit};
pub use read::ReadError;

#[cfg(test)]
mod tests;
