//! Candidates, decision and booking of a request.

mod attempts;
mod concurrent;
mod conditional;
mod decider;
mod dispatcher;
mod gate;
mod legacy_admission;
mod outliers;
mod policy;
pub mod queue;
mod routed;
mod spread;

pub use attempts::Attempts;
pub use dispatcher::{Dispatcher, Entered};
pub use gate::task::{keep_bands, run_gate};
pub use gate::{Demand, DemandOf, Gate, GateCollector, GateMetrics, GateStatus, Permit};
pub use policy::{ActivePolicy, Policy};
pub use queue::BandLoad;
pub use routed::Routed;
pub use usher_core::request::{Code, Rejection};
