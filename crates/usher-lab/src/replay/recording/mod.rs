//! Recordings of `usher serve --record` ([`usher_core::recording`]): what production decided and measured.
//!
//! 1. `read` takes lines, `collect` makes requests and endpoints of them, in the order of arrival, within `bounds`.
//! 2. `replayed` makes [`Arrival`](super::Arrival)s and servers of these, and the outcomes that were measured.
//! 3. [`fit`] finds the constants with which simulated engines take the times that were measured.

mod bounds;
mod collect;
mod error;
mod fit;
mod read;
mod recorded;
mod replayed;

pub use error::ReadError;
pub use fit::{Constants, Fit, Fixed, Slower, fit};
pub use recorded::{Member, Recorded, Recording};

#[cfg(test)]
mod fit_tests;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
