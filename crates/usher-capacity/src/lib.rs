//! Capacity: how many pods a group should have, and in which ratio its roles stand.
//!
//! The core does no I/O and owns no clock: [`tick`] takes what there is, a [`Policy`] and what it
//! remembers, and says what there should be, with the reason of every number.
//!
//! ```text
//! metrics ─▶ size ─▶ behavior ─▶ cost ─▶ coordinate ─▶ ratio ─▶ rollout ─▶ plan   (a policy with `total`)
//! numbers ─▶ rules ──────────────────────────────────▶ ratio ─▶ rollout ─▶ plan   (a policy with `rules`)
//! ```
//!
//! Fields and meanings are those of kthena's AutoscalingPolicy (volcano-sh/kthena) and of Backend.AI's scaling
//! rules, their defects aside (docs/guide/capacity.md). Bounds go before the ratio, the ratio before the
//! group's size, and that before the preferred bands.

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
