//! `usher doctor`: does a gateway really ask its picker, and can the picker do its work?
//!
//! 1. [`gather()`] looks at what it can reach: the gateway with probe requests, Envoy's admin
//!    interface, the picker's ports, the model servers' metrics, the API server.
//! 2. What it saw, or why it saw nothing, is an [`Observations`].
//! 3. Each check in [`check`] is a function of these, without I/O: [`examine`] runs them all.
//! 4. A [`Report`] has a line per check, and what was found. Every finding has a [`Rule`], which
//!    says why it matters and how to fix it. [`causes`] has which of them follow from others.
//!
//! Nothing that a response holds is printed as it is: configurations and headers may carry
//! credentials.

pub mod causes;
pub mod check;
pub mod envoy;
pub mod finding;
mod gather;
mod json;
pub mod rules;
pub mod seen;

pub use causes::Root;
pub use check::{GROUPS, examine};
pub use finding::{Finding, Outcome, Report, Severity, Status};
pub(crate) use gather::policies_of_file;
pub use gather::{HttpClient, LocalPorts, Plan, Pods, PoolPlan, gather};
pub use rules::Rule;
pub use seen::{Observations, Seen};
