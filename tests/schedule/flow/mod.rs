//! Requests that wait: a dispatcher with a gate, made from a configuration.

mod crowds;
mod eviction;
mod metrics;
mod pool;
mod threads;
mod waiting;
