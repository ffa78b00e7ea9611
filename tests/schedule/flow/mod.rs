//! Requests that wait: a dispatcher with a gate, made from a configuration.

mod crowds;
mod eviction;
#[path = "../../support/lines.rs"]
mod lines;
mod metrics;
mod pool;
mod threads;
mod waiting;
