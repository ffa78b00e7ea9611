//! The checks, a file each: from what was seen to what is wrong with it.

mod breakers;
mod capacity;
mod crds;
mod endpoints;
mod exchange;
mod fail_mode;
mod path;
mod picker;
mod picker_metrics;
mod pod_metrics;
mod pool;
mod rights;
mod routes;
mod routing;
mod timeouts;
mod tls;
mod versions;

use super::envoy::EnvoyConfig;
use super::finding::{Outcome, Report};
use super::seen::{Cluster, Envoy, Observations, Seen};

/// A check: its name, and what it says.
type Check = (&'static str, fn(&Observations) -> Outcome);

/// All checks, in the way of a request.
const ALL: [Check; 17] = [
    ("path", path::check),
    ("picker", picker::check),
    ("tls", tls::check),
    ("body-mode", exchange::check),
    ("timeouts", timeouts::check),
    ("fail-mode", fail_mode::check),
    ("circuit-breakers", breakers::check),
    ("destination", routing::check),
    ("picker-metrics", picker_metrics::check),
    ("pod-metrics", pod_metrics::check),
    ("endpoints", endpoints::check),
    ("crds", crds::check),
    ("rbac", rights::check),
    ("pool", pool::check),
    ("routes", routes::check),
    ("capacity", capacity::check),
    ("versions", versions::check),
];

/// Runs all checks.
pub fn examine(seen: &Observations) -> Report {
    Report { checks: ALL.iter().map(|(name, check)| (*name, check(seen))).collect() }
}

/// Envoy's configuration, if it shows an ext_proc filter.
fn configured(seen: &Observations) -> Result<(&Envoy, &EnvoyConfig), Outcome> {
    let envoy = seen.envoy.as_ref().map_err(Outcome::skipped)?;
    if envoy.config.pickers().next().is_none() {
        return Err(Outcome::skipped("Envoy's configuration shows no ext_proc filter"));
    }
    Ok((envoy, &envoy.config))
}

/// What the API server says, if it says anything.
fn answered(cluster: &Seen<Cluster>) -> Result<&Cluster, Outcome> {
    let cluster = cluster.as_ref().map_err(Outcome::skipped)?;
    match &cluster.unreachable {
        Some(_) => Err(Outcome::skipped("the API server does not answer; see crds")),
        None => Ok(cluster),
    }
}

/// `1 pod`, `2 pods`.
fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests;
