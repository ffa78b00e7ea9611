//! Data producers, one file per kind: what is learned about a request before it is
//! scheduled, and what is booked once it is.

mod inflight_load;
mod session_id;
mod tokens;

pub use inflight_load::{InflightLoadParams, InflightLoadProducer};
pub use session_id::{SessionIdParams, SessionIdProducer};
pub use tokens::{TokenParams, TokenProducer};
