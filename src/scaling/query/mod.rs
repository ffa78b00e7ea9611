//! Numbers that no pod has: queries to a server with the query API of Prometheus.
//!
//! [`QueryRunner`] asks every query that a policy names, in the background; a tick takes what [`QueryResults`] has.

mod response;
mod runner;
mod server;

pub use response::ResponseError;
pub use runner::{QueryResults, QueryRunner};
pub use server::{QueryError, Server};
