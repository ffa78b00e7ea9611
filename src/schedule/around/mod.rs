//! Plugins around a decision, one file per kind.

mod served_verifier;

pub use served_verifier::ServedVerifier;
