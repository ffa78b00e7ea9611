//! The scheduler from outside: scorers against tables and against an
//! independent implementation, pickers, profiles, handlers, records, metrics.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the exception for tests does not reach their helpers"
)]

mod attribute_sources;
mod attributes;
mod decisions;
mod producers;
mod scorers;
mod scorers_affinity;
mod scorers_load;
mod support;
mod topology;
