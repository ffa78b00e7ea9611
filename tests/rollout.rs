//! The order in which pods come up, from outside: a simulated cluster does what plans say, and pods fail.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the exception for tests does not reach their helpers"
)]

#[path = "rollout/cluster.rs"]
mod cluster;
#[path = "rollout/docs.rs"]
mod docs;
#[path = "rollout/failures.rs"]
mod failures;
#[path = "rollout/policies.rs"]
mod policies;
#[path = "rollout/room.rs"]
mod room;
#[path = "rollout/states.rs"]
mod states;
#[path = "rollout/updates.rs"]
mod updates;
