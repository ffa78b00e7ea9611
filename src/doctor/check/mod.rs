//! The checks, a file each: from what was seen to what is wrong with it.

mod breakers;
mod capacity;
mod crds;
mod endpoints;
mod envoy_admin;
mod exchange;
mod fail_mode;
mod kv_events;
mod path;
mod picker;
mod picker_metrics;
mod pod_metrics;
mod pool;
mod preconditions;
mod rights;
mod routes;
mod routing;
mod state_store;
mod timeouts;
mod tls;
mod versions;

use super::finding::{Outcome, Report};
use super::seen::Observations;

/// A check: its name, and what it says.
type Check = (&'static str, fn(&Observations) -> Outcome);

/// All checks, in the way of a request.
const ALL: [Check; 20] = [
    ("path", path::check),
    ("envoy-admin", envoy_admin::check),
    ("picker", picker::check),
    ("tls", tls::check),
    ("body-mode", exchange::check),
    ("timeouts", timeouts::check),
    ("fail-mode", fail_mode::check),
    ("circuit-breakers", breakers::check),
    ("destination", routing::check),
    ("picker-metrics", picker_metrics::check),
    ("state-store", state_store::check),
    ("pod-metrics", pod_metrics::check),
    ("endpoints", endpoints::check),
    ("kv-events", kv_events::check),
    ("crds", crds::check),
    ("rbac", rights::check),
    ("pool", pool::check),
    ("routes", routes::check),
    ("capacity", capacity::check),
    ("versions", versions::check),
];

/// Checks by the part that they are about, in the order in which they are shown.
pub const GROUPS: [(&str, &[&str]); 5] = [
    (
        "gateway",
        &["path", "envoy-admin", "body-mode", "timeouts", "fail-mode", "circuit-breakers", "destination"],
    ),
    ("picker", &["picker", "tls", "picker-metrics", "state-store", "versions"]),
    ("model servers", &["pod-metrics", "endpoints", "kv-events"]),
    ("cluster", &["crds", "rbac", "pool", "routes"]),
    ("capacity", &["capacity"]),
];

/// Runs all checks.
pub fn examine(seen: &Observations) -> Report {
    Report { checks: ALL.iter().map(|(name, check)| (*name, check(seen))).collect() }
}

#[cfg(test)]
mod tests;
