//! Applies capacity plans in Kubernetes.
//!
//! ```text
//! scale, pods, nodes ─▶ observe ─▶ (a tick) ─▶ plan ─▶ apply ─▶ replicas, gates, partitions, events
//! ```
//!
//! Only the leader applies plans, only for policies with `mode: Apply`, and only on fresh observations.
//! Replicas are written through the `scale` subresource of any kind that has one. Decisions are without I/O:
//! whether another writer is active ([`foreign`]), which gates open ([`gates`]), and free capacity in domains
//! ([`room`]).

mod affinity;
mod apply;
mod cached_pods;
mod condition;
mod domain_counts;
mod drain;
pub(crate) mod event;
mod event_recorder;
#[cfg(test)]
pub(crate) mod fake;
mod fetch;
pub mod foreign;
mod foreign_growth;
pub mod gates;
pub mod held_back;
#[cfg(test)]
mod held_update_tests;
mod kinds;
mod leaving;
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
mod pause;
pub mod pods;
mod policy_actuator;
pub mod pools;
mod problem_subject;
mod quantity;
mod recheck;
#[cfg(test)]
mod refused_tests;
mod replacement_gates;
mod resumed_updates;
pub mod room;
mod scaler;
mod selector;
mod shrink;
mod state;
mod target;
#[cfg(test)]
mod tests;
mod trim;
mod unschedulable_domains;
#[cfg(test)]
mod untargeted_tests;
mod watch;
mod write;

pub use apply::Outcome;
pub use cached_pods::ObservedPod;
pub use drain::{PodLoad, is_marked, marking};
pub use fetch::{FetchRequest, Fetched};
pub use observe::Observed;
pub use owners::{Owner, Owners};
pub use policy_actuator::PolicyActuator;
pub use scaler::has_owner;
pub use state::Actuator;
pub use write::Write;

/// Scheduling gate at which pods wait for their step.
pub const GATE: &str = "usher.dev/rollout";

/// Annotation with the domain that a pod was sent to, as `layer=domain`.
pub const SENT: &str = "usher.dev/domain";
