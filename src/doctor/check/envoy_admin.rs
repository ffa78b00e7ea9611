//! Does Envoy's admin interface respond?

use crate::doctor::finding::{Finding, Outcome};
use crate::doctor::rules;
use crate::doctor::seen::Observations;

pub(super) fn check(seen: &Observations) -> Outcome {
    match &seen.envoy {
        Ok(envoy) => Outcome::looked(&envoy.url, Vec::new()),
        Err(reason) if seen.envoy_given => {
            Outcome::looked("--envoy-admin", vec![Finding::new(&rules::ENVOY_ADMIN_UNREACHABLE, reason)])
        }
        Err(reason) => Outcome::skipped(reason),
    }
}
