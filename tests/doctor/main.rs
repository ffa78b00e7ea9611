//! `usher doctor` from outside: a real Envoy with good and with broken configurations, and what
//! the doctor finds.

#![allow(clippy::unwrap_used, clippy::panic, reason = "the helpers of a test may panic like the test")]

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;

mod configurations;
mod faults;
mod imitations;
mod pages;
mod program;
mod stack;
