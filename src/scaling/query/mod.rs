//! Numbers that no pod has: queries to a server with the query API of Prometheus.
//!
//! [`Asking`] asks every query that a policy names, in the background; a tick takes what [`Answers`] has.

mod response;
mod runner;
mod server;

pub use response::AnswerError;
pub use runner::{Answers, Asking};
pub use server::{QueryError, Server};
