//! Scraping and asking servers that speak raw HTTP: every kind of page, source and misbehaviour.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "the helpers of a test may panic")]

#[path = "../support/lines.rs"]
mod lines;
mod odd;
mod pool;
mod queries;
mod server;
mod sources;
mod spread;
mod tls;
