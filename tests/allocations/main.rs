//! Tests of heap use: every allocation of the process is counted, so that each test measures in a
//! process of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the exception for tests does not reach their helpers"
)]

mod alone;
mod call_memory;
mod decide_allocations;
mod exchange_allocations;
mod prefix_memory;
mod tokenizer_memory;
#[path = "../support/vocabulary.rs"]
mod vocabulary;
