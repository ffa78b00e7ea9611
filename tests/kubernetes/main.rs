//! The `usher` program before a real API server, from outside: what its objects say is
//! what requests get.
//!
//! No controllers and no kubelets run there: the tests say what they would.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers of a test may panic like the test"
)]
#![allow(clippy::print_stdout, reason = "where there is no API server, a test says that it tests nothing")]

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;

#[path = "../shell/doctor/program.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod program;

mod actuator;
mod capacity;
mod chart;
mod chart_rights;
mod chart_store;
mod doctor;
mod engines;
mod examples;
mod kustomize;
mod leader;
mod manifests;
mod members;
mod metrics;
mod monitoring;
mod objects;
mod outage;
mod picker;
mod policies;
mod policies_served;
mod relay;
mod rights;
mod rollout;
mod rules;
mod scale;
mod selectors;
mod server;
mod sharing;
mod sidecar;
mod tools;
mod upgrade;
