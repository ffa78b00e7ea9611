//! Simulated servers from outside: over sockets, with a client that is not theirs.

#![allow(clippy::unwrap_used, reason = "the exception for tests does not reach their helpers")]

mod command;
mod disagg;
mod faults;
mod support;
mod traffic;
