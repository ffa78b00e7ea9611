//! Capacity policies in a running server: gathers live state for [`capacity`](crate::capacity), and publishes
//! its plans.
//!
//! ```text
//! policy file | objects ─▶ groups ─▶ driver ─▶ capacity::tick ─▶ plan_store ─▶ metrics, pages, KEDA, statuses
//!           endpoints, demand ─▶ gather ┘
//!                     queries ──────────┘
//! ```
//!
//! Policies come from a file, or from objects of the API server (`objects/`), whose statuses are written. The
//! [`Driver`] is the only writer of the [`PlanStore`]; metrics, pages and KEDA read it.

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
