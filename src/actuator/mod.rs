//! Applies capacity plans in Kubernetes.
//!
//! ```text
//! scale, pods, nodes ─▶ observe ─▶ (a tick) ─▶ plan ─▶ act ─▶ replicas, gates, partitions, events
//! ```
//!
//! Only the leader applies plans, only for policies with `mode: Apply`, and only on fresh observations.
//! Replicas are written through the `scale` subresource of any kind that has one. Decisions are without I/O:
//! whether another writer is active ([`foreign`]), which gates open ([`gates`]), and free capacity in domains
//! ([`room`]).

mod act;
mod affinity;
mod beside;
mod closed;
mod condition;
mod domain_counts;
mod drain;
pub(crate) mod event;
mod event_recorder;
#[cfg(test)]
pub(crate) mod fake;
pub mod foreign;
mod found;
mod fresh;
pub mod gates;
pub mod held_back;
#[cfg(test)]
mod held_update_tests;
mod keep;
mod kinds;
mod leaving;
mod look;
pub mod need;
pub mod node;
mod observe;
#[cfg(test)]
mod observe_tests;
mod ordinals;
#[cfg(test)]
mod ordinals_tests;
mod other_scaler;
mod owner_refs;
mod owners;
mod pair;
#[cfg(test)]
mod pair_tests;
mod part;
mod pause;
pub mod pods;
pub mod pools;
mod quantity;
#[cfg(test)]
mod refused_tests;
pub mod room;
mod scaler;
mod selector;
mod shrink;
mod state;
mod subject;
mod target;
#[cfg(test)]
mod tests;
mod trim;
mod unhold;
#[cfg(test)]
mod untargeted_tests;
mod watch;
mod write;

pub use act::Outcome;
pub use drain::{PodLoad, is_marked, marking};
pub use found::ObservedPod;
pub use look::{Look, Seen};
pub use observe::Observed;
pub use owners::{Owner, Owners};
pub use part::Part;
pub use scaler::has_owner;
pub use state::Actuator;
pub use write::Write;

/// Scheduling gate at which pods wait for their step.
pub const GATE: &str = "usher.dev/rollout";

/// Annotation with the domain that a pod was sent to, as `layer=domain`.
pub const SENT: &str = "usher.dev/domain";
