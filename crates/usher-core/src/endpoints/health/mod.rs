//! Health of endpoints: successes, failures, and attempts after an ejection.
//!
//! A pod that fails fast looks idle and draws every request. One that fails several times
//! in a row is ejected: it gets no more than one real request at a time as a probe, until
//! enough of them succeed ([`EjectionState`]). Requests and scrapes report to an endpoint's
//! [`Health`]; the [`OutlierDetector`] counts who is ejected, so that a decision sees with one load
//! that nobody is.

mod awaited;
mod detector;
mod ejection;
mod endpoint;
mod first_byte;
mod pending;
mod probe;
mod sweep;
mod verdict;

pub use awaited::AwaitedByte;
pub use detector::{OutlierDetector, OutlierMetrics};
pub use ejection::{Change, Condition, Ejection, EjectionState, Failure, HealthParams};
pub use endpoint::Health;
pub use first_byte::RequestClass;
pub use probe::Probe;
pub use sweep::SWEEP_INTERVAL;
pub use verdict::{ResponseStatus, Verdict};

#[cfg(test)]
mod first_byte_tests;
#[cfg(test)]
mod tests;
