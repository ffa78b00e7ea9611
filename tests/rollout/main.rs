//! Capacity policies from outside. The order in which pods come up: a simulated cluster does what plans say, and
//! pods fail.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the exception for tests does not reach their helpers"
)]

mod capacity;
mod cluster;
mod docs;
mod failures;
mod group;
mod placing;
mod policies;
mod room;
mod skew;
mod states;
mod updates;
