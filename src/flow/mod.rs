//! From a request to its destination: who may answer it, who of them does, and
//! what that books.

mod attempts;
mod conditional;
mod dispatcher;
mod legacy_admission;
pub mod queue;
mod rejection;
mod routed;

pub use attempts::Attempts;
pub use dispatcher::{Dispatcher, Policy};
pub use rejection::{Code, NO_ENDPOINTS, Rejection};
pub use routed::Routed;
