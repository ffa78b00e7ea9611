//! Capacity policies in a running server: what the core of [`capacity`](crate::capacity) looks at is
//! gathered from live state, and what it says is shown to those who can act.
//!
//! ```text
//! policy file | objects ─▶ groups ─▶ driver ─▶ capacity::tick ─▶ plan_store ─▶ metrics, pages, KEDA, statuses
//!           endpoints, demand ─▶ gather ┘
//!                     queries ──────────┘
//! ```
//!
//! Policies are in a file, or objects of the API server (`objects/`), which also tell what became of them.
//! The [`Driver`] is the only writer of the [`PlanStore`]; outlets read it and wait for its changes.

mod driver;
pub mod file;
mod frozen;
mod gather;
mod groups;
pub mod keda;
mod metrics;
pub mod objects;
mod pages;
mod plan_store;
pub mod query;
pub mod release;
mod signal;

pub use driver::{Driver, Feed, Live};
pub use gather::{Freshness, Members, gather, gather_observed};
pub use groups::{Group, Groups, Sources, UNELECTED};
pub use metrics::{FAMILIES, ScalingMetrics};
pub use pages::{plans, plans_value, rules};
pub use plan_store::{Latest, PlanStore, Plans, PolicyEntry};
pub use signal::{Join, Signal};
