//! Sources of endpoints. A source of discovery writes the membership into the
//! [`Store`](crate::endpoints::Store), Kubernetes also the
//! [`Rules`](crate::request::Rules), and touches nothing else.

pub mod file;
pub mod kubernetes;
pub mod params;
mod watch;

pub use watch::{FileDiscovery, FileError};
