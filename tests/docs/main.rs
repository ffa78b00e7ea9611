//! Consistency of the repository: its pages against the code, configurations that are shipped or
//! refused, the order of imports, and the corpora of the fuzzers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the exception for tests does not reach their helpers"
)]

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "shared with tests that need more of it")]
mod support;

mod command_lines;
mod config;
mod examples;
mod fuzz_corpus;
mod guide;
mod imports;
mod links;
mod log_fields;
mod migrate;
mod named_tests;
mod pages;
mod reference;
mod words;
