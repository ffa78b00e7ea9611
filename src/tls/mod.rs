//! Certificates: those that ports show, those that clients are checked with, whom a client's is
//! for, and servers that any will do for.

mod any;
mod cert;
mod clients;
mod reload;
pub mod subject;

pub(crate) use any::AnyCertificate;
pub use cert::{CertError, Certificate};
pub use clients::ClientAuthorities;
pub use reload::RELOAD_INTERVAL;
pub(crate) use reload::keep_fresh;
