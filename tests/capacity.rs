//! Capacity from outside: policies and timelines, and what comes of them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the exception for tests does not reach their helpers"
)]

#[path = "capacity/compare.rs"]
mod compare;
#[path = "capacity/definitions.rs"]
mod definitions;
#[path = "capacity/docs.rs"]
mod docs;
#[path = "capacity/group.rs"]
mod group;
#[path = "capacity/growing.rs"]
mod growing;
#[path = "capacity/kthena.rs"]
mod kthena;
#[path = "capacity/missing.rs"]
mod missing;
#[path = "capacity/outage.rs"]
mod outage;
#[path = "capacity/policies.rs"]
mod policies;
#[path = "capacity/program.rs"]
mod program;
#[path = "capacity/properties.rs"]
mod properties;
#[path = "capacity/rules.rs"]
mod rules;
#[path = "capacity/serving.rs"]
mod serving;
#[path = "capacity/shares.rs"]
mod shares;
#[path = "capacity/size.rs"]
mod size;
#[path = "capacity/support.rs"]
mod support;
