//! The gateway's side: messages as a gateway writes them, replies as it reads them, and its TLS.

mod any_certificate;
pub mod message;
pub mod reply;
mod tls;

pub use any_certificate::AnyCertificate;
pub use tls::connector;
