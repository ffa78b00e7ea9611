//! Capacity planning: desired pods of a group, and the ratio of its roles.
//!
//! No I/O and no clock: [`tick`] takes inputs, a [`Policy`] and its history, and returns a plan with the
//! reasons of each number.
//!
//! ```text
//! metrics ─▶ size ─▶ behavior ─▶ cost ─▶ coordinate ─▶ ratio ─▶ rollout ─▶ plan   (a policy with `total`)
//! numbers ─▶ rules ──────────────────────────────────▶ ratio ─▶ rollout ─▶ plan   (a policy with `rules`)
//! ```
//!
//! Fields and meanings are those of kthena's AutoscalingPolicy (volcano-sh/kthena) and of Backend.AI's
//! scaling rules, without their defects (docs/guide/capacity.md). Bounds take precedence over the ratio, the
//! ratio over the group's size, and that over the preferred bands.

pub mod amount;
pub mod behavior;
pub mod coordinate;
pub mod cost;
mod inputs;
pub mod legend;
pub mod plan;
pub mod policy;
pub mod ratio;
mod requested;
pub mod resource;
pub mod rollout;
pub mod rules;
pub mod share;
pub mod size;
mod tick;
pub mod timeline;
pub mod window;

pub use inputs::{Inputs, Pod, PodState, Values, Work};
pub use plan::{Condition, Plan, Reason, State};
pub use policy::Policy;
pub use requested::Requested;
pub use tick::{Change, Growth, History, Surge, tick};
