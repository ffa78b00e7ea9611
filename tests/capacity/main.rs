//! Capacity from outside: policies and timelines, and what comes of them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the exception for tests does not reach their helpers"
)]

mod compare;
mod definitions;
mod docs;
mod group;
mod growing;
mod kthena;
mod leaving;
mod missing;
mod outage;
mod policies;
mod program;
mod properties;
mod rules;
mod serving;
mod shares;
mod size;
mod support;
