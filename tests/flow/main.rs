//! Requests that wait: a dispatcher with a gate, made from a configuration.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the exception for tests does not reach their helpers"
)]

mod crowds;
mod eviction;
#[path = "../support/lines.rs"]
mod lines;
mod metrics;
mod pool;
mod threads;
mod waiting;
