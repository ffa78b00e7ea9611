//! Simulated servers from outside: over sockets, with a client that is not theirs.

mod command;
mod disagg;
mod faults;
mod kv_events;
mod support;
mod traffic;
