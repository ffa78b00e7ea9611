//! Certificates: those that ports show, those that clients are checked with, and whom a client's
//! is for.

mod cert;
mod clients;
mod reload;
pub mod subject;

pub use cert::{CertError, Certificate};
pub use clients::ClientAuthorities;
pub use reload::RELOAD_INTERVAL;
pub(crate) use reload::{Seen, Watch, keep_fresh};
