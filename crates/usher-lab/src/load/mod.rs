//! The load generator: requests to an ext_proc server, as a gateway makes them, or to a
//! gateway.
//!
//! [`run`] goes from settings to numbers:
//!
//! 1. `source` gives requests that `prompt` made ready to be sent, from `text` or a
//!    `trace`.
//! 2. `run` begins them: so many at a time, or when `schedule` says that they are due.
//! 3. A peer gets each: an ext_proc server (`direct`, over a `link`, as an `exchange` of
//!    `message`s and `reply`s, with the response of a `script`), or a `gateway`.
//! 4. `record` counts.
//!
//! [`decide`] asks a server one request after the other and keeps what it decides.
//!
//! All on one thread: the generator shares the machine with what it measures, and must
//! cost less. All times count from when a request was due, and how late the generator
//! itself was is part of the numbers.

mod batch;
pub mod body;
pub mod client;
pub mod decide;
mod decision;
mod direct;
mod error;
mod exchange;
mod failure;
mod gateway;
mod histogram;
mod link;
pub mod process;
mod prompt;
mod record;
mod run;
mod schedule;
mod script;
pub mod settings;
mod source;
pub(crate) mod text;
pub mod trace;

pub use error::LoadError;
pub use failure::Failure;
pub use histogram::Histogram;
pub use record::Numbers;
pub use run::{Outcome, RunProgress, run};
