//! Metrics outside of pods: Prometheus queries.
//!
//! [`QueryRunner`] runs every query of a policy in the background; a tick reads its [`QueryResults`].

mod response;
mod runner;
mod server;

pub use response::ResponseError;
pub use runner::{QueryResults, QueryRunner};
pub use server::{QueryError, Server};
