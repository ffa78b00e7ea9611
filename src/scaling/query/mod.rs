//! Numbers that no pod has: queries to a server with the query API of Prometheus.
//!
//! [`Asking`] asks every query that a policy names, in the background; a tick takes what [`Answers`] has.

mod answer;
mod asking;
mod server;

pub use answer::AnswerError;
pub use asking::{Answers, Asking};
pub use server::{QueryError, Server};
