//! Preconditions of checks: observations that a check needs before it can look, and how it ends without them.

use crate::doctor::envoy::EnvoyConfig;
use crate::doctor::finding::Outcome;
use crate::doctor::seen::{Cluster, Envoy, Observations, Seen};

/// Envoy's configuration, if it shows an ext_proc filter.
pub(super) fn configured(seen: &Observations) -> Result<(&Envoy, &EnvoyConfig), Outcome> {
    let envoy = seen.envoy.as_ref().map_err(Outcome::skipped)?;
    if envoy.config.pickers().next().is_none() {
        return Err(Outcome::skipped("Envoy's configuration shows no ext_proc filter"));
    }
    Ok((envoy, &envoy.config))
}

/// State of the cluster, if the API server responded.
pub(super) fn responded(cluster: &Seen<Cluster>) -> Result<&Cluster, Outcome> {
    let cluster = cluster.as_ref().map_err(Outcome::skipped)?;
    match &cluster.unreachable {
        Some(_) => Err(Outcome::skipped("the API server does not respond; see crds")),
        None => Ok(cluster),
    }
}
